"""Counts and lists events of plans and machines, and tells paused clients which machine is lost or awaited. Pure."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias, get_args

from tpiedge.errors import PeerLost, TpiedgeError
from tpiedge.master.assignments import Assignment
from tpiedge.master.blame import Failure
from tpiedge.master.request_times import Histogram
from tpiedge.master.roster import STOPPED, Machine, Roster
from tpiedge.sanitise import sanitised_line
from tpiedge.units import format_seconds

PLANNED: Final = "switching to a new plan"  # replaces a serving one
LOADING: Final = "loading the weights"  # of a model that was not served or was unloaded
EVENTS: Final = 100

MachineEvent: TypeAlias = Literal["joined", "left", "lost", "drained", "undrained", "cleared", "revoked"]
PlanEvent: TypeAlias = Literal["planned", "serving", "recovered", "interrupted", "plan failed", "no plan"]
EventKind: TypeAlias = MachineEvent | PlanEvent


@dataclass(frozen=True, slots=True)
class ClusterEvent:
    """`at`: seconds since 1970. `machine`: a host name, or "". `detail`: one line."""

    at: float
    kind: EventKind
    machine: str = ""
    detail: str = ""


LossCause: TypeAlias = Literal["stopped", "machine", "protocol", "dispute", "node", "other"]
"""Why a serving plan ended: a stopped or revoked worker, a lost machine, a breach or a dispute, a dead node, or
anything else."""
PlanCause: TypeAlias = Literal["start", "loss", "plan"]  # the first, or after a lost or serving one
LOSS_CAUSES: Final[tuple[LossCause, ...]] = get_args(LossCause)
PLAN_CAUSES: Final[tuple[PlanCause, ...]] = get_args(PlanCause)


@dataclass(slots=True)
class PlanHistory:
    """Counts since the master started. `begun`: begun plans, in the order of PLAN_CAUSES. `failed`: plans that never
    served. `losses`: unplanned ends, in the order of LOSS_CAUSES. `recoveries`: seconds from a loss to new service."""

    begun: list[int] = field(default_factory=lambda: [0] * len(PLAN_CAUSES))
    failed: int = 0
    losses: list[int] = field(default_factory=lambda: [0] * len(LOSS_CAUSES))
    recoveries: Histogram = field(default_factory=Histogram)


@dataclass(eq=False)
class History:
    """One thread reports events; others may read `events`, `so_far`. `wall`: seconds since 1970."""

    _roster: Roster
    _wall: Callable[[], float]
    events: tuple[ClusterEvent, ...] = ()  # the latest first
    so_far: PlanHistory = field(default_factory=PlanHistory)
    _generation: int = -1
    _seen: Mapping[str, Machine] = field(default_factory=dict)
    _serving: int = 0  # the latest epoch that served
    _answers: bool = False  # whether the latest plan has served
    _interrupted: float | None = None  # when an unplanned end came, until another plan serves
    _no_plan: str = ""
    _parts: str = ""  # the machines of the latest plan
    #: Why the last session ended, the machine at fault, and the session's workers (None: of the earlier master).
    _loss: str = ""
    _lost_host: str = ""
    _members: Collection[str] | None = ()

    def look(self) -> None:
        """Finds events of machines by comparing the roster with its previous state."""
        if self._roster.generation == self._generation:
            return
        self._generation = self._roster.generation
        before, self._seen = self._seen, {one.name: one for one in self._roster.machines}
        for name, machine in self._seen.items():
            self._compare(machine, before.get(name))
        for name, seen in before.items():
            if seen.present and name not in self._seen:
                self._add("revoked", _called(seen))

    def started_again(self) -> str:
        """Notes that the master restarted. Returns what to tell clients."""
        self._members, self._loss = None, "the master was restarted"
        return self._loss

    def planned(self) -> str:
        self._loss = ""
        return PLANNED

    def began(self, assignments: Sequence[Assignment], *, replaces: bool, name: str = "") -> None:
        """Notes a plan's start. `replaces`: another plan served. `name`: the model's, if several are known."""
        cause: PlanCause = "plan" if replaces else "loss" if any(self.so_far.losses) else "start"
        self.so_far.begun[PLAN_CAUSES.index(cause)] += 1
        self._answers, self._no_plan = False, ""
        machines = ", ".join(one.host or "master" for one in assignments)
        self._parts = f"{name} on {machines}" if name else machines
        self._add("planned", detail=self._parts)

    def serves(self, epoch: int, now: float) -> None:
        self._answers = True
        if epoch == self._serving:
            return
        self._serving = epoch
        if self._interrupted is None:
            self._add("serving", detail=self._parts)
            return
        recoveries = deepcopy(self.so_far.recoveries)  # other threads read it
        took_s = now - self._interrupted
        recoveries.observe(took_s)
        self.so_far.recoveries, self._interrupted = recoveries, None
        self._add("recovered", detail=f"after {format_seconds(took_s)}")

    def lost(self, failure: Failure, members: Collection[str], now: float, *, breached: bool = False) -> None:
        """Notes an unplanned end of a plan. `members`: its workers. `breached`: a breach ended it."""
        if self._answers:
            self.so_far.losses[LOSS_CAUSES.index(_cause(failure, breached))] += 1
        else:
            self.so_far.failed += 1
        if self._interrupted is None and self._serving:
            self._interrupted = now
        self._answers = False
        self._add("interrupted", detail=str(failure.error))
        self._members = members
        self._say(failure.error)

    def failed(self, error: TpiedgeError, *, serves: bool) -> None:
        """Notes that a plan failed before its start. `serves`: another plan serves."""
        self.so_far.failed += 1
        self._add("plan failed", detail=str(error))
        if not serves:
            self._say(error)

    def no_plan(self, reason: str) -> None:
        if reason != self._no_plan:
            self._no_plan = reason
            self._add("no plan", detail=reason)

    def cleared(self, machine: Machine) -> None:
        self._add("cleared", _called(machine))

    def waiting(self, reason: str) -> str:
        """Returns what to tell clients while no plan is possible: which workers of the last plan are away, or else
        `reason`."""
        machines = {name: self._roster.get(name) for name in self._members or ()}
        gone = [
            name if one is None else f"{_called(one)} ({'stopped' if one.cause == STOPPED else one.cause})"
            for name, one in machines.items()
            if one is None or not one.present
        ]
        return f"waiting for {', '.join(gone)}" if self._loss and gone else reason

    def going_on(self, machines: Collection[str], *, new_model: bool = False) -> str:
        """Returns what to tell clients when the workers `machines` take over."""
        if not self._loss:
            return LOADING if new_model else PLANNED
        if self._members is None:
            return self._loss
        without = self._hosts(name for name in self._members if name not in machines)
        others = "without it" if without == [self._lost_host] else f"without {', '.join(without)}"
        return f"{self._loss}; going on {others if without else 'with the same machines'}"

    def undecided(self) -> str:
        return self._loss or PLANNED

    def _say(self, error: TpiedgeError) -> None:
        if not isinstance(error, PeerLost):
            self._lost_host, self._loss = "", str(error)
            return
        node = f"node {error.rank}{error.host and f' ({error.host})'}"
        self._lost_host = error.host if error.host and error.rank else node
        during = "" if error.waited_for == "the work" else f" during {error.waited_for}"
        self._loss = f"{self._lost_host} was lost{during}: {error.cause}"

    def _hosts(self, names: Iterable[str]) -> list[str]:
        machines = {name: self._roster.get(name) for name in names}
        return [name if one is None else _called(one) for name, one in machines.items()]

    def _compare(self, now: Machine, before: Machine | None) -> None:
        was_here, was_drained = before is not None and before.present, before is not None and before.drained
        stayed = before is not None and was_here and now.present and before.since == now.since
        if was_here and not stayed:
            self._add("left" if now.cause == STOPPED else "lost", _called(now), now.cause)
        if now.present and not stayed:
            self._add("joined", _called(now))
        if now.drained != was_drained:
            self._add("drained" if now.drained else "undrained", _called(now))

    def _add(self, kind: EventKind, machine: str = "", detail: str = "") -> None:
        event = ClusterEvent(self._wall(), kind, machine, sanitised_line(detail, 300))
        self.events = (event, *self.events[: EVENTS - 1])


def _called(machine: Machine) -> str:
    return machine.offer.host or machine.name


def _cause(failure: Failure, breached: bool) -> LossCause:
    if breached:
        return "protocol"
    if failure.intended:
        return "stopped"
    if failure.disputed:
        return "dispute"
    return "machine" if failure.machine_lost else "node" if failure.worker is not None else "other"
