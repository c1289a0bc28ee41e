"""When to plan for who is there: a machine without sockets, threads or clock.

Laws:
1. Workers that come at about the same time are planned for together: a plan waits until nobody has come for SETTLE_S.
2. A plan waits for a word of each machine whose node was just lost: the machine may have gone with it.
3. No plan waits for longer than LONGEST_S after the first change that it is to take up, however often somebody comes
   and goes.
"""

from typing import Final

from tpiedge.nodes.roster import Roster

__all__ = ["LONGEST_S", "SETTLE_S", "Settling"]

SETTLE_S: Final = 0.3
LONGEST_S: Final = 2.0


class Settling:
    """Times are seconds on the caller's clock."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._planned: int | None = None  # the roster's generation of the last plan
        self._changed: float | None = None

    def ripe(self, now: float) -> bool:
        """Whether a plan is due. To be asked again and again."""
        if self._planned == self._roster.generation:
            return False
        if self._changed is None:
            self._changed = now
        if now - self._changed >= LONGEST_S:
            return True
        newest = max((machine.since for machine in self._roster.present), default=0.0)
        return not self._roster.doubtful and now >= newest + SETTLE_S

    def planned(self) -> None:
        """A plan was made for who is there now."""
        self._planned = self._roster.generation
        self._changed = None

    def again(self) -> None:
        """Plan anew, although nobody has come or gone."""
        self._planned = None
