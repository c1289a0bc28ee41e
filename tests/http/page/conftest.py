"""The page in a real browser, served by the real server before a cluster that answers by script."""

import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.process.leaks import Holdings

_GRACE_S = 30.0


@pytest.fixture(scope="module", autouse=True)
def _leak_check() -> Iterator[None]:
    """As everywhere, but over a module, whose tests share a browser that starts and ends processes all the time."""
    before = Holdings.now()
    yield
    watchdogs = {thread for thread in threading.enumerate() if thread.name.startswith("pytest_timeout")}
    left = replace(before, threads=before.threads | watchdogs).growth(_GRACE_S)
    if left:
        pytest.fail("left behind by the module:\n  " + "\n  ".join(left), pytrace=False)
