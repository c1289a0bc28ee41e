"""How often a worker's offer may change what the master plans with: a machine without sockets, threads or clock.

Laws:
1. FREE offers of a worker count at once: honest ones follow changed limits, broken links and restarts.
2. Every further one counts only FIRST_S after the one that counted before it, the next one twice as long after that,
   up to LONGEST_S. What comes earlier changes nothing, and the worker is asked again when it is time.
3. A worker none of whose offers has counted for FORGIVEN_S starts anew.
4. No worker waits because of another.
"""

from dataclasses import dataclass
from typing import Final

__all__ = ["FIRST_S", "FORGIVEN_S", "FREE", "LONGEST_S", "OfferRate"]

FREE: Final = 6
FIRST_S: Final = 2.0
LONGEST_S: Final = 60.0
#: Longer than LONGEST_S: who goes on does not start anew.
FORGIVEN_S: Final = 120.0


@dataclass
class _Counted:
    offers: int
    latest: float
    #: Whether an offer came too early.
    owed: bool = False

    @property
    def due(self) -> float:
        """From when on the next offer counts."""
        if self.offers < FREE:
            return self.latest
        return self.latest + min(LONGEST_S, FIRST_S * 2.0 ** min(self.offers - FREE, 10))


class OfferRate:
    """Counts the offers of each worker. Times are seconds on the caller's clock."""

    def __init__(self) -> None:
        self._counted: dict[str, _Counted] = {}

    def admits(self, name: str, now: float) -> bool:
        """Whether the offer that came now counts."""
        known = self._counted.get(name)
        if known is None or now - known.latest >= FORGIVEN_S:
            self._counted[name] = _Counted(1, now)
            return True
        if now < known.due:
            known.owed = True
            return False
        self._counted[name] = _Counted(known.offers + 1, now)
        return True

    def due(self, name: str, now: float) -> bool:
        """Whether an offer would count now."""
        known = self._counted.get(name)
        return known is None or now >= known.due

    def owed(self, name: str, now: float) -> bool:
        """Whether it is time to ask for an offer in place of one that came too early; True once."""
        known = self._counted.get(name)
        if known is None or not known.owed or now < known.due:
            return False
        known.owed = False
        return True

    def forget(self, name: str) -> None:
        """The worker was revoked."""
        self._counted.pop(name, None)
