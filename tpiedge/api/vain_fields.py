"""Fields of requests that have no effect: what is said of them in the log."""

import logging
from collections.abc import Sequence
from typing import Final

from tpiedge.api.answering import IGNORED

_MOST_SAID: Final = 1000

_log = logging.getLogger(__name__)


class VainFields:
    """Says of each field that clients send in vain once that it has no effect. For any thread."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def say(self, names: Sequence[str]) -> None:
        for name in names:
            if name not in self._said and len(self._said) < _MOST_SAID:
                self._said.add(name)
                _log.warning("clients send the field %s, which has no effect here", name)

    def headers(self, names: Sequence[str]) -> dict[str, str]:
        """Says it in the log; what says it to the client."""
        self.say(names)
        return {IGNORED: ", ".join(names)} if names else {}
