"""From what is to what should be: who is planned with, which session comes, serves and ends, and what is said of it."""

import logging
from collections.abc import Callable, Mapping, Sequence

from tpiedge.clock import Clock
from tpiedge.errors import PeerError, ProtocolError, UserError
from tpiedge.nodes.attempts import Attempts
from tpiedge.nodes.desk import Desk
from tpiedge.nodes.quarantine import Exclusion, Standing
from tpiedge.nodes.roster import Machine, Roster
from tpiedge.nodes.seats import Arrangement, Seat
from tpiedge.nodes.session import Phase, Session
from tpiedge.nodes.settling import Settling
from tpiedge.nodes.stage import Stage
from tpiedge.nodes.status import ClusterStatus
from tpiedge.nodes.survey import survey
from tpiedge.wire.limits import MAX_NODES

__all__ = ["NotServing", "PlanSeats", "Reconciler"]

_log = logging.getLogger(__name__)

#: Lost machines that the reason for not serving names.
_NAMED = 3
#: Where nothing is served, a worker that still fetches for longer than this is not waited for; it is judged by what it
#: fetched in the time before.
_PATIENCE_S = 10.0
_JUDGED_AFTER_S = 2.0

PlanSeats = Callable[[tuple[Machine, ...], tuple[str, ...]], Arrangement | str]
"""From who is there, and the workers that serve now, to who does what, or one line that says why nobody can."""


class NotServing(PeerError):
    """The cluster cannot answer now; the message says what is missing."""


