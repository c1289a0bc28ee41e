"""The serving and the coming session of a master, and which of their nodes the hub admits.

Laws:
1. At most one session's nodes run: rank 0 has one process, and the hub admits no node of an ended session.
2. An agent's message goes to both sessions; each drops what is not of its epoch.
"""

import logging
from collections.abc import Callable, Iterable
from typing import Final

from tpiedge.clock import Clock
from tpiedge.errors import ResourceError
from tpiedge.launch.bootstrap import control_name
from tpiedge.launch.slot import SETTLED_S
from tpiedge.launch.timing import Timing
from tpiedge.master.assignments import Assignment, Served
from tpiedge.master.blame import Failure
from tpiedge.master.epoch import Epoch
from tpiedge.master.outbox import Outbox
from tpiedge.master.rank_zero import RankZero
from tpiedge.master.roster import Roster
from tpiedge.master.session import Phase, Session
from tpiedge.master.workers import WorkerEvent
from tpiedge.transport.hub import Hub
from tpiedge.transport.keys import CurveKeys
from tpiedge.wire.control import Cancel, Carried, Shutdown
from tpiedge.wire.epochs import MasterPulse, NodeEnded, Prepared, Preparing, Spawned
from tpiedge.wire.messages import Message

_log = logging.getLogger(__name__)

STAR_S: Final = 600.0
_GRACE_S = 0.2
#: For how long after a look at the nodes' counters they are kept up to date, and how often they are asked for: before a
#: second later somebody who looks twice is to have a rate.
_OBSERVED_S = 90.0
_COUNTED_S = 0.5
#: For how long after the look of somebody who looks every second, and how often a step is recorded meanwhile.
_WATCHED_S = 5.0
_TIMELINE_S = 1.0


