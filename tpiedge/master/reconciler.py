"""Compares the cluster's state with the desired one: makes plans, and begins, switches and ends sessions for them.

Requests start while fewer run than may. When one session takes the place of another, by plan (`switching.py`) or after
a loss, those that run pause and go on in the next one. Where what served can serve no more, and nothing is about to,
requests wait for `recovery_grace_s`; they are refused, and those that wait fail, only then.
"""

import logging
import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import InitVar, dataclass, field
from typing import Final

from tpiedge.clock import Clock
from tpiedge.errors import PeerError, TpiedgeError
from tpiedge.master.assignments import Assignments, NoPlan
from tpiedge.master.counters import note_speeds
from tpiedge.master.foresight import Foresight, PlaceNodes
from tpiedge.master.history import History
from tpiedge.master.request_queue import RequestQueue
from tpiedge.master.roster import Roster
from tpiedge.master.selection import FETCHES, Selection
from tpiedge.master.session import Phase, Session
from tpiedge.master.session_manager import SessionManager
from tpiedge.master.status import ClusterStatus, snapshot
from tpiedge.master.switching import Switching
from tpiedge.master.workers import WorkerEvent, failed
from tpiedge.planner.capacity import SpareReason
from tpiedge.sanitise import sanitised_line
from tpiedge.units import counted, format_seconds
from tpiedge.wire.epochs import Spare
from tpiedge.wire.fields import SpareKind

RECOVERY_GRACE_S: Final = 120.0
#: Plans for losses are made once an epoch has served for so long.
_SETTLED_S: Final = 5.0
"""For how long requests wait for lost machines to return, unless the user says otherwise."""

_log = logging.getLogger(__name__)


class NotServing(PeerError):
    """The cluster cannot answer now; the message says what is missing."""


class CannotDrain(TpiedgeError):
    """The worker is away, or the others cannot serve without it. Nothing was changed."""


