"""Why answers pause, in the words of those who wait for them: a machine without sockets, threads or clock.

Laws:
1. Machines are called what their users call them.
2. The words follow what happens: who was lost, who is waited for, without whom the answers go on.
"""

from collections.abc import Collection, Iterable

from tpiedge.errors import PeerLost, TpiedgeError
from tpiedge.master.roster import Roster

PLANNED = "a new plan begins"
"""What is told of a pause for a plan that takes the place of one that serves."""
_STARTED_AGAIN = "the master was started again"


class Pauses:
    """Remembers what ended the last session that served, and who took part in it."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._loss = ""
        self._lost = ""
        self._members: Collection[str] | None = ()  # None: those of the master before, whom nobody knows

    def started_again(self) -> str:
        """This master goes on with answers of the one before. Returns what is told of it."""
        self._members, self._loss = None, _STARTED_AGAIN
        return self._loss

    def planned(self) -> str:
        """A new plan takes the place of the one that serves. Returns what is told of it."""
        self._loss = ""
        return PLANNED

    def lost(self, error: TpiedgeError, members: Collection[str]) -> str:
        """The session of these workers ended by an error. Returns what is told of it."""
        self._members = members
        return self.failed(error)

    def failed(self, error: TpiedgeError) -> str:
        """So did the attempt to go on after a loss. Returns what is told of it."""
        self._lost = _called(error)
        self._loss = _words(error)
        return self._loss

    def waiting(self, reason: str) -> str:
        """Nobody can serve, for this reason."""
        gone = self._hosts(name for name in self._members or () if not self._is_present(name))
        return f"waiting for {', '.join(gone)}: {reason}" if self._loss and gone else reason

    def going_on(self, machines: Collection[str]) -> str:
        """These workers take over, or do so already."""
        if not self._loss:
            return PLANNED
        if self._members is None:
            return self._loss
        without = self._hosts(name for name in self._members if name not in machines)
        if not without:
            return f"{self._loss}; going on with the same machines"
        return f"{self._loss}; going on without {'it' if without == [self._lost] else ', '.join(without)}"

    def undecided(self, again: str) -> str:
        """There is no plan yet; `again` says when the next attempt is made, "" where that is not known."""
        return f"{self._loss or PLANNED}{again}"

    def _is_present(self, name: str) -> bool:
        machine = self._roster.get(name)
        return machine is not None and machine.present

    def _hosts(self, names: Iterable[str]) -> list[str]:
        machines = {name: self._roster.get(name) for name in names}
        return [name if one is None else one.offer.host or name for name, one in machines.items()]


def _called(error: TpiedgeError) -> str:
    if not isinstance(error, PeerLost):
        return ""
    return (
        error.host if error.host and error.rank else f"node {error.rank}{error.host and f' ({error.host})'}"
    )


def _words(error: TpiedgeError) -> str:
    if not isinstance(error, PeerLost):
        return str(error)
    during = "" if error.waited_for == "the work" else f" during {error.waited_for}"
    return f"{_called(error)} was lost{during}: {error.cause}"
