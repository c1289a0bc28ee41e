"""A master and one worker, which all tests of this folder share."""

from collections.abc import Callable, Iterator

import pytest

from tests.process.leaks import leak_check
from tests.process.serving.conftest import clusters_below
from tests.process.serving.serving import Serving

PARALLEL = 3


@pytest.fixture(scope="package", autouse=True)
def _leak_check() -> Iterator[None]:
    with leak_check("package"):
        yield


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with clusters_below(tmp_path_factory) as clusters:
        sizes = ("--parallel", PARALLEL, "--context", 512, "--kv-tokens", 2048)
        # A busy machine takes longer to end than ten seconds.
        cluster = clusters("--min-workers", 1, *sizes, "--drain", 90)
        cluster.start_master()
        cluster.start_worker("ann")
        yield cluster


@pytest.fixture
def serving_on(cluster: Serving, exact: Callable[[Serving], None]) -> Iterator[None]:
    """Checks after the test that master and worker still answer."""
    cluster.wait_ready(2)
    yield
    cluster.wait_ready(2)
    exact(cluster)
