"""Fixtures and settings for every test: reference models, one thread for torch, a cache of the session, the leak
check."""

import functools
import gc
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import certifi
import pytest
from hypothesis import HealthCheck, settings

from tests import deadlines
from tests.process.leaks import adopt_orphans, leak_check
from tests.scheduling import Scheduler, order
from tests.unit.kernels.instruction_sets import LACKING
from tools.touched import PARTS

if TYPE_CHECKING:
    from tests.reference import Reference

pytest_plugins = ["tests.browsing.fixtures", "tests.skips"]

#: Where only tests marked `thin` are quick, and where every third of one function's is.
_SLOW = ("tests/deploy/", "tests/native/", "tests/process/")
_SAMPLED = ("tests/cluster/", "tests/contract/")

# Examples take as long as other tests leave the processors to them. `--hypothesis-profile` comes after this.
settings.register_profile("relaxed", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("relaxed")


def pytest_configure(config: pytest.Config) -> None:
    # Read by torch when it is imported, here or in a child: tiny products lose by more threads.
    os.environ["OMP_NUM_THREADS"] = "1"
    adopt_orphans()
    # A shell's background job ignores these, and so would all that it starts: nothing could be interrupted.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    return Scheduler(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    seen = Counter[str]()
    for item in items:
        function = item.nodeid.partition("[")[0]
        if _only_in_all(item, seen[function]):
            item.add_marker(pytest.mark.slow)
        for mark, part in PARTS.items():
            if item.get_closest_marker("fault") is None and part.folders & {*function.split("/")[:-1]}:
                item.add_marker(mark)
        seen[function] += 1
    items.sort(key=order)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Spares the collections of tests, and of the check for leaks after them, the million objects of all the tests."""
    gc.collect()
    gc.freeze()


def _only_in_all(item: pytest.Item, number: int) -> bool:
    """`number`: of the tests of one function, from 0."""
    if item.nodeid.startswith(_SLOW):
        return item.get_closest_marker("thin") is None
    return item.nodeid.startswith(_SAMPLED) and number % 3 > 0


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):  # pytest-xdist's workers show nothing
        return
    if LACKING:
        terminalreporter.write_line(f"not tested, for this CPU has none of them: {', '.join(LACKING)}")
    if os.environ.get("FAILURES"):  # of both parts of `make test-all`, which names them together
        with Path(os.environ["FAILURES"]).open("a") as file:
            for kind in ("failed", "error"):
                file.writelines(f"{kind}: {one.nodeid}\n" for one in terminalreporter.stats.get(kind, []))


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


@pytest.fixture(scope="session", autouse=True)
def _one_authority(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Has clients of httpx trust one public authority: reading all takes each client 50 ms of processor time."""
    first, end, _ = Path(certifi.where()).read_text().partition("-----END CERTIFICATE-----\n")
    authority = tmp_path_factory.mktemp("authority") / "first.pem"
    authority.write_text(first + end)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(certifi, "where", lambda: str(authority))
        yield


@pytest.fixture
def deadline_factor() -> float:
    return deadlines.deadline_factor()


@pytest.fixture(autouse=True)
def _leak_check() -> Iterator[None]:
    """A test that leaves threads, child processes or open files behind fails, with their names."""
    if sys.platform != "linux":
        yield
        return
    with leak_check("test"):
        yield
