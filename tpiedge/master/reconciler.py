"""Decides when a new plan is made, and begins, switches and ends sessions.

When a session replaces another, requests pause and go on in the new session. Without a session, requests wait for the
recovery grace, then fail."""

import logging
import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final

from tpiedge.clock import Clock
from tpiedge.errors import PeerError, TpiedgeError
from tpiedge.master.assignments import Assignments, without_disk
from tpiedge.master.blame import Failure
from tpiedge.master.history import LOADING, History
from tpiedge.master.loss_plans import LossPlans
from tpiedge.master.request_queue import RequestQueue
from tpiedge.master.roster import Roster
from tpiedge.master.selection import FETCHES, Selection
from tpiedge.master.session import Phase, Session
from tpiedge.master.session_manager import SessionManager
from tpiedge.master.status import ClusterStatus, node_statuses
from tpiedge.master.switching import Switching
from tpiedge.master.turns import Turns
from tpiedge.master.workers import WorkerEvent, failed
from tpiedge.planner.capacity import SpareReason
from tpiedge.sanitise import sanitised_line
from tpiedge.units import counted, format_seconds
from tpiedge.wire.epochs import Spare
from tpiedge.wire.fields import SpareKind

RECOVERY_GRACE_S: Final = 120.0
_SETTLED_S: Final = 5.0  # an epoch serves this long before plans for losses are made

_log = logging.getLogger(__name__)


class NotServing(PeerError):
    """The cluster cannot answer now; the message says what is missing."""


class CannotDrain(TpiedgeError):
    """The worker is away, or is needed to serve. Nothing was changed."""


