"""Compares the cluster's state with the desired one: makes plans, and begins, switches and ends sessions for them.

Requests start while fewer run than may. When one session takes the place of another, by plan (`switching.py`) or after
a loss, running requests pause and go on in the next one. If nothing serves and nothing is about to, requests wait for
`recovery_grace_s`; then they fail, and new ones are refused.
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
from tpiedge.master.assignments import Assignments
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
"""For how long requests wait for lost machines to return, unless the user says otherwise."""
#: Plans for losses are made once an epoch has served for so long.
_SETTLED_S: Final = 5.0

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
    #: Nothing is served nor about to be, and requests wait no longer. For any thread, like `status`.
    hopeless: bool = False
    _stuck: float | None = None  # since when nothing is served nor about to be
    _served: bool = False  # whether a session was ready, of this master or of the one before
    #: By machine, since when it is present and the kind of reason that it was told.
    _told: dict[str, tuple[float, SpareKind]] = field(default_factory=dict)
    #: Calls that end the orders of drains once the status shows them.
    _done: list[Callable[[], None]] = field(default_factory=list)
    _failures: int = 0  # attempts in a row that failed since requests could last be served
    _known: int | None = None  # the roster's generation of the last plan; None: another one is due
    _changed: float | None = None  # when it changed first since then
    _due: float = math.inf  # when a plan that was put off is due
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
        """Has requests of an earlier master wait for machines, too. Returns what they are told."""
        self._served = True
        return self.history.started_again()

    def clear(self, name: str) -> None:
        """Ends the worker's wait, as an administrator wants."""
        now, machine = self._clock.now(), self._roster.get(name)
        if machine is not None and machine.standing.fault:
            self.history.cleared(machine)
            self._roster.step(name, WorkerEvent.CLEARED, now)
        self._known = None

    def drain(self, name: str, ordered: Future[str]) -> None:
        """Takes the worker out of plans if the others can serve. The result is its name, or CannotDrain, once the
        status shows it."""
        if not ordered.set_running_or_notify_cancel():
            return
        machine = self._roster.get(name)
        called = name if machine is None else machine.offer.host or name
        refusal = ""
        if machine is None or not machine.present:
            refusal = f"{called} is away: it has no part that could be taken from it"
        elif not machine.drained and (reason := self.selection.find(without=name).reason):
            refusal = f"without {called} the others cannot serve, so it keeps its part: {reason}"
        if refusal:
            self._done.append(lambda: ordered.set_exception(CannotDrain(refusal)))
            return
        self._roster.step(name, WorkerEvent.DRAINED, self._clock.now())
        self._done.append(lambda: ordered.set_result(name))

    def not_serving(self) -> NotServing:
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
            self._roster.changed_beside()
        self._look_for_slow()
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
            self._foresight.look(self.selection.plannable(), sessions.serving.machines, own_bytes)
        stuck = self._failures >= 4 or (self._planless and sessions.serving is None)
        if sessions.ready or (sessions.active and not stuck):
            self._stuck = None
        elif stuck and self._stuck is None:
            self._stuck = now
        self.hopeless = self._stuck is not None and not (self._served and now - self._stuck < self._grace_s)
        if self.hopeless:
            self._requests.fail_all(self.not_serving())
        takes_over = sessions.serving or sessions.coming
        if takes_over is not None:
            why = self.history.going_on(takes_over.machines)
        elif self._planless and self._known == self._roster.generation:
            why = self.history.waiting(self._reason)
        else:
            why = self.history.undecided()
        self._requests.explain(why, serving=sessions.ready is not None)
        self._publish()
        while self._done:
            self._done.pop(0)()

    def _is_due(self, now: float) -> bool:
        """Whether a plan is due: once no worker has arrived for 0.3 s, so that workers that arrive together get one
        plan, but 2 s after a change at the latest."""
        if self._known == self._roster.generation:
            return False
        if self._changed is None:
            self._changed = now
        newest = max((one.since for one in self._roster.present), default=0.0)
        return now - self._changed >= 2.0 or now >= newest + 0.3

    def _switch(self, coming: Session, serving: Session | None, now: float) -> None:
        """Puts the coming session in the place of the serving one if that is due, once rank 0 has halted. Answers that
        pause for half a second are told so."""
        usable = {one.name: one for one in self.selection.awake(self.selection.serving_on())}
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
        if self._known == self._roster.generation:
            self._notify()  # the plan was made while those it leaves out still had a part

    def _look_for_slow(self) -> None:
        """While nothing is served, finds the workers that are late, so that the others serve without them. Once they
        do, plans contain the late workers again, which go on fetching."""
        coming, slow = self._sessions.coming, self.selection.slow
        if self._sessions.ready:
            slow = frozenset()
        elif self._sessions.serving is None and coming is not None:
            slow = slow.union(coming.late())
        if slow != self.selection.slow:
            self.selection.slow, self._known = slow, None

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
        if found.reason and self._sessions.rank_zero.insist():
            return  # it stays due, with more memory of the master's own machine
        self._planless, self._known, self._changed = bool(found.reason), self._roster.generation, None
        present = {machine.name for machine in self._roster.present}
        gone = {machine.name for machine in self._roster.machines if not machine.present}
        departed = {name: reason for name, reason in self._spare.items() if name in gone}
        if found.reason:  # a serving session goes on
            waiting = dict.fromkeys(present, SpareReason("no plan", found.reason))
            for_good = {name: why for name, why in found.spare.items() if why.kind != FETCHES.kind}
            self._spare = {**departed, **waiting, **for_good}
            self._reason = "; ".join([found.reason, *self.selection.absent(self._spare)])
            self.history.no_plan(found.reason)
            self._sessions.abandon()
        else:
            self._spare = {**departed, **found.spare}
            self._apply(found)
        self._notify()

    def _notify(self) -> None:
        """Tells workers without a part why that is so, once, and again when the kind of reason changes."""
        reasons = {**self._spare, **self.selection.excluded()}
        busy = {name for session in self._sessions.active for name in session.machines}
        told, self._told = self._told, {}
        for one in self._roster.present:
            if one.name in reasons and one.name not in busy:
                reason = reasons[one.name]
                self._told[one.name] = one.since, reason.kind
                if told.get(one.name) != self._told[one.name]:
                    self._tell(Spare(0, reason.kind, sanitised_line(reason.why)), one.name)

    def _apply(self, found: Assignments) -> None:
        """Makes sure that a session with these assignments serves or is coming; later if a node that it needs fails
        again and again."""
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
            self._reason = f"preparing {counted(len(assignments), 'node')}"
            self._sessions.begin(found)

    def _dispatch(self) -> None:
        serving, coming = self._sessions.ready, self._sessions.coming
        if serving is None or serving.halting:
            return
        self.history.serves(serving.number, self._clock.now())
        if serving.proven and self._proven != serving.number:
            self._proven = serving.number
            self._roster.proved(serving.machines)
        self._served, self._failures, self._reason = True, 0, ""
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
        """Notes whose failure ended a session: a worker's that broke the protocol or failed by itself, or else the own
        node's. A lost machine was noted before."""
        now, failure = self._clock.now(), session.failure
        if failure is not None and failure.disputed:
            _log.warning("all-reduces go by the star for a while: two workers contradict each other")
            self._sessions.distrust(failure.disputed)
        for name, cause in session.breaches.items():
            _log.warning("%s broke the protocol: %s", name, cause)
            self._roster.step(name, WorkerEvent.BREACHED, now, "breach", cause)
        if failure is None or failure.machine_lost or session.breaches:
            return
        if failure.worker is None:
            self._roster.own = failed(self._roster.own, now, "died", str(failure.error))
        else:
            event = WorkerEvent.UNPREPARED if session.epoch is None else WorkerEvent.FAILED
            self._roster.step(failure.worker, event, now, failure.fault, str(failure.error))

    def _retry(self, session: Session) -> None:
        """Has a plan made anew at once."""
        self._known = None
        self._planless = False
        if session.failure is None or not session.failure.machine_lost:
            self._failures += not self._sessions.ready
