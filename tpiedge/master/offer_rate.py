"""How often a worker may change its offer, and with it what the master plans with: a machine without sockets, threads
or clock.

Laws:
1. What a worker offers first, and first after it was lost, counts: a link that breaks again and again is not its fault,
   and losses have a price of their own (`quarantine`).
2. Of its other offers FREE count at once, and every further one FIRST_S after the one that counted before it, the next
   one twice as long after that, up to LONGEST_S. What comes earlier changes nothing, and the worker is asked again when
   it is time.
3. A worker none of whose other offers has counted for FORGIVEN_S starts anew.
4. No worker waits because of another.
5. Of workers with ever new names only the last ones' offers are known (`remembered.py`).
"""

from dataclasses import dataclass
from typing import Final

from tpiedge.master.remembered import Remembered

FREE: Final = 6
FIRST_S: Final = 2.0
LONGEST_S: Final = 60.0
#: Longer than LONGEST_S: who goes on does not start anew.
FORGIVEN_S: Final = 120.0


@dataclass
class _OfferChanges:
    """The offers of a worker that counted, but for its first ones."""

    count: int = 0
    latest: float = 0.0
    #: Whether it was lost since its last offer.
    lost: bool = False
    #: Whether an offer came too early.
    owed: bool = False

    def due(self, now: float) -> bool:
        """Whether a further one counts now."""
        if self.count < FREE:
            return True
        return now >= self.latest + min(LONGEST_S, FIRST_S * 2.0 ** min(self.count - FREE, 10))


class OfferRate:
    """Counts the offers of each worker. Times are seconds on the caller's clock."""

    def __init__(self) -> None:
        self._changes = Remembered[_OfferChanges]()

    def admits(self, name: str, now: float) -> bool:
        """Whether the offer that came now counts."""
        known = self._changes.get(name)
        if known is None:
            self._changes.note(name, _OfferChanges())
            return True
        self._changes.note(name, known)
        if known.lost:
            known.lost = known.owed = False
            return True
        if known.count and now - known.latest >= FORGIVEN_S:
            known.count = 0
        if not known.due(now):
            known.owed = True
            return False
        known.count, known.latest, known.owed = known.count + 1, now, False
        return True

    def owed(self, name: str, now: float) -> bool:
        """Whether it is time to ask for an offer in place of one that came too early; True once."""
        known = self._changes.get(name)
        if known is None or not known.owed or not known.due(now):
            return False
        known.owed = False
        return True

    def lost(self, name: str) -> None:
        """The worker was lost: its connection broke, or it was silent."""
        known = self._changes.get(name)
        if known is not None:
            known.lost = True

    def forget(self, name: str) -> None:
        """The worker was revoked."""
        self._changes.forget(name)