@dataclass(eq=False)
class Reconciler:
    """Belongs to the control thread. Any thread may read `status`, `hopeless` and `not_serving`. Only the start and the
    end of rank 0 block. `_tell(message, machine)` does not wait."""

    _clock: Clock
    turns: Turns
    _roster: Roster
    _sessions: SessionManager
    _requests: RequestQueue
    _tell: Callable[[Spare, str], None]
    _grace_s: float
    _loss_plans: LossPlans
    hopeless: bool = False  # no session can serve, and requests wait no longer
    _stuck: float | None = None  # since when no session serves or is about to
    _served: bool = False  # whether a session of this or an earlier master was ready
    _resumed: float = -math.inf  # when an earlier master's requests were resumed
    _told: dict[str, tuple[float, SpareKind]] = field(default_factory=dict)  # `since` and reason, by machine
    _failures: int = 0  # failed attempts in a row since requests could last be served
    _known: int | None = None  # the roster's generation of the last plan; None: another plan is due
    _changed: float | None = None  # when the roster changed first since then
    _due: float = math.inf  # when a plan that was put off is due
    _planless: bool = False  # whether no plan can be made
    _spare: Mapping[str, SpareReason] = field(default_factory=dict)
    _reason: str = "starting"
    _proven: int = 0  # the last epoch that has proven itself

    def __post_init__(self) -> None:
        self.history = History(self._roster, time.time)
        self.selection = Selection(self._clock, self.turns, self._roster, self._sessions)
        self._switching = Switching(self._requests, self._roster, self.turns, self.selection)
        self._own_bytes = self._sessions.rank_zero.memory_bytes  # the master's memory that plans count with
        self.status = ClusterStatus(False, self._reason, (), 0, 0)

    def served_before(self) -> str:
        """Lets an earlier master's requests wait. Returns the words for their readers."""
        self._served, self._resumed = True, self._clock.now()
        return self.history.started_again()

    def clear(self, name: str) -> None:
        machine = self._roster.get(name)
        if machine is not None and machine.standing.fault:
            self.history.cleared(machine)
            self._roster.step(name, WorkerEvent.CLEARED, self._clock.now())
        self._known = None

    def drain(self, name: str, ordered: Future[str]) -> None:
        """Takes the worker out of plans. `ordered` gets the worker's name, or CannotDrain."""
        if not ordered.set_running_or_notify_cancel():
            return
        machine = self._roster.get(name)
        called = name if machine is None else machine.offer.host or name
        refusal = ""
        if machine is None or not machine.present:
            refusal = f"{called} is away and has no part in the plan"
        elif not machine.drained and (reason := self.selection.find(without=name).reason):
            refusal = f"cannot drain {called}: the others cannot serve without it: {reason}"
        if refusal:
            ordered.set_exception(CannotDrain(refusal))
            return
        self._roster.step(name, WorkerEvent.DRAINED, self._clock.now())
        self.publish()
        ordered.set_result(name)

    def not_serving(self) -> NotServing:
        return NotServing(f"the cluster serves nothing now: {self._reason}")

    def reconcile(self) -> None:
        sessions, now = self._sessions, self._clock.now()
        self.history.look()
        for session in sessions.active:
            if session.failure is not None:
                self._end(session, session.failure)
        if sessions.ready or not sessions.active:  # a worker's return would end a session that begins
            self._roster.readmit(now)
        own_bytes = sessions.rank_zero.memory_bytes
        if own_bytes != self._own_bytes:
            self._own_bytes = own_bytes
            self._roster.generation += 1
        self._look_for_slow()
        if self.turns.choose(sessions.ready, idle=self._requests.idle):
            self._known, self._planless, self._failures, self._stuck = None, False, 0, None
        if now >= self._due:
            self._known = None
        if self.turns.asleep or self.turns.sleeps(sessions.ready):
            self._rest()
        elif self._is_due(now):
            self._replan()
        self._switching.resume(sessions.serving, sessions.coming)
        if sessions.coming is not None:
            self._switch(sessions.coming, sessions.serving, now)
        self._dispatch()
        idle = sessions.coming is None and self._requests.idle  # plans for losses take the master's time
        if idle and sessions.serving is not None and sessions.serving.served_s >= _SETTLED_S:
            self._loss_plans.serve(self.turns.wanted.plan, self.turns.wanted.pack)
            self._loss_plans.plan_next(self.selection.plannable(), sessions.serving.machines, own_bytes)
        stuck = self._failures >= 4 or (self._planless and sessions.serving is None)
        if sessions.ready or (sessions.active and not stuck):
            self._stuck = None
        elif stuck and self._stuck is None:
            self._stuck = now
        self.hopeless = self._stuck is not None and not (self._served and now - self._stuck < self._grace_s)
        if self.hopeless:
            self._requests.fail_all(self.not_serving(), self.turns.wanted.pack)
        takes_over = sessions.serving or sessions.coming
        if self.turns.waking and not self._planless:
            why = LOADING
        elif takes_over is not None:
            new_model = takes_over.served.pack_id == self.turns.next_pack
            why = self.history.going_on(takes_over.machines, new_model=new_model)
        elif self._planless and self._known == self._roster.generation:
            why = self.history.waiting(self._reason)
        else:
            why = self.history.undecided()
        first = sessions.serving.served if sessions.serving is not None else self.turns.wanted.served
        other = f"{first.name or 'another model'} is served first"
        self._requests.explain(why, serving=sessions.ready is not None, pack=first.pack_id, other=other)
        self.publish()

    def _is_due(self, now: float) -> bool:
        """Whether a roster change is 2 s old, or no machine came for 0.3 s."""
        if self._known == self._roster.generation:
            return False
        if self._changed is None:
            self._changed = now
        newest = max((one.since for one in self._roster.present), default=0.0)
        return now - self._changed >= 2.0 or now >= newest + 0.3

    def _switch(self, coming: Session, serving: Session | None, now: float) -> None:
        if not self._switching.due(coming, serving, self._own_bytes, now):
            return
        snapshot = None
        if serving is not None:
            if not self._switching.ready(serving, coming, now):
                if now - self._switching.since >= 0.5:
                    self._requests.pause(self.history.planned(), self._switching.since)
                return
            snapshot = self._switching.snapshot(serving)
            travels = snapshot is not None and self._switching.travels
            self._requests.interrupt(self.history.planned(), since=self._switching.since, travels=travels)
        self._reason = LOADING
        self._sessions.switch(coming, snapshot)
        name = coming.served.name if len(self.turns.known) > 1 else ""
        self.history.began(coming.assignments, replaces=serving is not None, name=name)
        if self._known == self._roster.generation:
            self._notify()  # workers that the plan leaves out had a part until now

    def _rest(self) -> None:
        """Frees all memory until a request waits."""
        if self._sessions.active:
            self._sessions.abandon()
            self._sessions.end_serving()
            self._reason = "the next request loads the weights into memory"
            self._requests.interrupt(self._reason)  # grammars that are still compiled end with the session
            self._planless, self._failures, self._stuck = False, 0, None
            self._spare = {one.name: SpareReason("no plan", self._reason) for one in self._roster.present}
            self._notify()

    def _look_for_slow(self) -> None:
        """Leaves overdue workers out of plans until the others serve."""
        coming, slow = self._sessions.coming, self.selection.slow
        if self._sessions.ready:
            slow = frozenset()
        elif self._sessions.serving is None and coming is not None:
            slow = slow.union(coming.overdue())
        if slow != self.selection.slow:
            self.selection.slow, self._known = slow, None

    def publish(self) -> None:
        serving, ready = self._sessions.serving, self._sessions.ready
        routing = ready.routing if ready is not None else None
        spare = {**self._spare, **self.selection.excluded()}
        prefetched, now = self._loss_plans.reports, self._clock.now()
        int8 = self.turns.wanted.served.int8
        model = self.turns.wanted.served if serving is None else serving.served
        parts = () if ready is None else ready.assignments
        self.status = ClusterStatus(
            ready=ready is not None,
            reason=self._reason,
            nodes=node_statuses(self._roster, self._sessions, spare, prefetched, now, int8=int8),
            queued=self._requests.waiting,
            running=self._requests.running,
            epoch=serving.number if serving is not None else 0,
            totals=self._requests.totals,
            collective=routing.collective if routing else "",
            bulk_collective=routing.bulk_collective if routing else "",
            collective_why=routing.why if routing else "",
            links=routing.links if routing else (),
            split_shows=ready.served.split_shows if ready is not None else "",
            model=model.name if len(self.turns.known) > 1 else "",
            pack=model.pack_id,
            next_pack=self.turns.next_pack,
            asleep=self.turns.asleep,
            kept_s=self.turns.kept_s(serving),
            history=self.history.so_far,
            keeps_context=bool(parts) and all(one.keeps for one in parts),
            not_kept=without_disk(parts, "--keep-context"),
            not_parked=without_disk(parts, "--kv-disk"),
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
        if found.reason and self._returns(found.reason):
            self._planless, self._known = False, None  # a plan for the previous model is due
        elif found.reason:  # a serving session goes on
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

    def _returns(self, reason: str) -> bool:
        if self.selection.wanted is not None:
            return False
        wanted, missing = self.turns.wanted, [one.heard for one in self._roster.machines if not one.present]
        lately = self._clock.now() - max([self._resumed, *missing]) < self._grace_s
        again = lately and self._requests.has(wanted.pack)
        refused = NotServing(f"{wanted.served.name} cannot be served: {reason}")
        returns = self.turns.failed(wanted.pack, refused, again=again)
        if returns and not again:
            self.history.failed(refused, serves=True)
        return returns

    def _notify(self) -> None:
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
        serving, coming, assignments = self._sessions.serving, self._sessions.coming, found.assignments
        served = self.turns.wanted.served
        if serving is not None and (serving.served, serving.assignments) == (served, assignments):
            self._sessions.abandon()
        elif coming is None or (coming.served, coming.assignments) != (served, assignments):
            now, due = self._clock.now(), self.selection.due(assignments)
            if due > now:
                self._due = due
                again = "; it is tried again after "
                if not self._sessions.ready and again not in self._reason:
                    self._reason += again + format_seconds(due - now)
                return
            self._reason = f"preparing {counted(len(assignments), 'node')}"
            self._sessions.prepare_session(found, served)

    def _dispatch(self) -> None:
        serving, coming = self._sessions.ready, self._sessions.coming
        if serving is None or serving.halting:
            return
        self.history.serves(serving.number, self._clock.now())
        if serving.proven and self._proven != serving.number:
            self._proven = serving.number
            self._roster.proved(serving.machines)
        self._served, self._failures, self._reason = True, 0, ""
        self.turns.serves(serving)
        pack, after = serving.served.pack_id, self.turns.next_pack
        if after not in ("", pack):
            self._reason = f"{self.turns.known[after].served.name} is next"
        elif coming is not None and coming.phase is Phase.PREPARED:
            self._reason = "a faster plan waits until it makes up for the pause"
        while self._requests.prepare(serving.compile, pack):
            pass
        while self._requests.start(serving.generate, pack):
            pass

    def _end(self, session: Session, failure: Failure) -> None:
        error, served = failure.error, session is self._sessions.serving
        _log.debug("epoch %d ended: %s", session.number, type(error).__name__)
        _log.warning("%s: %s", "stopped serving" if served else "the new plan failed", error)
        self._attribute(session, failure)  # first: a worker without a part cannot fail to prepare it
        self._reason = str(error)
        if served:
            self._sessions.end_serving()
            breached = bool(session.breaches)
            self.history.lost(failure, session.machines, self._clock.now(), breached=breached)
            self.publish()  # first: a client that sees its answer pause must not read a status that says ready
            lost = None if failure.intended else error
            self._requests.interrupt(self.history.undecided(), lost, died=failure.died)
        else:
            self.history.failed(error, serves=self._sessions.serving is not None)
            self._sessions.abandon()
        if not failure.machine_lost:
            self.turns.failed(session.served.pack_id, error)
        self._known, self._planless = None, False
        if not failure.machine_lost:
            self._failures += not self._sessions.ready

    def _attribute(self, session: Session, failure: Failure) -> None:
        now = self._clock.now()
        if failure.disputed:
            _log.warning("all-reduces go by the star for a while: two workers contradict each other")
            self._sessions.distrust(failure.disputed)
        for name, cause in session.breaches.items():
            _log.warning("%s broke the protocol: %s", name, cause)
            self._roster.step(name, WorkerEvent.BREACHED, now, "breach", cause)
        if failure.machine_lost or session.breaches:
            return
        if failure.worker is None:
            self._roster.own = failed(self._roster.own, now, "died", str(failure.error))
        else:
            event = WorkerEvent.UNPREPARED if session.epoch is None else WorkerEvent.FAILED
            self._roster.step(failure.worker, event, now, failure.fault, str(failure.error))
