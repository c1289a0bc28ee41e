"""When to plan for the machines that are present: a machine without sockets, threads or clock.

Laws:
1. Workers that arrive at about the same time get one plan: it waits until no worker has arrived for QUIET_S.
2. A plan waits until each machine whose node was just lost is heard again or lost too.
3. No plan waits longer than LONGEST_S after the first change since the last plan, however many changes follow.
"""

from typing import Final

from tpiedge.master.roster import Roster

QUIET_S: Final = 0.3
LONGEST_S: Final = 2.0


class Debounce:
    """Delays plans until changes of the roster have settled. Times are seconds on the caller's clock."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._planned: int | None = None  # the roster's generation of the last plan
        self._changed: float | None = None

    def due(self, now: float) -> bool:
        """Whether a plan is due. The caller asks repeatedly; the first call after a change starts the wait."""
        if self._planned == self._roster.generation:
            return False
        if self._changed is None:
            self._changed = now
        if now - self._changed >= LONGEST_S:
            return True
        newest = max((machine.since for machine in self._roster.present), default=0.0)
        return not self._roster.doubtful and now >= newest + QUIET_S

    def planned(self) -> None:
        """A plan was made for the machines that are present now."""
        self._planned = self._roster.generation
        self._changed = None

    def again(self) -> None:
        """Makes a plan due although the roster has not changed."""
        self._planned = None