class Reconciler:
    """Takes the steps that are due, one `reconcile` at a time. For the control thread, but for what is read only."""

    def __init__(
        self,
        clock: Clock,
        plan: PlanSeats,
        roster: Roster,
        standing: Standing,
        stage: Stage,
        desk: Desk,
    ) -> None:
        #: Whether nothing is served nor about to be. For any thread, as `status`.
        self.hopeless = False
        self._clock = clock
        self._plan = plan
        self._roster = roster
        self._standing = standing
        self._stage = stage
        self._desk = desk
        self._attempts = Attempts()
        self._settling = Settling(roster)
        self._resting: tuple[str, ...] = ()  # the restless whom the last plan does without
        self._slow: frozenset[str] = frozenset()  # those who fetch for long, while nothing is served
        self._begun = 0.0  # when the coming session was
        self._spare: Mapping[str, str] = {}
        self._reason = "starting"
        self.status = ClusterStatus(False, self._reason, (), 0, 0)

    def not_serving(self) -> NotServing:
        """What a request is told that cannot be served. For any thread."""
        return NotServing(f"the cluster serves nothing now: {self._reason}")

    def reconcile(self) -> None:
        """Compare what is with what should be, and take the next step."""
        stage, now = self._stage, self._clock.now()
        if stage.serving is not None and stage.serving.phase is Phase.ENDED:
            self._end_serving(stage.serving)
        if stage.coming is not None and stage.coming.phase is Phase.ENDED:
            self._drop_coming(stage.coming)
        if self._standing.readmit(now):
            self._settling.again()
        self._look_for_slow(now)
        if now >= self._attempts.due and self._settling.ripe(now):
            self._replan()
        if stage.coming is not None and stage.coming.phase is Phase.PREPARED and not self._desk.running:
            self._reason = "loading the weights"
            stage.switch(stage.coming)
        if self.hopeless:  # also for a request that came while this was found out
            self._desk.fail_all(self.not_serving())
        self._dispatch()
        self._publish()

    def _look_for_slow(self, now: float) -> None:
        """Where nothing is served, whoever has his part already need not wait for those who fetch for long. They are
        planned with again, and go on fetching, once the others serve."""
        serving, coming = self._stage.serving, self._stage.coming
        if serving is not None:
            if self._slow and serving.phase is Phase.READY:
                self._slow = frozenset()
                self._settling.again()
        elif coming is not None and now - self._begun >= _JUDGED_AFTER_S:
            slow = {name for name, one in coming.fetching.items() if one.remaining_s > _PATIENCE_S}
            if not slow <= self._slow:
                self._slow |= slow
                self._settling.again()

    def _publish(self) -> None:
        self.status = survey(
            self._roster,
            self._stage,
            self._desk,
            self._left_out(),
            self._spare,
            self._reason,
            self._clock.now(),
        )

    def _left_out(self) -> Mapping[str, Exclusion]:
        """Who could take part if it had not done what it has done."""
        present = {machine.name for machine in self._roster.present}
        restless = self._standing.restless
        resting = {name: restless[name] for name in self._resting if name in restless and name in present}
        return {**resting, **self._standing.left_out}

    def _replan(self) -> None:
        self._settling.planned()
        found = self._find()
        self.hopeless = self._stage.serving is None and (isinstance(found, str) or self._attempts.hopeless)
        if isinstance(found, str):
            self._give_up(found)
            return
        self._spare = found.spare
        self._arrange(found.seats)

    def _find(self) -> Arrangement | str:
        """A plan without the restless and the slow, or else with them. Whoever serves may stay: an end helps nobody."""
        serving = self._stage.serving.machines if self._stage.serving is not None else ()
        restless = tuple(name for name in self._standing.restless if name not in serving)
        present = [one for one in self._roster.present if one.name not in self._standing.left_out]
        steady = [one for one in present if one.name not in restless and one.name not in self._slow]
        found, self._resting = self._plan_for(steady, serving), restless
        if isinstance(found, str) and len(steady) < len(present):
            found, self._resting = self._plan_for(present, serving), ()
        return found

    def _plan_for(self, machines: Sequence[Machine], serving: tuple[str, ...]) -> Arrangement | str:
        return self._plan(tuple(machines[: MAX_NODES - 1]), serving)  # beside the master's own

    def _arrange(self, seats: tuple[Seat, ...]) -> None:
        """See that a session with these seats serves or is to come."""
        serving, coming = self._stage.serving, self._stage.coming
        if serving is not None and serving.seats == seats:
            self._stage.abandon()
        elif coming is None or coming.seats != seats:
            self._reason = f"preparing {len(seats)} node{'s' if len(seats) > 1 else ''}"
            self._begun = self._clock.now()
            self._stage.begin(seats)

    def _give_up(self, reason: str) -> None:
        """Nothing can be served by who is there. What is served already goes on."""
        lost = [f"{one.offer.host}: {one.cause}" for one in self._roster.machines if not one.present]
        self._reason = "; ".join([reason, *lost[-_NAMED:]])
        self._stage.abandon()
        if self._stage.serving is None:
            self._desk.fail_all(self.not_serving())

    def _dispatch(self) -> None:
        serving, coming = self._stage.serving, self._stage.coming
        if serving is None or serving.phase is not Phase.READY:
            return
        self._attempts.started()
        if serving.proven:
            self._attempts.succeeded()
        self.hopeless = False
        self._reason = ""
        if coming is not None and coming.phase is Phase.PREPARED:
            return
        request = self._desk.next()
        if request is not None:
            try:
                serving.ask(request)
            except ProtocolError as error:
                self._desk.fail_running(UserError(f"the request cannot be served: {error}"))

    def _end_serving(self, session: Session) -> None:
        error = session.failure or PeerError("the cluster was stopped")
        _log.warning("epoch %d ended: %s", session.number, error)
        self._stage.end_serving()
        self._reason = str(error)
        if self._attempts.false_starts:  # once may be bad luck
            self._exclude(session)
        self._judge(session)
        self._publish()  # whoever is told of the failure and looks must not see that all is well
        self._desk.fail_running(error)
        self._retry(session)

    def _judge(self, session: Session) -> None:
        """Note whose node broke the protocol, or failed by itself, and whether that is known."""
        now = self._clock.now()
        if session.quarrel:
            _log.warning(
                "all-reduces go by the star for a while: nobody else knows which of two workers is right"
            )
            self._stage.distrust(session)
        for name, cause in session.offences.items():
            _log.warning("%s broke the protocol: %s", name, cause)
            self._standing.convict(name, cause, now)
        if session.fallen is not None and session.fallen not in session.offences:
            self._standing.lost(session.fallen, str(session.failure), now)

    def _drop_coming(self, session: Session) -> None:
        _log.warning("epoch %d was not prepared: %s", session.number, session.failure)
        self._reason = str(session.failure)
        self._exclude(session)
        self._stage.abandon()
        self._retry(session)

    def _exclude(self, session: Session) -> None:
        """Plan for a while without the worker that made the session fail, if it was one."""
        if session.culprit is not None:
            self._standing.exclude(session.culprit, str(session.failure), self._clock.now())

    def _retry(self, session: Session) -> None:
        """Plan anew: at once for who is left, but the later the more often it went wrong."""
        self._settling.again()
        if not session.deserted:
            self._attempts.failed(self._clock.now())
        if self._attempts.hopeless:
            self.hopeless = True
            self._desk.fail_all(self.not_serving())
