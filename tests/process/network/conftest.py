"""Machines in network namespaces, and clusters on them. The tests themselves are on the master's machine."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.process.command import text_of_one_node
from tests.process.leaks import leak_check
from tests.process.network.bulky import build_bulky_model, reference_text
from tests.process.network.cluster import NetworkCluster
from tests.process.network.namespaces import MASTER, Namespaces, why_impossible
from tests.process.network.observed import PROMPT, TOKENS, Observed, observe


@contextlib.contextmanager
def machines() -> Iterator[Namespaces]:
    """Yields machines, with this thread on the master's. Skips where namespaces are impossible."""
    reason = why_impossible("nft", "tc")
    if reason is not None:
        pytest.skip(reason)
    with Namespaces() as made, made.inside(MASTER):
        yield made


@pytest.fixture(scope="package", autouse=True)
def _leak_check() -> Iterator[None]:
    """Replaces the check of each test: tests of the package share a cluster."""
    with leak_check("package"):
        yield


@pytest.fixture(scope="session")
def expected(_session_cache) -> str:
    return text_of_one_node(PROMPT, TOKENS)


@pytest.fixture(scope="package")
def bulky(_leak_check: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_bulky_model(tmp_path_factory.mktemp("bulky") / "bulky")


@pytest.fixture(scope="package")
def bulky_text(bulky: Path, _session_cache: None) -> str:
    return reference_text(bulky)


@pytest.fixture(scope="package")
def namespaces(_leak_check: None) -> Iterator[Namespaces]:
    with machines() as made:
        yield made


@pytest.fixture(scope="package")
def clusters(
    namespaces: Namespaces, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., NetworkCluster]]:
    """Make a cluster with options of `tpiedge master`; ended, and looked after, at the end of the package."""
    made: list[NetworkCluster] = []

    def make(*options: object, **more: object) -> NetworkCluster:
        made.append(NetworkCluster(tmp_path_factory.mktemp("cluster"), namespaces, *options, **more))
        return made[-1]

    yield make
    for cluster in made:
        cluster.close()


@pytest.fixture(scope="package")
def observed(clusters: Callable[..., NetworkCluster], namespaces: Namespaces) -> Observed:
    """The cluster of all tests that need no other, and how its network looked at the start."""
    return observe(clusters("--min-workers", 2), namespaces)


@pytest.fixture
def cluster(observed: Observed) -> NetworkCluster:
    observed.cluster.wait_ready(3)
    return observed.cluster


@pytest.fixture
def exact(expected: str) -> Callable[[NetworkCluster], None]:
    def check(cluster: NetworkCluster) -> None:
        assert cluster.ask(PROMPT, TOKENS) == expected, cluster.logs()

    return check