class SessionManager:
    """For the control thread, but for `cancel`. Owns rank 0's processes; `tell` gets nodes' messages about requests.

    `busy`: whether a request runs or waits.
    """

    def __init__(
        self,
        hub: Hub,
        outbox: Outbox,
        roster: Roster,
        rank_zero: RankZero,
        served: Served,
        timing: Timing,
        clock: Clock,
        tell: Callable[[Message], None],
        busy: Callable[[], bool],
    ) -> None:
        self.serving: Session | None = None
        self.coming: Session | None = None
        self._hub = hub
        self._outbox = outbox
        self._roster = roster
        self._rank_zero = rank_zero
        self._served = served
        self._timing = timing
        self._clock = clock
        self._tell = tell
        self._busy = busy
        self._dispute, self._star_until = "", 0.0  # the last dispute between workers
        self._number = 0
        self._observed_until = self._watched_until = 0.0
        self._counted = self._recorded = 0.0  # when counters, and a step, were last asked for
        #: The session for whose loss a process was last made to stand by.
        self._covered: Session | None = None

    def count_from(self, first_epoch: int) -> None:
        """Gives the first session the number `first_epoch`."""
        self._number = first_epoch - 1

    @property
    def served(self) -> Served:
        return self._served

    @property
    def rank_zero(self) -> RankZero:
        return self._rank_zero

    @property
    def active(self) -> list[Session]:
        """The sessions that exist: the serving one, then the coming one."""
        return [session for session in (self.serving, self.coming) if session is not None]

    @property
    def pulse(self) -> MasterPulse:
        """The heartbeat that workers get."""
        serving = self.serving
        state = "serving" if serving is not None and serving.phase is Phase.READY else "waiting"
        busy = self._busy() or self.coming is not None
        return MasterPulse(serving.number if serving is not None else 0, state, busy)

    def epoch(self, number: int) -> Epoch | None:
        """The epoch whose nodes run, if it is `number`."""
        serving = self.serving
        return serving.epoch if serving is not None and serving.number == number else None

    def heard(self, machine: str, message: Preparing | Prepared | Spawned | NodeEnded) -> None:
        """Handles an agent's message about an epoch."""
        if isinstance(message, Prepared) and self._hub.admission.knows(message.public_key):
            message = NodeEnded(message.epoch, "", "the key of its node is not a new one")
        for session in self.active:
            session.heard(machine, message)
        if self.coming is not None and self.coming.is_prepared(machine):
            self._note(WorkerEvent.PREPARED, [machine])

    def lose(self, machine: str, cause: str, *, intended: bool = False) -> None:
        """The machine is lost, and its nodes with it. `intended`: as in Failure."""
        for session in self.active:
            session.lose(machine, cause, intended=intended)

    def tick(self, *, excused: bool) -> None:
        """A heartbeat: looks for nodes that ended, fell silent or are stuck, and how much memory there is. `excused`:
        nobody's silence counts."""
        self._rank_zero.weigh()
        serving = self.serving
        if serving is not None and serving.epoch is not None:
            ended = self._rank_zero.exit_cause()
            if ended is not None:
                serving.epoch.ended(0, ended)
            serving.epoch.tick(excused=excused)
        for session in self.active:
            session.tick()
        now = self._clock.now()
        if serving is not None and now < self._observed_until and now - self._counted >= _COUNTED_S:
            self._ask(serving)
        if serving is not None and serving is not self._covered and serving.served_s >= SETTLED_S:
            self._covered = serving
            self.warm()

    def observe(self, *, timeline: bool = False) -> None:
        """Asks the nodes for their counters every _COUNTED_S for _OBSERVED_S, and at once on the first call. With
        `timeline`, of who looks all the time, for _WATCHED_S, and every _TIMELINE_S to record a step.

        Further calls only extend the time: more answers than that would count as a flood.
        """
        now = self._clock.now()
        if timeline:
            self._watched_until = now + _WATCHED_S
        if self.serving is not None and now >= self._observed_until:
            self._ask(self.serving)
        self._observed_until = max(self._observed_until, now + (_WATCHED_S if timeline else _OBSERVED_S))

    def _ask(self, serving: Session) -> None:
        """For counters, and for a step where somebody looks at these and none was asked for of late."""
        now = self._clock.now()
        self._counted = now
        timeline = now < self._watched_until and now - self._recorded >= _TIMELINE_S
        if timeline:
            self._recorded = now
        serving.ask_counters(timeline=timeline)

    def warm(self) -> None:
        """Has a process stand by for rank 0 of the next session, if there is memory for it. Logs failures."""
        try:
            self._rank_zero.warm_ahead()
        except (OSError, ResourceError) as error:
            _log.warning("cannot start a node ahead of its use: %s", error)

    def begin(self, assignments: tuple[Assignment, ...], step_s: float) -> None:
        """Prepares a session, which replaces the coming one. `step_s`: as in Assignments."""
        self.abandon()
        self._number += 1
        self.coming = Session(
            self._number,
            assignments,
            self._served,
            self._timing,
            self._clock,
            self._outbox.send,
            self._outbox.to_nodes(self._number),
            self._tell,
            step_s=step_s,
        )
        self.warm()
        self._note(WorkerEvent.ASKED, self.coming.machines)
        self.coming.prepare()

    def abandon(self) -> None:
        """Ends the coming session, if there is one."""
        if self.coming is not None:
            self.coming.end()
            ended, self.coming = self.coming, None
            self._release(ended)

    def switch(self, session: Session, carried: Carried | None = None) -> None:
        """Ends the serving session and launches the prepared one, which fails if rank 0 cannot be started. `carried`:
        what the nodes of the former have left for the latter."""
        self.end_serving()
        self.coming, self.serving = None, session
        self._note(WorkerEvent.LAUNCHED, session.machines)
        keys = CurveKeys.generate()
        self._hub.admission.admit(keys.public, control_name(0, session.number))
        for rank, key in session.keys.items():
            self._hub.admission.admit(key, control_name(rank, session.number))
        try:
            self._rank_zero.start(session.number, keys, session.assignments[0].planned_bytes)
        except (OSError, ResourceError) as error:
            session.fail(Failure(ResourceError(f"cannot start a node: {error}")))
            return
        session.launch(keys.public, self._overruled(session), carried)

    def distrust(self, cause: str) -> None:
        """Two workers are in dispute over `cause`: for STAR_S the all-reduces of epochs that begin go by the star."""
        self._dispute, self._star_until = cause, self._clock.now() + STAR_S

    def end_serving(self) -> None:
        """Ends the serving session and its nodes, if there is one. Blocks up to _GRACE_S for rank 0."""
        session, self.serving = self.serving, None
        if session is None:
            return
        names = [control_name(rank, session.number) for rank in range(len(session.assignments))]
        for name in names:
            self._outbox.send(Shutdown(session.number), name)
        self._rank_zero.stop(_GRACE_S)
        session.end()
        for name in names:
            self._hub.admission.revoke(name)
            self._hub.disconnect(name)
        self._release(session)

    def _release(self, ended: Session) -> None:
        """The workers of a session that has ended have no part any more, unless another session has one for them."""
        busy = {name for session in self.active for name in session.machines}
        self._note(WorkerEvent.RELEASED, set(ended.machines) - busy)

    def _note(self, event: WorkerEvent, machines: Iterable[str]) -> None:
        for name in machines:
            self._roster.step(name, event, self._clock.now())

    def cancel(self, request: str) -> None:
        """Tells rank 0 to stop working on the request. From any thread; does not block."""
        serving = self.serving
        if serving is not None:
            self._hub.post(Cancel(serving.number, request), to=control_name(0, serving.number))

    def _overruled(self, session: Session) -> str:
        """Why the session's all-reduces must go by the star, whatever the user chose; "" if they need not."""
        if len(session.assignments) <= 2 or self._served.collective == "star":
            return ""
        if self._clock.now() >= self._star_until:
            return ""
        return (
            f"the star for {round(STAR_S / 60)} minutes, because one worker's word stands against another's; there the "
            f"master sees every message: {self._dispute}"
        )[:2000]

    def close(self) -> None:
        """Ends both sessions and rank 0's processes, without waiting for the workers' nodes."""
        for session in self.active:
            session.end()
        self._rank_zero.close()
