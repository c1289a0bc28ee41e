"""One cluster for all tests of this folder, and how its network looked at its start."""

import contextlib
from collections.abc import Iterator

import pytest

from tests.process.leaks import leak_check
from tests.process.network.cluster import NetworkCluster
from tests.process.network.conftest import machines
from tests.process.network.namespaces import Namespaces
from tests.process.network.observed.recorded import Observed, observe


@pytest.fixture(scope="package", autouse=True)
def _leak_check() -> Iterator[None]:
    """Replaces the check of each test: tests of the package share a cluster."""
    with leak_check("package"):
        yield


@pytest.fixture(scope="package")
def namespaces(_leak_check: None) -> Iterator[Namespaces]:
    with machines() as made:
        yield made


@pytest.fixture(scope="package")
def observed(namespaces: Namespaces, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Observed]:
    cluster = NetworkCluster(tmp_path_factory.mktemp("cluster"), namespaces, "--min-workers", 2)
    with contextlib.closing(cluster):
        yield observe(cluster, namespaces)


@pytest.fixture
def cluster(observed: Observed) -> NetworkCluster:
    observed.cluster.wait_ready(3)
    return observed.cluster
