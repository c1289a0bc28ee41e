"""The serving and the coming session, and the master's own node. Only one session's nodes run at a time, because rank 0
has one process."""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from tpiedge.clock import Clock
from tpiedge.errors import ResourceError
from tpiedge.launch.bootstrap import NodeBootstrap, Timing, control_name
from tpiedge.launch.slot import NodeSlot
from tpiedge.master.assignments import Assignments, Served
from tpiedge.master.blame import Failure
from tpiedge.master.epoch import Epoch
from tpiedge.master.request_queue import RequestQueue
from tpiedge.master.roster import Roster
from tpiedge.master.session import AgentReport, Phase, Session
from tpiedge.master.workers import WorkerEvent
from tpiedge.transport.endpoint import EndpointClosed, Unreachable
from tpiedge.transport.keys import CurveKeys
from tpiedge.transport.zeromq import ZmqHub
from tpiedge.wire.control import Cancel, KVSnapshot, Shutdown
from tpiedge.wire.epochs import MasterPulse, NodeEnded, Prepared
from tpiedge.wire.fields import Message

_log = logging.getLogger(__name__)

STAR_S: Final = 600.0
#: After a look, counters are kept up to date for _OBSERVED_S, and a step is recorded each second for _WATCHED_S.
_OBSERVED_S = 90.0
_WATCHED_S = 5.0


@dataclass(eq=False)
class RankZero(NodeSlot):
    """The slot of the master's own node. `bootstrap` lacks the fields that differ between epochs."""

    bootstrap: NodeBootstrap = field(kw_only=True)
    _say: Callable[[str], None] = _log.warning
    _owns_pages: bool = True  # the folder's lock lets only one master run

    def insist(self) -> bool:
        """Offers all usable memory. Call it if no plan fits. Returns whether the offer grew."""
        before = self.memory_bytes
        self._tell(self.memory.insist(self._usable_memory(), self._clock.now()))
        return self.memory_bytes > before

    def launch(self, epoch: int, keys: CurveKeys, planned_bytes: int, pack: Path) -> None:
        """Starts the node of `epoch`. `planned_bytes` and errors: see NodeSlot.start."""
        self.start(replace(self.bootstrap, epoch=epoch, keys=keys, pack=str(pack)), planned_bytes)


def send_if_connected(hub: ZmqHub, message: Message, to: str) -> None:
    """Sends without waiting. Call it in the hub's thread. Ignores absent peers. Raises ProtocolError."""
    try:
        hub.send(message, to=to, timeout_s=0.0)
    except (Unreachable, EndpointClosed):
        _log.debug("%s does not get %s: it is not connected", to, type(message).__name__)


