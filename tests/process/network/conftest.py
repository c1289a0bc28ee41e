"""Machines in network namespaces, and clusters on them. The tests themselves are on the master's machine."""

import contextlib
from collections.abc import Callable, Iterator

import pytest

from tests.process.command import text_of_one_node
from tests.process.leaks import leak_check
from tests.process.network.cluster import NetworkCluster
from tests.process.network.namespaces import MASTER, Namespaces, why_impossible

PROMPT, TOKENS = "Once upon a time there was a little fox", 40

Exact = Callable[[NetworkCluster], None]


@contextlib.contextmanager
def machines() -> Iterator[Namespaces]:
    """Yields machines, with this thread on the master's. Skips where namespaces are impossible."""
    reason = why_impossible("nft", "tc")
    if reason is not None:
        pytest.skip(reason)
    with Namespaces() as made, made.inside(MASTER):
        yield made


@pytest.fixture(scope="module", autouse=True)
def _leak_check() -> Iterator[None]:
    """Replaces the check of each test: the machines live as long as the tests of a file."""
    with leak_check("module"):
        yield


@pytest.fixture(scope="module")
def namespaces(_leak_check: None) -> Iterator[Namespaces]:
    with machines() as made:
        yield made


@pytest.fixture(scope="session")
def expected(_session_cache: None) -> str:
    return text_of_one_node(PROMPT, TOKENS)


@pytest.fixture
def exact(expected: str) -> Exact:
    def check(cluster: NetworkCluster) -> None:
        assert cluster.ask(PROMPT, TOKENS) == expected, cluster.logs()

    return check
