"""Clusters that serve, and what they must answer."""

import contextlib
from collections.abc import Callable, Iterator

import pytest

from tests.process.command import wait_for
from tests.process.leaks import leak_check
from tests.process.serving.serving import Serving
from tpiedge.errors import UserError
from tpiedge.lab.memory_group import MemoryGroup, memory_group

#: As machines say: a third one is worth a tenth of the time, and no round trip of a busy machine counts beside that.
SLOW = 1e4
NO_LIMIT = 1 << 50
GROUP_ENDS_S = 30.0


@pytest.fixture(scope="module", autouse=True)
def _leak_check() -> Iterator[None]:
    """Replaces the check of each test: tests of a module share a cluster that starts and ends processes all the
    time."""
    with leak_check("module"):
        yield


@contextlib.contextmanager
def clusters_below(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Serving]]:
    """Makes clusters, which end with the block."""
    made: list[Serving] = []

    def make(*options: object, **more: object) -> Serving:
        made.append(Serving(tmp_path_factory.mktemp("cluster"), *options, **more))
        return made[-1]

    yield make
    for cluster in made:
        cluster.close()


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Serving]]:
    with clusters_below(tmp_path_factory) as make:
        yield make


@pytest.fixture
def group() -> Iterator[MemoryGroup]:
    """A control group without a limit, for one machine's processes."""
    with contextlib.ExitStack() as stack:
        try:
            made = stack.enter_context(memory_group(NO_LIMIT))
        except UserError as error:
            pytest.skip(f"groups: {error}")
        yield made
        wait_for(lambda: not made.members, GROUP_ENDS_S)  # they end by themselves
