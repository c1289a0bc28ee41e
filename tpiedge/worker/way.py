"""Looks at the way to a master that is silent, in a thread of its own: a resolver may take minutes.

The master is known by its key. Its name may mean another address after a while, as where addresses are leased, or
several of which it is at one; and where a part of the way has a smaller MTU and tells nobody, its small messages come
and its large ones do not.
"""

import logging
import threading
from collections.abc import Callable
from typing import Final, Literal, TypeAlias

from tpiedge.errors import UserError
from tpiedge.host.addresses import Address, resolve_all
from tpiedge.joining.connecting import who_is_at
from tpiedge.transport.probe import passes_large_packets

WayState: TypeAlias = Literal["moved", "narrow", "unknown"]
"""The master is at another address; large packets do not reach it; or neither is known."""

_log = logging.getLogger(__name__)

_ANSWER_S = 3.0
_PACKETS_S = 2.0
#: So many of a name's addresses are tried, which takes _ANSWER_S and a moment each.
_MOST_ADDRESSES: Final = 16


def look_for_master(named: Address, known: Address, key: str) -> WayState:
    """How the way is to the master of that `key`, which a user calls `named` and who was last at `known`. Blocks as
    long as the resolver does, and some seconds."""
    if _is_elsewhere(named, known, key):
        return "moved"
    return "narrow" if passes_large_packets(known.host, known.port, _PACKETS_S) is False else "unknown"


def _is_elsewhere(named: Address, known: Address, key: str) -> bool:
    try:
        found = resolve_all(named)
    except UserError:  # the name means nothing now: it stays where it was
        return False
    others = [address for address in found[:_MOST_ADDRESSES] if address != known]
    if known in found and others and who_is_at(known, key, _ANSWER_S) != "nobody":
        return False
    return any(who_is_at(address, key, _ANSWER_S) == "the master" for address in others)


class Lookout:
    """For one thread; nothing blocks. `look` is called in another one, which ends by itself. A look that fails, or for
    which there is no thread, is "unknown": the next one may do better."""

    def __init__(self, look: Callable[[], WayState]) -> None:
        self._look = look
        self._lock = threading.Lock()
        self._busy = False
        self._seen: WayState | None = None
        #: Whether the last look failed: a machine that lacks something lacks it at the next one too, and says so once.
        self._failed = False

    def begin(self) -> None:
        """Looks, unless it does already."""
        with self._lock:
            if self._busy:
                return
            self._busy = True
        try:
            threading.Thread(target=self._run, name="look", daemon=True).start()
        except RuntimeError as error:  # the machine has no thread left
            self._end("unknown", error)

    def seen(self) -> WayState | None:
        """What was seen since the last call, if anything."""
        with self._lock:
            seen, self._seen = self._seen, None
            return seen

    def _run(self) -> None:
        try:
            self._end(self._look())
        except (
            Exception
        ) as error:  # no descriptor left, say: less is known for a while, and the worker serves on
            self._end("unknown", error)

    def _end(self, seen: WayState, error: Exception | None = None) -> None:
        """`error`: why nothing was seen."""
        if error is not None and not self._failed:
            _log.warning("cannot look where the master is: %s: %s", type(error).__name__, error)
        with self._lock:
            self._busy, self._seen, self._failed = False, seen, error is not None
