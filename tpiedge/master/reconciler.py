"""Compares the cluster's state with the desired one: makes plans, and begins, switches and ends sessions for them.

Requests start while fewer run than may. When one session takes the place of another, by plan (`switching.py`) or after
a loss, those that run pause and go on in the next one. Where what served can serve no more, and nothing is about to,
requests wait for `recovery_grace_s`; they are refused, and those that wait fail, only then.
"""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Final

from tpiedge.clock import Clock
from tpiedge.errors import PeerError, TpiedgeError
from tpiedge.launch.slot import SETTLED_S
from tpiedge.master.absent import absent_words
from tpiedge.master.assignments import Assignments, NoPlan
from tpiedge.master.chronicle import Chronicle, ClusterEvent
from tpiedge.master.debounce import Debounce
from tpiedge.master.drains import Drains
from tpiedge.master.foresight import Foresight
from tpiedge.master.handover import Handover
from tpiedge.master.history import History
from tpiedge.master.notices import Notices
from tpiedge.master.pauses import Pauses
from tpiedge.master.planning import PlaceNodes
from tpiedge.master.quarantine import Reputation
from tpiedge.master.request_queue import RequestQueue
from tpiedge.master.retries import Retries
from tpiedge.master.roster import Machine, Roster
from tpiedge.master.selection import FETCHES, Selection
from tpiedge.master.session import Phase, Session
from tpiedge.master.session_manager import SessionManager
from tpiedge.master.snapshot import snapshot
from tpiedge.master.speeds import note_speeds
from tpiedge.master.status import ClusterStatus
from tpiedge.master.switching import Switching
from tpiedge.planner.reasons import SpareReason
from tpiedge.sanitise import sanitised_line
from tpiedge.units import counted, format_seconds
from tpiedge.wire.epochs import Spare

RECOVERY_GRACE_S: Final = 120.0
"""For how long requests wait for lost machines to return, unless the user says otherwise."""

_log = logging.getLogger(__name__)

#: While nothing is served, a worker that will fetch for longer than this is not waited for, nor one that gets no
#: further for _SILENCE_S. Its rate is measured for _MEASURED_AFTER_S first.
_PATIENCE_S = 10.0
_MEASURED_AFTER_S = 2.0
_SILENCE_S = 20.0

#: Answers that pause for longer are told so.
_TOLD_S = 0.5


class NotServing(PeerError):
    """The cluster cannot answer now; the message says what is missing."""


