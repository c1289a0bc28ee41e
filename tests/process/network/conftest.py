"""Machines in network namespaces, and clusters on them. The tests themselves are on the master's machine."""

from collections.abc import Iterator

import pytest

from tests.process.leaks import leak_check
from tests.process.network.namespaces import MASTER, Namespaces, why_impossible


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
