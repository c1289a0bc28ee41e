"""Looks at the way to a master that is silent, in a thread of its own: a resolver may take minutes.

The master is known by its key. Its name may mean another address after a while, as where addresses are leased; and
where a part of the way has a smaller MTU and tells nobody, its small messages come and its large ones do not.
"""

import threading
from collections.abc import Callable
from typing import Literal, TypeAlias

from tpiedge.errors import TpiedgeError, UserError
from tpiedge.host.addresses import Address, resolve_all
from tpiedge.joining.connecting import open_link
from tpiedge.joining.identity import peer_name
from tpiedge.transport.keys import CurveKeys
from tpiedge.transport.probe import passes_large_packets

__all__ = ["Lookout", "WayState", "look_for_master"]

WayState: TypeAlias = Literal["moved", "narrow", "unknown"]
"""The master is at another address; large packets do not reach it; or neither is known."""

_ANSWER_S = 3.0
_PACKETS_S = 2.0


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
    if known in found:
        return False
    keys = CurveKeys.generate()  # this worker's own may still be taken, by the connection that is silent
    try:
        with open_link(found[0], key, keys, peer_name(keys.public), _ANSWER_S):
            return True
    except TpiedgeError:  # somebody else is there, or nobody
        return False


class Lookout:
    """For one thread; nothing blocks. `look` is called in another one, which ends by itself."""

    def __init__(self, look: Callable[[], WayState]) -> None:
        self._look = look
        self._lock = threading.Lock()
        self._busy = False
        self._seen: WayState | None = None

    def begin(self) -> None:
        """Looks, unless it does already."""
        with self._lock:
            if self._busy:
                return
            self._busy = True
        threading.Thread(target=self._run, name="look", daemon=True).start()

    def seen(self) -> WayState | None:
        """What was seen since the last call, if anything."""
        with self._lock:
            seen, self._seen = self._seen, None
            return seen

    def _run(self) -> None:
        seen = self._look()
        with self._lock:
            self._busy, self._seen = False, seen