class Reconciler:
    """Takes the steps that are due in each `reconcile`. For the control thread; any thread may read `status`,
    `hopeless` and `not_serving`. Nothing here blocks but the start and end of rank 0's processes.
    """

    def __init__(
        self,
        clock: Clock,
        plan: PlaceNodes,
        roster: Roster,
        reputation: Reputation,
        drains: Drains,
        sessions: SessionManager,
        requests: RequestQueue,
        tell: Callable[[Spare, str], None],
        recovery_grace_s: float,
        foresight: Foresight,
        follow_memory: Callable[[int], None],
    ) -> None:
        """`tell(message, machine)` sends without waiting. `follow_memory` has `plan` made for so much memory of the
        master's own machine, in bytes."""
        #: Whether nothing is served nor about to be, and nobody waits for it any more. For any thread, like `status`.
        self.hopeless = False
        self._grace_s = recovery_grace_s
        self._stuck: float | None = None  # since when nothing is served nor about to be
        self._served = False  # whether a session was ready, of this master or of the one before
        self._handover = Handover(requests, roster, sessions.served)
        self._switching = Switching(requests, self._handover)
        self._clock = clock
        self._roster = roster
        self._reputation = reputation
        self._drains = drains
        self._sessions = sessions
        self._requests = requests
        self._tell = tell
        self._foresight = foresight
        self._follow_memory = follow_memory
        self._own_bytes = sessions.rank_zero.memory_bytes  # for which plans are made
        self._selection = Selection(clock, plan, roster, reputation, sessions)
        self._notices = Notices()
        self._retries = Retries()
        self._changes = Retries()  # of what is to take the place of what serves, which goes on meanwhile
        self._debounce = Debounce(roster)
        self._begun = 0.0  # when the coming session began
        self._planned = 0.0  # when the last plan was made
        self._planless: int | None = None  # the roster's generation for which none can be made
        self._spare: Mapping[str, SpareReason] = {}
        self._reason = "starting"
        self._again = ""  # when the next attempt is made, in words
        self._pauses = Pauses(roster)
        self._history = History()
        self._chronicle = Chronicle(time.time)
        self.status = ClusterStatus(False, self._reason, (), 0, 0)

    @property
    def events(self) -> tuple[ClusterEvent, ...]:
        """What happened last. For any thread."""
        return self._chronicle.events

    @property
    def usable(self) -> tuple[Machine, ...]:
        """Those that plans may have now."""
        return tuple(self._selection.able())

    def served_before(self) -> str:
        """A master before this one served, and requests of it wait: for machines, too. Returns what they are told."""
        self._served = True
        return self._pauses.started_again()

    def clear(self, name: str) -> None:
        """An administrator wants the worker tried again: nothing waits for its time to pass any longer."""
        now, machine = self._clock.now(), self._roster.get(name)
        if self._reputation.clear(name, now) and machine is not None:
            self._chronicle.cleared(machine)
        for attempts in (self._retries, self._changes):
            attempts.hurry(now)

    def not_serving(self) -> NotServing:
        """The error of a request that cannot be served. For any thread."""
        return NotServing(f"the cluster serves nothing now: {self._reason}")

    def reconcile(self) -> None:
        """Takes every step that is due now."""
        sessions, now = self._sessions, self._clock.now()
        self._chronicle.look(self._roster)
        if sessions.serving is not None and sessions.serving.phase is Phase.ENDED:
            self._end_serving(sessions.serving)
        if sessions.coming is not None and sessions.coming.phase is Phase.ENDED:
            self._drop_coming(sessions.coming)
        if self._reputation.readmit(now, self._beginning()):
            self._debounce.again()
        self._look_at_own_memory()
        self._look_for_slow(now)
        if sessions.serving is not None and sessions.serving.phase is Phase.READY:
            note_speeds(self._roster, sessions.serving, now)
        self._drains.settle(self._selection.find_without)
        newest = max((one.since for one in self._selection.steady(())), default=0.0)
        if self._attempts.may_try(now, newest) and self._debounce.due(now):
            self._replan()
        begun = self._handover.begun(sessions.serving, sessions.coming)
        if sessions.coming is not None and (
            begun or self._may_switch(sessions.coming, sessions.serving, now)
        ):
            self._switch(sessions.coming, sessions.serving, now)
        self._dispatch()
        self._look_ahead()
        self.hopeless = self._stuck is not None and not self._patient(now, self._stuck)
        if self.hopeless:
            self._requests.fail_all(self.not_serving())
        self._requests.explain(self._why_paused(), serving=self._is_ready)
        self._publish()
        self._drains.tell()

    @property
    def _attempts(self) -> Retries:
        """Those that failed in the present situation: what serves proves nothing of what is to take its place."""
        return self._changes if self._is_ready else self._retries

    @property
    def _is_ready(self) -> bool:
        """Whether a session answers requests."""
        serving = self._sessions.serving
        return serving is not None and serving.phase is Phase.READY

    def _beginning(self) -> list[tuple[str, ...]]:
        """The workers of each session that is about to serve, while none does."""
        if self._is_ready:
            return []
        return [session.machines for session in self._sessions.active]

    def _look_ahead(self) -> None:
        """While nobody asks: it takes the master's time."""
        serving = self._sessions.serving
        if serving is None or self._sessions.coming is not None or not self._requests.idle:
            return
        if serving.served_s >= SETTLED_S:
            self._foresight.look(self._selection.plannable(), serving.machines)

    def _patient(self, now: float, since: float) -> bool:
        """Whether requests wait for machines to return."""
        return self._served and now - since < self._grace_s

    def _switch(self, coming: Session, serving: Session | None, now: float) -> None:
        """The coming session takes the place of the serving one, once that has left for it what it can use."""
        carried = None
        if serving is not None:
            if not self._handover.ready(serving, coming, now):
                if now - self._handover.since >= _TOLD_S:
                    self._requests.pause(self._pauses.planned(), self._handover.since)
                return
            carried = self._handover.carried(serving)
            self._requests.interrupt(self._pauses.planned(), since=self._handover.since)
        self._reason = "loading the weights"
        self._changes.succeeded()
        self._sessions.switch(coming, carried)
        self._history.begun(replaces=serving is not None)
        self._chronicle.planned(coming.assignments)
        self._notify()  # the plan was made while those it leaves out still had a part

    def _may_switch(self, coming: Session, serving: Session | None, now: float) -> bool:
        """Whether the coming session takes the place of the serving one."""
        usable = self._selection.steady(serving.machines if serving is not None else ())
        return self._switching.due(coming, serving, {one.name: one for one in usable}, self._own_bytes, now)

    def _why_paused(self) -> str:
        """What answers that pause are told now."""
        takes_over = self._sessions.serving or self._sessions.coming
        if takes_over is not None:
            return self._pauses.going_on(takes_over.machines)
        if self._planless == self._roster.generation:
            return self._pauses.waiting(self._reason)
        return self._pauses.undecided(self._again)

    def _is_stuck(self, stuck: bool) -> None:
        if not stuck:
            self._stuck = None
        elif self._stuck is None:
            self._stuck = self._clock.now()

    def _look_at_own_memory(self) -> None:
        """Where the master's machine gives less or more memory by now, plans are made for that."""
        own_bytes = self._sessions.rank_zero.memory_bytes
        if own_bytes != self._own_bytes:
            self._own_bytes = own_bytes
            self._follow_memory(own_bytes)
            self._foresight.again()
            self._roster.changed_beside()

    def _look_for_slow(self, now: float) -> None:
        """While nothing is served, finds the workers that are late, so that the others can serve without them.

        Once the others serve, plans contain the slow workers again, and they go on fetching.
        """
        serving, coming = self._sessions.serving, self._sessions.coming
        if serving is not None:
            if self._selection.slow and serving.phase is Phase.READY:
                self._selection.slow = frozenset()
                self._debounce.again()
        elif (
            coming is not None
            and now - self._begun >= _MEASURED_AFTER_S
            and self._selection.add_slow(coming.late(_PATIENCE_S, _SILENCE_S))
        ):
            self._debounce.again()

    def _publish(self) -> None:
        self.status = snapshot(
            self._roster,
            self._sessions,
            self._requests,
            self._selection.left_out(),
            {**self._spare, **self._selection.drained()},
            self._foresight.stocked,
            self._reason,
            self._clock.now(),
            self._history.so_far,
        )

    def _replan(self) -> None:
        found = self._selection.find()
        if isinstance(found, NoPlan) and found.wants_memory and self._sessions.rank_zero.insist():
            return  # it stays due, with more memory of the master's own machine
        self._debounce.planned()
        self._planned = self._clock.now()
        self._planless = self._roster.generation if isinstance(found, NoPlan) else None
        if isinstance(found, NoPlan):
            self._is_stuck(self._sessions.serving is None)
            self._give_up(found)
        elif self._put_off(found):
            self._debounce.again()
            return
        else:
            self._spare = {**self._departed(), **found.spare}
            self._apply(found)
            self._is_stuck(self._retries.hopeless and not self._is_ready)
        self._notify()

    def _put_off(self, found: Assignments) -> bool:
        """Whether the plan waits, because nothing can serve without a worker whose node fails again and again."""
        now, due = self._clock.now(), max(self._reputation.due(one.machine) for one in found.assignments)
        if self._sessions.serving is not None or due <= now:
            return False
        self._retries.put_off(now, due)
        self._say_when(now, due)
        return True

    def _say_when(self, now: float, due: float) -> None:
        """The next attempt is made then."""
        if not self._again:
            self._again = f"; it is tried again after {format_seconds(due - now)}"
            self._reason += self._again

    def _notify(self) -> None:
        """Tells the workers that the plan has no part for why that is so, unless they have made another offer since."""
        now = self._clock.now()
        excluded = {
            name: SpareReason("excluded", exclusion.why(now))
            for name, exclusion in self._selection.left_out().items()
        }
        busy = {name for session in self._sessions.active for name in session.machines}
        known = (machine for machine in self._roster.present if machine.offered <= self._planned)
        idle = [machine for machine in known if machine.name not in busy]
        for name, reason in self._notices.due(idle, {**self._spare, **excluded, **self._selection.drained()}):
            self._tell(Spare(0, reason.kind, sanitised_line(reason.why)), name)

    def _departed(self) -> Mapping[str, SpareReason]:
        """The reasons of the machines that have left, for those who wonder why."""
        gone = {machine.name for machine in self._roster.machines if not machine.present}
        return {name: reason for name, reason in self._spare.items() if name in gone}

    def _apply(self, found: Assignments) -> None:
        """Makes sure that a session with these assignments serves or is coming."""
        serving, coming, assignments = self._sessions.serving, self._sessions.coming, found.assignments
        bound = self._selection.bound(assignments)
        if bound is not None:
            out = {one.machine for one in assignments} - {"", *self._selection.serving_on()}
            self._spare = {**self._spare, **dict.fromkeys(out, bound)}
            self._sessions.abandon()
            return
        self._roster.take_seats(found.seats)
        if serving is not None and serving.assignments == assignments:
            self._sessions.abandon()
        elif coming is None or coming.assignments != assignments:
            self._reason = f"preparing {counted(len(assignments), 'node')}"
            self._begun = self._clock.now()
            self._retries.begun()
            self._sessions.begin(assignments, found.step_s)

    def _give_up(self, found: NoPlan) -> None:
        """No plan fits the present machines. A serving session goes on."""
        waiting = SpareReason("no plan", found.reason)
        present = {machine.name: waiting for machine in self._roster.present}
        for_good = {name: why for name, why in found.spare.items() if why.kind != FETCHES.kind}
        self._spare = {**self._departed(), **present, **for_good}
        absent = absent_words(self._roster, self._spare, self._reputation.left_out, self._clock.now())
        self._reason = "; ".join([found.reason, *absent])
        self._chronicle.no_plan(found.reason)
        self._sessions.abandon()

    def _dispatch(self) -> None:
        serving, coming = self._sessions.serving, self._sessions.coming
        if serving is None or serving.phase is not Phase.READY or serving.halting:
            return
        self._retries.started()
        self._history.serves(self._clock.now())
        self._chronicle.serves(serving.number, self._clock.now())
        if serving.proven:
            self._retries.succeeded()
            self._reputation.proved(serving.machines)
        self._stuck, self._served = None, True
        self._reason = ""
        if (
            coming is not None
            and coming.phase is Phase.PREPARED
            and not self._switching.awaits_readers(coming)
        ):
            self._reason = "a faster plan waits until it is worth the pause"
        if coming is not None and self._switching.awaits_readers(coming):
            return
        self._retries.served()
        while self._requests.prepare(serving.compile):
            pass
        while self._requests.start(serving.ask):
            pass

    def _end_serving(self, session: Session) -> None:
        error = session.failure.error if session.failure else PeerError("the cluster was stopped")
        _log.debug("epoch %d ended: %s", session.number, type(error).__name__)
        _log.warning("stopped serving: %s", error)
        self._sessions.end_serving()
        self._history.lost(session.failure, breached=bool(session.breaches), now=self._clock.now())
        self._chronicle.interrupted(error, self._clock.now())
        self._reason = str(error)
        self._pauses.lost(error, session.machines)
        unfit = session.failure.unfit if session.failure else None
        if self._retries.false_starts or (unfit is not None and self._reputation.failing(unfit)):
            self._exclude(session)  # a single one may be bad luck
        self._attribute(session)
        self._publish()  # first: a client that sees its answer pause must not read a status that says ready
        self._interrupt(session, error)
        self._retry(session)

    def _interrupt(self, session: Session, error: TpiedgeError) -> None:
        """The requests of a session that was lost pause. Where one of them may be at fault, or else the worker whose
        node died again, both are tried without the other."""
        failure = session.failure
        lost = None if failure is not None and failure.intended else error
        died = failure is not None and failure.died
        if self._requests.interrupt(self._pauses.undecided(""), lost, died=died):
            self._reputation.trust()
        elif failure is not None and died and failure.crashed is not None and self._requests.suspected:
            self._reputation.doubt(failure.crashed, str(error), self._clock.now())

    def _attribute(self, session: Session) -> None:
        """Records which workers broke the protocol or failed by themselves, or that two are in dispute."""
        now, failure = self._clock.now(), session.failure
        if failure is not None and failure.disputed:
            _log.warning("all-reduces go by the star for a while: two workers contradict each other")
            self._sessions.distrust(failure.disputed)
        for name, cause in session.breaches.items():
            _log.warning("%s broke the protocol: %s", name, cause)
            self._reputation.penalise(name, cause, now)
        if failure is not None and failure.crashed is not None and failure.crashed not in session.breaches:
            self._reputation.crashed(failure.crashed, str(failure.error), now)

    def _drop_coming(self, session: Session) -> None:
        error = session.failure.error if session.failure else None
        _log.debug("epoch %d was not prepared: %s", session.number, type(error).__name__)
        _log.warning("the new plan failed: %s", error)
        self._history.failed()
        self._chronicle.plan_failed(error)
        self._reason = str(error)
        if error is not None and self._sessions.serving is None:
            self._pauses.failed(error)
        self._exclude(session)
        self._sessions.abandon()
        self._retry(session)

    def _exclude(self, session: Session) -> None:
        """Leaves the worker that made the session fail, if there is one, for a while out of plans that can be made
        without it. If it serves meanwhile, that goes on, and only plans that would give it another part are left out.
        """
        failure = session.failure
        if failure is not None and failure.unfit is not None:
            serves = failure.unfit in self._selection.serving_on()
            note = self._reputation.bind if serves else self._reputation.unfit
            note(failure.unfit, str(failure.error), self._clock.now())

    def _retry(self, session: Session) -> None:
        """Plans again: at once where a machine was lost, or one worker's node of what served, which is that worker's
        trouble, or where a worker is bound to its part now; otherwise after a delay that grows with each failure."""
        self._debounce.again()
        self._again, self._planless = "", None
        failure = session.failure
        at_once = failure is not None and (
            failure.machine_lost or failure.of_one_worker or failure.unfit in self._reputation.bound
        )
        if not at_once:
            now, attempts = self._clock.now(), self._attempts
            attempts.failed(now)
            if attempts.due > now:
                self._say_when(now, attempts.due)
        if self._retries.hopeless:
            self._is_stuck(True)
