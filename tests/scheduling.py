"""Who runs which tests, and when, where pytest-xdist has several workers.

- The tests of a file go to one worker, one after the other: they share what their fixtures start.
- So do the tests of some folders, whose fixtures are for all of them.
- Files that wait a lot go first, so that what only computes fills the gaps and the end.

Tests marked `alone` are not among them: `make` runs them afterwards, in a process of their own.
"""

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

_TOGETHER = ("tests/deploy/", "tests/http/page/", "tests/native/", "tests/process/network/")
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
