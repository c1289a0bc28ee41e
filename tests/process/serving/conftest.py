"""Clusters that serve, and what they must answer."""

import contextlib
from collections.abc import Callable, Iterator

import pytest

from tests.process.command import text_of_one_node, wait_for
from tests.process.leaks import leak_check
from tests.process.serving.serving import Serving
from tpiedge.errors import UserError
from tpiedge.lab.memory_group import MemoryGroup, memory_group

PROMPT = "Once upon a time there was a little fox"
TOKENS = 40
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


@pytest.fixture(scope="session")
def expected(_session_cache) -> str:
    """The text that one node gives, and every cluster must."""
    return text_of_one_node(PROMPT, TOKENS)


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Serving]]:
    made: list[Serving] = []

    def make(*options: object, **more: object) -> Serving:
        made.append(Serving(tmp_path_factory.mktemp("cluster"), *options, **more))
        return made[-1]

    yield make
    for cluster in made:
        cluster.close()


@pytest.fixture
def exact(expected: str) -> Callable[[Serving], None]:
    """Fails unless the cluster answers as one node does."""

    def check(cluster: Serving) -> None:
        assert cluster.ask(PROMPT, TOKENS) == expected, cluster.logs()

    return check


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


@pytest.fixture(scope="module")
def cluster(clusters: Callable[..., Serving]) -> Serving:
    cluster = clusters("--min-workers", 1)
    cluster.start_master()
    cluster.start_worker("ann")
    return cluster


def start_trio(cluster: Serving) -> Serving:
    """Starts two workers so slow that computing counts, and each of them is worth its round trips."""
    cluster.start_master()
    for name in ("ann", "bob"):
        cluster.start_worker(name, bytes_per_s=SLOW)
    cluster.wait_ready(3)
    return cluster


@pytest.fixture(scope="module")
def slow_trio(clusters: Callable[..., Serving]) -> Serving:
    """The master and two workers, of which the others could do without one."""
    return start_trio(clusters("--min-workers", 1))


@pytest.fixture
def serving_on(cluster: Serving, exact: Callable[[Serving], None]) -> Iterator[None]:
    """Checks after the test that master and worker still answer."""
    cluster.wait_ready(2)
    yield
    cluster.wait_ready(2)
    exact(cluster)
