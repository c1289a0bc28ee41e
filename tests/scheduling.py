"""Distributes tests among the workers of pytest-xdist.

Tests of a file go to one worker in order, for they share fixtures; so do the tests of some folders. Files that wait a
lot go first, so that computing fills the gaps and the end. `make` runs tests marked `alone` afterwards, in a process of
their own.
"""

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

_TOGETHER = (
    "tests/deploy/",
    "tests/http/page/",
    "tests/native/",
    "tests/process/network/observed/",
    "tests/process/serving/pair/",
)
_FIRST = (
    "tests/deploy/",
    "tests/native/",
    "tests/process/",
    "tests/cluster/",
    "tests/contract/",
    "tests/http/page/",
)


def order(item: pytest.Item) -> int:
    """A key to sort by; what is alike stays as it was collected."""
    return next((place for place, folder in enumerate(_FIRST) if item.nodeid.startswith(folder)), len(_FIRST))


class Scheduler(LoadScopeScheduling):
    """Gives out files in the order of collection."""

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return next((folder for folder in _TOGETHER if path.startswith(folder)), path)
