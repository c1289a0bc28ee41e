"""What became of plans and machines: counted, listed as the last events, and said to those whose answers pause. Without
sockets, threads or clock.

What became of machines is found by comparing the roster with the one before, whenever that has changed. Those who wait
are told who was lost, who is waited for, and without whom their answers go on; machines are called what their users
call them.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Final, Literal, TypeAlias, get_args

from tpiedge.errors import PeerLost, TpiedgeError
from tpiedge.master.assignments import Assignment
from tpiedge.master.blame import Failure
from tpiedge.master.request_times import Histogram
from tpiedge.master.roster import STOPPED, Machine, Roster
from tpiedge.sanitise import sanitised_line
from tpiedge.units import format_seconds

PLANNED: Final = "a new plan begins"
"""What is told of a pause for a plan that takes the place of one that serves."""
EVENTS: Final = 100

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


LossCause: TypeAlias = Literal["stopped", "machine", "protocol", "dispute", "node", "other"]
"""What ended a plan that served: a worker that was stopped or revoked, a machine that was lost, one that broke the
protocol, two that contradict each other, a worker's node that failed by itself, or anything else, as the end of the
master's own node."""

PlanCause: TypeAlias = Literal["start", "loss", "plan"]
"""Why a plan began: the first one, in place of one that was lost, or of one that served."""

LOSS_CAUSES: Final[tuple[LossCause, ...]] = get_args(LossCause)
PLAN_CAUSES: Final[tuple[PlanCause, ...]] = get_args(PlanCause)


@dataclass(frozen=True, slots=True)
class PlanHistory:
    """Since the master started. `begun`: plans by cause, in the order of PLAN_CAUSES; `failed`: those that never
    served; `losses`: ends that nobody planned of those that did, in the order of LOSS_CAUSES; `recoveries`: seconds
    from such an end until requests were answered again."""

    begun: tuple[int, ...] = (0,) * len(PLAN_CAUSES)
    failed: int = 0
    losses: tuple[int, ...] = (0,) * len(LOSS_CAUSES)
    recoveries: Histogram = field(default_factory=Histogram)


@dataclass(eq=False)
class History:
    """One thread tells what happens; any thread may read `events` and `so_far`. Times are seconds on the caller's
    clock; `wall` gives seconds since 1970."""

    _roster: Roster
    _wall: Callable[[], float]
    #: The last events, the latest first, and what is counted of plans.
    events: tuple[ClusterEvent, ...] = ()
    so_far: PlanHistory = field(default_factory=PlanHistory)
    _generation: int = -1
    _seen: Mapping[str, Machine] = field(default_factory=dict)
    _serving: int = 0  # the latest epoch that was said to serve
    _answers: bool = False  # whether the latest plan has served
    _lost: float | None = None  # when one that served was lost, until another one serves
    #: When a plan ended that nobody had ended, whether it had served or not.
    _interrupted: float | None = None
    _no_plan: str = ""
    #: What ended the last session, in words and by the machine's name, and its workers; None: those of the master
    #: before, whom nobody knows.
    _loss: str = ""
    _lost_host: str = ""
    _members: Collection[str] | None = ()

    def look(self) -> None:
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
        """This master goes on with answers of the one before. Returns what is told of it."""
        self._members, self._loss = None, "the master was started again"
        return self._loss

    def planned(self) -> str:
        """A new plan takes the place of the one that serves. Returns what is told of it."""
        self._loss = ""
        return PLANNED

    def began(self, assignments: Sequence[Assignment], *, replaces: bool) -> None:
        """The nodes of a plan start; `replaces`: in the place of those of another one."""
        cause: PlanCause = "plan" if replaces else "loss" if any(self.so_far.losses) else "start"
        begun = tuple(
            count + (one == cause) for one, count in zip(PLAN_CAUSES, self.so_far.begun, strict=True)
        )
        self.so_far = replace(self.so_far, begun=begun)
        self._answers, self._no_plan = False, ""
        self._add("planned", detail=", ".join(one.host or "master" for one in assignments))

    def serves(self, epoch: int, now: float) -> None:
        """Requests are answered in the epoch; may be said again and again."""
        self._answers = True
        if epoch == self._serving:
            return
        self._serving = epoch
        if self._lost is not None:
            recoveries = deepcopy(self.so_far.recoveries)  # other threads read it
            recoveries.observe(now - self._lost)
            self.so_far = replace(self.so_far, recoveries=recoveries)
        if self._interrupted is None:
            self._add("serving")
        else:
            self._add("recovered", detail=f"after {format_seconds(now - self._interrupted)}")
        self._lost = self._interrupted = None

    def lost(
        self,
        error: TpiedgeError,
        failure: Failure | None,
        members: Collection[str],
        now: float,
        *,
        breached: bool = False,
    ) -> None:
        """The nodes of the latest plan, of the workers `members`, ended, and nobody had planned it. `breached`: one of
        them broke the protocol."""
        if self._answers:
            cause, counts = _cause(failure, breached), self.so_far.losses
            losses = tuple(count + (one == cause) for one, count in zip(LOSS_CAUSES, counts, strict=True))
            self.so_far, self._lost = replace(self.so_far, losses=losses), now
        else:
            self.so_far = replace(self.so_far, failed=self.so_far.failed + 1)
        if self._interrupted is None and self._serving:
            self._interrupted = now
        self._answers = False
        self._add("interrupted", detail=str(error))
        self._members = members
        self._say(error)

    def failed(self, error: TpiedgeError | None, *, serves: bool) -> None:
        """A plan came to nothing before its nodes started. `serves`: another one serves meanwhile."""
        self.so_far = replace(self.so_far, failed=self.so_far.failed + 1)
        self._add("plan failed", detail=str(error))
        if error is not None and not serves:
            self._say(error)

    def no_plan(self, reason: str) -> None:
        """None can be made; may be said again and again."""
        if reason != self._no_plan:
            self._no_plan = reason
            self._add("no plan", detail=reason)

    def cleared(self, machine: Machine) -> None:
        """Its user wants it tried again, though it would wait for longer."""
        self._add("cleared", _called(machine))

    def waiting(self, reason: str) -> str:
        machines = {name: self._roster.get(name) for name in self._members or ()}
        gone = self._hosts(name for name, one in machines.items() if one is None or not one.present)
        return f"waiting for {', '.join(gone)}: {reason}" if self._loss and gone else reason

    def going_on(self, machines: Collection[str]) -> str:
        """What is told where these workers take over, or do so already."""
        if not self._loss:
            return PLANNED
        if self._members is None:
            return self._loss
        without = self._hosts(name for name in self._members if name not in machines)
        if not without:
            return f"{self._loss}; going on with the same machines"
        return (
            f"{self._loss}; going on without {'it' if without == [self._lost_host] else ', '.join(without)}"
        )

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


def _cause(failure: Failure | None, breached: bool) -> LossCause:
    if breached:
        return "protocol"
    if failure is None:
        return "other"
    if failure.intended:
        return "stopped"
    if failure.disputed:
        return "dispute"
    if failure.machine_lost:
        return "machine"
    return "node" if failure.crashed is not None else "other"
