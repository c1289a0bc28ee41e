"""For every test: the reference models, one thread for torch, a cache that is not the user's, and the leak check."""

import functools
import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests.process.leaks import Holdings, adopt_orphans

if TYPE_CHECKING:
    from tests.reference import Reference

_GRACE_S = 3.0

# Examples take as long as other tests leave the processors to them. `--hypothesis-profile` comes after this.
settings.register_profile("patient", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


def pytest_configure() -> None:
    # Read by torch when it is imported, here or in a child: tiny products lose by more threads.
    os.environ["OMP_NUM_THREADS"] = "1"
    adopt_orphans()


@pytest.fixture(scope="session")
def references(tmp_path_factory: pytest.TempPathFactory) -> "Callable[[str], Reference]":
    """Case name -> its Reference, built and run once per session. Imports transformers (seconds) on first use."""

    @functools.cache
    def find(name: str) -> "Reference":
        import torch

        from tests.reference import case, reference

        torch.set_num_threads(1)
        return reference(case(name), tmp_path_factory.mktemp("reference") / name)

    return find


@pytest.fixture(scope="session", autouse=True)
def _session_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Packs go to a folder of this session: the first run of a model packs it, later tests share the pack."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TPIEDGE_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("TPIEDGE_CONFIG", os.devnull)  # not the user's settings either
        yield


@pytest.fixture(autouse=True)
def _leak_check() -> Iterator[None]:
    """A test that leaves threads, child processes or open files behind fails, with their names."""
    if sys.platform != "linux":
        yield
        return
    before = Holdings.now()
    yield
    left = before.growth(_GRACE_S)
    if left:
        pytest.fail("left behind by the test:\n  " + "\n  ".join(left), pytrace=False)