@dataclass(eq=False)
class SessionManager:
    """Owns rank 0's processes. All methods except `cancel` belong to the control thread."""

    _hub: ZmqHub
    _send: Callable[[Message, str], None]
    _roster: Roster
    rank_zero: RankZero
    _timing: Timing
    _clock: Clock
    _requests: RequestQueue
    serving: Session | None = None
    coming: Session | None = None
    _dispute: str = ""  # the last one between workers
    _star_until: float = 0.0
    number: int = 0  # the last session's
    _observed_until: float = 0.0
    _watched_until: float = 0.0
    _recorded: float = 0.0

    @property
    def active(self) -> list[Session]:
        return [session for session in (self.serving, self.coming) if session is not None]

    @property
    def ready(self) -> Session | None:
        return self.serving if self.serving is not None and self.serving.phase is Phase.READY else None

    @property
    def pulse(self) -> MasterPulse:
        serving = self.serving
        at_rest = self.ready is not None and self._requests.idle and self.coming is None
        return MasterPulse(serving.number if serving is not None else 0, at_rest)

    def epoch(self, number: int) -> Epoch | None:
        serving = self.serving
        return serving.epoch if serving is not None and serving.number == number else None

    def handle_report(self, machine: str, message: AgentReport) -> None:
        if isinstance(message, Prepared) and self._hub.admission.knows(message.public_key):
            message = NodeEnded(message.epoch, "the key of its node is not a new one")
        for session in self.active:
            session.handle_report(machine, message)

    def drop_machine(self, machine: str, cause: str, *, intended: bool = False) -> None:
        for session in self.active:
            session.drop_machine(machine, cause, intended=intended)

    def tick(self, *, own_stall: bool) -> None:
        """Marks ended, stuck and silent nodes as lost. After an `own_stall`, silent nodes are not marked."""
        self.rank_zero.weigh()
        serving, now = self.serving, self._clock.now()
        if serving is not None and serving.epoch is not None:
            ended = self.rank_zero.exit_cause()
            if ended is not None:
                serving.epoch.ended(0, ended)
            serving.epoch.tick(own_stall=own_stall)
        for session in self.active:
            session.tick()
        if self.ready is not None:
            self._roster.slowed(self.ready.slowdowns(), now)
        if serving is not None and now < max(self._observed_until, self._watched_until):
            timeline = now < self._watched_until and now - self._recorded >= 1.0
            self._recorded = now if timeline else self._recorded
            serving.ask_counters(timeline=timeline)

    def observe(self, *, timeline: bool = False) -> None:
        """Makes `tick` ask for counters. `timeline`: also for a step's spans."""
        if timeline:
            self._watched_until = self._clock.now() + _WATCHED_S
        else:
            self._observed_until = self._clock.now() + _OBSERVED_S

    def prepare_session(self, plan: Assignments, served: Served) -> None:
        """Prepares a session in place of the coming session."""
        self.abandon()
        self.number += 1
        self.coming = Session(
            self.number, plan, served, self._timing, self._clock, self._send, self._requests.handle
        )
        self.rank_zero.warm_if_possible()
        self._note(WorkerEvent.ENGAGED, self.coming.machines)
        self.coming.prepare()

    def abandon(self) -> None:
        if self.coming is not None:
            self.coming.end()
            ended, self.coming = self.coming, None
            self._release(ended)

    def switch(self, session: Session, snapshot: KVSnapshot | None = None) -> None:
        """Replaces the serving session. `snapshot`: the serving session's KV cache."""
        self.end_serving()
        self.coming, self.serving = None, session
        self._note(WorkerEvent.ENGAGED, session.machines)
        keys = CurveKeys.generate()
        for rank, key in {0: keys.public, **session.keys}.items():
            self._hub.admission.admit(key, control_name(rank, session.number))
        try:
            self.rank_zero.launch(
                session.number, keys, session.assignments[0].planned_bytes, session.served.pack
            )
        except (OSError, ResourceError) as error:
            session.fail(Failure(ResourceError(f"cannot start a node: {error}")))
            return
        overruled = ""
        if session.linked and self._clock.now() < self._star_until:
            overruled = (
                f"star for {round(STAR_S / 60)} minutes, because two workers contradict each other; with star the "
                f"master sees every message: {self._dispute}"
            )[:2000]
        session.launch(keys.public, overruled, snapshot)

    def distrust(self, cause: str) -> None:
        self._dispute, self._star_until = cause, self._clock.now() + STAR_S

    def end_serving(self) -> None:
        """Ends the serving session, if any. Blocks until rank 0 has ended."""
        session, self.serving = self.serving, None
        if session is None:
            return
        names = [control_name(rank, session.number) for rank in range(len(session.assignments))]
        for name in names:
            self._send(Shutdown(session.number), name)
        self.rank_zero.stop(0.2)
        session.end()
        for name in names:
            self._hub.admission.revoke(name)
            self._hub.disconnect(name)
        self._release(session)

    def _release(self, ended: Session) -> None:
        busy = {name for session in self.active for name in session.machines}
        self._note(WorkerEvent.RELEASED, set(ended.machines) - busy)

    def _note(self, event: WorkerEvent, machines: Iterable[str]) -> None:
        for name in machines:
            self._roster.step(name, event, self._clock.now())

    def cancel(self, request: str) -> None:
        """Stops rank 0's work on the request. Thread-safe; does not block."""
        serving = self.serving
        if serving is not None:
            self._hub.post(Cancel(serving.number, request), to=control_name(0, serving.number))

    def close(self) -> None:
        """Ends both sessions and rank 0's processes, without waiting for workers."""
        for session in self.active:
            session.end()
        self.rank_zero.close()
