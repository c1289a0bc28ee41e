"""The last events of a cluster, as its users think of them: a machine without sockets, threads or clock.

Laws:
1. The last EVENTS are kept, each with the wall clock's time of its happening.
2. What became of machines is found by comparing the roster with the one before, whenever that has changed; nothing
   is done while nothing changes.
3. A plan is said to serve once. After a loss it has recovered from it; then the time since the loss is said.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from tpiedge.master.assignments import Assignment
from tpiedge.master.roster import STOPPED, Machine, Roster
from tpiedge.sanitise import sanitised_line
from tpiedge.units import format_seconds

EVENTS: Final = 100
_LONGEST: Final = 300

EventKind: TypeAlias = Literal[
    "joined",
    "left",
    "lost",
    "drained",
    "undrained",
    "cleared",
    "revoked",
    "planned",
    "serving",
    "recovered",
    "interrupted",
    "plan failed",
    "no plan",
]
"""A machine came, was stopped there, was lost, was taken out by its user or back in, is to be tried again at once, may
not come any more; a plan begins, serves, serves after a loss, was lost so that answers pause, came to nothing, or none
can be made."""


@dataclass(frozen=True, slots=True)
class ClusterEvent:
    """`at`: seconds since 1970. `machine` is what its user calls it, "" for an event of all. `detail` is one line."""

    at: float
    kind: EventKind
    machine: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class _Seen:
    host: str
    since: float
    present: bool
    drained: bool


class Chronicle:
    """Is told what happens to plans and looks at the machines. One thread tells; any thread may read `events`."""

    def __init__(self, wall: Callable[[], float]) -> None:
        """`wall` gives seconds since 1970."""
        #: The last ones, the latest first.
        self.events: tuple[ClusterEvent, ...] = ()
        self._wall = wall
        self._generation = -1
        self._seen: Mapping[str, _Seen] = {}
        self._serving = 0  # the latest epoch that was said to serve
        self._lost: float | None = None
        self._reason = ""

    def look(self, roster: Roster) -> None:
        """Notes what became of machines since the last look."""
        if roster.generation == self._generation:
            return
        self._generation = roster.generation
        found = {machine.name: _seen(machine) for machine in roster.machines}
        for machine in roster.machines:
            self._compare(machine, self._seen.get(machine.name), found[machine.name])
        for name, before in self._seen.items():
            if before.present and name not in found:
                self._add("revoked", before.host)
        self._seen = found

    def planned(self, assignments: Sequence[Assignment]) -> None:
        """The nodes of a plan start."""
        hosts = ", ".join(one.host or "master" for one in assignments)
        self._reason = ""
        self._add("planned", detail=hosts)

    def serves(self, epoch: int, now: float) -> None:
        """Requests are answered in the epoch; may be said again and again."""
        if epoch == self._serving:
            return
        self._serving = epoch
        if self._lost is None:
            self._add("serving")
        else:
            self._add("recovered", detail=f"after {format_seconds(now - self._lost)}")
            self._lost = None

    def interrupted(self, error: object, now: float) -> None:
        """A plan ended, and nobody had planned it. Answers pause if it served."""
        if self._lost is None and self._serving:
            self._lost = now
        self._add("interrupted", detail=str(error))

    def plan_failed(self, error: object) -> None:
        """A plan came to nothing before its nodes started."""
        self._add("plan failed", detail=str(error))

    def cleared(self, machine: Machine) -> None:
        """Its user wants it tried again, though it was left out for longer."""
        self._add("cleared", _called(machine))

    def no_plan(self, reason: str) -> None:
        """None can be made; may be said again and again."""
        if reason != self._reason:
            self._reason = reason
            self._add("no plan", detail=reason)

    def _compare(self, machine: Machine, before: _Seen | None, found: _Seen) -> None:
        was_here = before is not None and before.present
        stayed = was_here and found.present and before is not None and before.since == found.since
        if was_here and not stayed:
            self._add("left" if machine.cause == STOPPED else "lost", found.host, machine.cause)
        if found.present and not stayed:
            self._add("joined", found.host)
        if found.drained != (before is not None and before.drained):
            self._add("drained" if found.drained else "undrained", found.host)

    def _add(self, kind: EventKind, machine: str = "", detail: str = "") -> None:
        event = ClusterEvent(self._wall(), kind, machine, sanitised_line(detail, _LONGEST))
        self.events = (event, *self.events[: EVENTS - 1])


def _called(machine: Machine) -> str:
    return machine.offer.host or machine.name


def _seen(machine: Machine) -> _Seen:
    return _Seen(_called(machine), machine.since, machine.present, machine.drained)
