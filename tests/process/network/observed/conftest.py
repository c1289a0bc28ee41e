"""One cluster for all tests of this folder, and how its network looked at its start."""

import contextlib
from collections.abc import Iterator

import pytest

from tests.process.conftest import PROMPT
from tests.process.network.cluster import NetworkCluster
from tests.process.network.namespaces import Namespaces
from tests.process.network.observed.recorded import STORY, Observed, observe


@pytest.fixture(scope="package")
def observed(namespaces: Namespaces, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Observed]:
    cluster = NetworkCluster(tmp_path_factory.mktemp("cluster"), namespaces, "--min-workers", 2)
    with contextlib.closing(cluster):
        yield observe(cluster, namespaces)


@pytest.fixture
def cluster(observed: Observed) -> NetworkCluster:
    observed.cluster.wait_ready(3)
    return observed.cluster


@pytest.fixture(scope="package")
def story(observed: Observed) -> str:
    """Asks for an undisturbed answer of STORY tokens."""
    observed.cluster.wait_ready(3)
    return observed.cluster.whole(PROMPT, STORY)
