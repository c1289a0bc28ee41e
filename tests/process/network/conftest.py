"""Machines in network namespaces, and clusters on them. The tests themselves are on the master's machine."""

from collections.abc import Callable, Iterator

import pytest

from tests.process.command import text_of_one_node
from tests.process.leaks import leak_check
from tests.process.network.cluster import NetworkCluster
from tests.process.network.namespaces import MASTER, Namespaces, why_impossible

PROMPT, TOKENS = "Once upon a time there was a little fox", 16

Exact = Callable[[NetworkCluster], None]


@pytest.fixture(scope="package", autouse=True)
def _leak_check() -> Iterator[None]:
    """Replaces the check of each test: the machines live as long as tests of this folder run."""
    with leak_check("package"):
        yield


@pytest.fixture(scope="package")
def namespaces(_leak_check: None) -> Iterator[Namespaces]:
    """Yields machines, with this thread on the master's. Skips where namespaces are impossible."""
    reason = why_impossible("nft", "tc")
    if reason is not None:
        pytest.skip(reason)
    with Namespaces() as made, made.inside(MASTER):
        yield made


@pytest.fixture(scope="session")
def expected(_session_cache: None) -> str:
    return text_of_one_node(PROMPT, TOKENS)


@pytest.fixture
def exact(expected: str) -> Exact:
    def check(cluster: NetworkCluster) -> None:
        assert cluster.ask(PROMPT, TOKENS) == expected, cluster.logs()

    return check