@dataclass(eq=False)
class Reconciler:
    """Takes the steps that are due in each `reconcile`. For the control thread; any thread may read `status`,
    `hopeless` and `not_serving`. Nothing here blocks but the start and end of rank 0's processes. `tell(message,
    machine)` sends without waiting. `plan` follows the memory of the master's own machine by itself."""

    _clock: Clock
    plan: InitVar[PlaceNodes]
    _roster: Roster
    _sessions: SessionManager
    _requests: RequestQueue
    _tell: Callable[[Spare, str], None]
    _grace_s: float
    _foresight: Foresight
    #: Whether nothing is served nor about to be, and nobody waits for it any more. For any thread, like `status`.
    hopeless: bool = False
    _stuck: float | None = None  # since when nothing is served nor about to be
    _served: bool = False  # whether a session was ready, of this master or of the one before
    #: Since when a worker is present, and the kind of reason that it was told.
    _told: dict[str, tuple[float, SpareKind]] = field(default_factory=dict)
    _done: list[Callable[[], None]] = field(
        default_factory=list
    )  # tells of drains once the status shows them
    _failures: int = 0  # attempts in a row that failed since requests could last be served
    _known: int | None = None  # the roster's generation of the last plan; None: another one is due
    _changed: float | None = None  # when it changed first since then
    _due: float = math.inf  # when a plan that was put off is due
    _begun: float = 0.0  # when the coming session began
    _planned: float = 0.0  # when the last plan was made
    _planless: bool = False  # whether none can be made
    _spare: Mapping[str, SpareReason] = field(default_factory=dict)
    _reason: str = "starting"
    _proven: int = 0  # the last epoch that has proven itself

    def __post_init__(self, plan: PlaceNodes) -> None:
        self.history = History(self._roster, time.time)
        self.selection = Selection(self._clock, plan, self._roster, self._sessions)
        self._switching = Switching(self._requests, self._roster, self._sessions.served)
        self._own_bytes = self._sessions.rank_zero.memory_bytes  # for which plans are made
        self.status = ClusterStatus(False, self._reason, (), 0, 0)

    def served_before(self) -> str:
        """A master before this one served, and requests of it wait: for machines, too. Returns what they are told."""
        self._served = True
        return self.history.started_again()

    def clear(self, name: str) -> None:
        """An administrator wants the worker tried again: nothing waits for its time to pass any longer."""
        now, machine = self._clock.now(), self._roster.get(name)
        if machine is not None and machine.standing.fault:
            self.history.cleared(machine)
            self._roster.step(name, WorkerEvent.CLEARED, now)
        self._known = None

    def drain(self, name: str, ordered: Future[str]) -> None:
        """Takes the worker out of plans, if the others can serve without it. The result is its name, or CannotDrain,
        once the status shows it; an order that was cancelled is void."""
        if not ordered.set_running_or_notify_cancel():
            return
        machine = self._roster.get(name)
        called = name if machine is None else machine.offer.host or name
        refusal = ""
        if machine is None or not machine.present:
            refusal = f"{called} is away: it has no part that could be taken from it"
        elif not machine.drained and isinstance(found := self.selection.find(without=name), NoPlan):
            refusal = f"without {called} the others cannot serve, so it keeps its part: {found.reason}"
        if refusal:
            self._done.append(lambda: ordered.set_exception(CannotDrain(refusal)))
            return
        self._roster.step(name, WorkerEvent.DRAINED, self._clock.now())
        self._done.append(lambda: ordered.set_result(name))

    def not_serving(self) -> NotServing:
        """The error of a request that cannot be served. For any thread."""
        return NotServing(f"the cluster serves nothing now: {self._reason}")

    def reconcile(self) -> None:
        sessions, now = self._sessions, self._clock.now()
        self.history.look()
        if sessions.serving is not None and sessions.serving.phase is Phase.ENDED:
            self._end_serving(sessions.serving)
        if sessions.coming is not None and sessions.coming.phase is Phase.ENDED:
            ended = sessions.coming
            error = ended.failure.error if ended.failure else None
            _log.debug("epoch %d was not prepared: %s", ended.number, type(error).__name__)
            _log.warning("the new plan failed: %s", error)
            self.history.failed(error, serves=sessions.serving is not None)
            self._reason = str(error)
            self._attribute(ended)
            sessions.abandon()
            self._retry(ended)
        if sessions.ready or not sessions.active:  # who comes back would end what begins
            self._roster.readmit(now)
        own_bytes = sessions.rank_zero.memory_bytes
        if own_bytes != self._own_bytes:
            self._own_bytes = own_bytes
            self._foresight.again()
            self._roster.changed_beside()
        self._look_for_slow(now)
        if sessions.ready:
            note_speeds(self._roster, sessions.ready.machines, sessions.ready.slowdowns, now)
        if now >= self._due:
            self._known = None
        if self._is_due(now):
            self._replan()
        self._switching.resume(sessions.serving, sessions.coming)
        if sessions.coming is not None:
            self._switch(sessions.coming, sessions.serving, now)
        self._dispatch()
        idle = sessions.coming is None and self._requests.idle  # plans for losses take the master's time
        if idle and sessions.serving is not None and sessions.serving.served_s >= _SETTLED_S:
            self._foresight.look(self.selection.plannable(), sessions.serving.machines)
        self.hopeless = self._stuck is not None and not (self._served and now - self._stuck < self._grace_s)
        if self.hopeless:
            self._requests.fail_all(self.not_serving())
        takes_over = sessions.serving or sessions.coming
        if takes_over is not None:
            why = self.history.going_on(takes_over.machines)
        elif self._planless and self._known == self._generation:
            why = self.history.waiting(self._reason)
        else:
            why = self.history.undecided()
        self._requests.explain(why, serving=sessions.ready is not None)
        self._publish()
        while self._done:
            self._done.pop(0)()

    def _is_due(self, now: float) -> bool:
        """Whether a plan is due. It waits until no worker has arrived for 0.3 s, so that those who arrive together
        get one plan, but at most 2 s from the first call after a change on."""
        if self._known == self._generation:
            return False
        if self._changed is None:
            self._changed = now
        newest = max((one.since for one in self._roster.present), default=0.0)
        return now - self._changed >= 2.0 or now >= newest + 0.3

    @property
    def _generation(self) -> int:
        """Changes whenever another plan may be made. Where there is one, it makes no difference who waits."""
        return self._roster.generation if self._planless else -self._roster.steady

    def _switch(self, coming: Session, serving: Session | None, now: float) -> None:
        """The coming session takes the place of the serving one where that is due, once that has left for it what it
        can use. Answers that pause for half a second are told so."""
        usable = {one.name: one for one in self.selection.steady()}
        if not self._switching.due(coming, serving, usable, self._own_bytes, now):
            return
        carried = None
        if serving is not None:
            if not self._switching.ready(serving, coming, now):
                if now - self._switching.since >= 0.5:
                    self._requests.pause(self.history.planned(), self._switching.since)
                return
            carried = self._switching.carried(serving)
            self._requests.interrupt(self.history.planned(), since=self._switching.since)
        self._reason = "loading the weights"
        self._sessions.switch(coming, carried)
        self.history.began(coming.assignments, replaces=serving is not None)
        self._notify()  # the plan was made while those it leaves out still had a part

    def _look_for_slow(self, now: float) -> None:
        """While nothing is served, finds the workers that are late, so that the others can serve without them: those
        that will fetch for more than ten seconds, as measured for two, or got no further for twenty. Once the others
        serve, plans contain the slow workers again, and they go on fetching."""
        coming = self._sessions.coming
        if self._sessions.ready and self.selection.slow:
            self.selection.slow = frozenset()
            self._known = None
        elif self._sessions.serving is None and coming is not None and now - self._begun >= 2.0:
            slow = self.selection.slow.union(coming.late(10.0, 20.0))
            if slow != self.selection.slow:
                self.selection.slow = slow
                self._known = None

    def _publish(self) -> None:
        self.status = snapshot(
            self._roster,
            self._sessions,
            self._requests,
            {**self._spare, **self.selection.excluded()},
            self._foresight.stocked,
            self._reason,
            self._clock.now(),
            self.history.so_far,
        )

    def _replan(self) -> None:
        self._due = math.inf
        found = self.selection.find()
        if isinstance(found, NoPlan) and self._sessions.rank_zero.insist():
            return  # it stays due, with more memory of the master's own machine
        self._planless, self._planned = isinstance(found, NoPlan), self._clock.now()
        self._known, self._changed = self._generation, None
        if isinstance(found, NoPlan):  # a serving session goes on
            self._is_stuck(self._sessions.serving is None)
            waiting = SpareReason("no plan", found.reason)
            present = {machine.name: waiting for machine in self._roster.present}
            for_good = {name: why for name, why in found.spare.items() if why.kind != FETCHES.kind}
            self._spare = {**self._departed(), **present, **for_good}
            self._reason = "; ".join([found.reason, *self.selection.absent(self._spare)])
            self.history.no_plan(found.reason)
            self._sessions.abandon()
        else:
            self._spare = {**self._departed(), **found.spare}
            self._apply(found)
        self._notify()

    def _notify(self) -> None:
        """Tells the workers that the plan has no part for why that is so, unless they have made another offer since:
        once, and again when the kind of reason changes."""
        reasons = {**self._spare, **self.selection.excluded()}
        busy = {name for session in self._sessions.active for name in session.machines}
        told, self._told = self._told, {}
        for one in self._roster.present:
            if one.offered <= self._planned and one.name in reasons and one.name not in busy:
                reason = reasons[one.name]
                self._told[one.name] = one.since, reason.kind
                if told.get(one.name) != self._told[one.name]:
                    self._tell(Spare(0, reason.kind, sanitised_line(reason.why)), one.name)

    def _departed(self) -> Mapping[str, SpareReason]:
        """The reasons of the machines that have left, for those who wonder why."""
        gone = {machine.name for machine in self._roster.machines if not machine.present}
        return {name: reason for name, reason in self._spare.items() if name in gone}

    def _apply(self, found: Assignments) -> None:
        """Makes sure that a session with these assignments serves or is coming. The plan waits where it needs a worker
        that fails again and again, or the master's own node does."""
        serving, coming, assignments = self._sessions.serving, self._sessions.coming, found.assignments
        if serving is not None and serving.assignments == assignments:
            self._sessions.abandon()
        elif coming is None or coming.assignments != assignments:
            now, due = self._clock.now(), self.selection.due(assignments)
            if due > now:
                self._due = due
                again = "; it is tried again after "
                if not self._sessions.ready and again not in self._reason:
                    self._reason += again + format_seconds(due - now)
                return
            self._reason, self._begun = f"preparing {counted(len(assignments), 'node')}", now
            self._is_stuck(self._has_failed)
            self._sessions.begin(found)

    @property
    def _has_failed(self) -> bool:
        """Whether so many attempts to serve failed that requests wait as long as they wait for machines."""
        return self._failures >= 4 and not self._sessions.ready

    def _is_stuck(self, stuck: bool) -> None:
        if not stuck:
            self._stuck = None
        elif self._stuck is None:
            self._stuck = self._clock.now()

    def _dispatch(self) -> None:
        serving, coming = self._sessions.ready, self._sessions.coming
        if serving is None or serving.halting:
            return
        self.history.serves(serving.number, self._clock.now())
        if serving.proven and self._proven != serving.number:
            self._proven = serving.number
            self._roster.proved(serving.machines)
        self._stuck, self._served, self._failures, self._reason = None, True, 0, ""
        if coming is not None and coming.phase is Phase.PREPARED:
            self._reason = "a faster plan waits until it is worth the pause"
        while self._requests.prepare(serving.compile):
            pass
        while self._requests.start(serving.ask):
            pass

    def _end_serving(self, session: Session) -> None:
        failure = session.failure
        error = failure.error if failure else PeerError("the cluster was stopped")
        _log.debug("epoch %d ended: %s", session.number, type(error).__name__)
        _log.warning("stopped serving: %s", error)
        self._attribute(session)  # first: whoever has no part any more fails in none
        self._sessions.end_serving()
        breached = bool(session.breaches)
        self.history.lost(error, failure, session.machines, self._clock.now(), breached=breached)
        self._reason = str(error)
        self._publish()  # first: a client that sees its answer pause must not read a status that says ready
        intended, died = failure is not None and failure.intended, failure is not None and failure.died
        self._requests.interrupt(self.history.undecided(), None if intended else error, died=died)
        self._retry(session)

    def _attribute(self, session: Session) -> None:
        """Records whose failure ended a session: a worker's that broke the protocol or failed by itself, or else the
        master's own node's. A lost machine was noted when it was lost."""
        now, failure = self._clock.now(), session.failure
        if failure is not None and failure.disputed:
            _log.warning("all-reduces go by the star for a while: two workers contradict each other")
            self._sessions.distrust(failure.disputed)
        for name, cause in session.breaches.items():
            _log.warning("%s broke the protocol: %s", name, cause)
            self._roster.step(name, WorkerEvent.BREACHED, now, "breach", cause)
        if failure is None or failure.machine_lost or session.breaches:
            return
        if failure.unfit is not None:
            event = WorkerEvent.UNPREPARED if session.epoch is None else WorkerEvent.FAILED
            self._roster.step(failure.unfit, event, now, "unfit", str(failure.error))
        elif failure.crashed is not None:
            self._roster.step(failure.crashed, WorkerEvent.FAILED, now, "died", str(failure.error))
        else:
            self._roster.own = failed(self._roster.own, now, "died", str(failure.error))

    def _retry(self, session: Session) -> None:
        """Plans again: at once, but for what `_apply` waits for."""
        self._known = None
        self._planless = False
        if session.failure is None or not session.failure.machine_lost:
            self._failures += not self._sessions.ready
        if self._has_failed:
            self._is_stuck(True)
