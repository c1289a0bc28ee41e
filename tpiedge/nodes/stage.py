"""The sessions of a master: the one that serves and the one that is to come, with their nodes' places at the hub.

Laws:
1. At most one session's nodes run: rank 0 has one process, and nodes of an ended session have no place at the hub.
2. What is heard of a machine concerns both sessions; each drops what is not of its epoch.
"""

import logging
from collections.abc import Callable

from tpiedge.clock import Clock
from tpiedge.errors import ResourceError
from tpiedge.nodes.distrust import Distrust
from tpiedge.nodes.epoch import Epoch
from tpiedge.nodes.outbox import Outbox
from tpiedge.nodes.rank_zero import RankZero
from tpiedge.nodes.seats import Seat, Served
from tpiedge.nodes.session import Phase, Session, node_name
from tpiedge.nodes.timing import Timing
from tpiedge.transport.hub import Hub
from tpiedge.transport.keys import CurveKeys
from tpiedge.wire.control import Cancel, Shutdown
from tpiedge.wire.epochs import MasterPulse, NodeEnded, Prepared, Preparing, Spawned
from tpiedge.wire.messages import Message

__all__ = ["Stage"]

_log = logging.getLogger(__name__)

_GRACE_S = 0.2
#: For how long whoever has looked at the nodes' counters is expected to look again.
_OBSERVED_S = 90.0


class Stage:
    """For the control thread, but for `cancel`. `tell` gets what nodes say of requests; owns rank 0's processes."""

    def __init__(
        self,
        hub: Hub,
        outbox: Outbox,
        rank_zero: RankZero,
        served: Served,
        timing: Timing,
        clock: Clock,
        tell: Callable[[Message], None],
    ) -> None:
        self.serving: Session | None = None
        self.coming: Session | None = None
        self._hub = hub
        self._outbox = outbox
        self._rank_zero = rank_zero
        self._served = served
        self._timing = timing
        self._clock = clock
        self._tell = tell
        self._distrust = Distrust()
        self._number = 0
        self._observed_until = 0.0

    def count_from(self, first_epoch: int) -> None:
        """The number of the first session."""
        self._number = first_epoch - 1

    @property
    def served(self) -> Served:
        return self._served

    @property
    def rank_zero(self) -> RankZero:
        return self._rank_zero

    @property
    def sessions(self) -> list[Session]:
        """The serving one and the coming one, as far as there are any."""
        return [session for session in (self.serving, self.coming) if session is not None]

    @property
    def pulse(self) -> MasterPulse:
        """What workers are told of the master."""
        serving = self.serving
        state = "serving" if serving is not None and serving.phase is Phase.READY else "waiting"
        return MasterPulse(serving.number if serving is not None else 0, state)

    def epoch(self, number: int) -> Epoch | None:
        """The epoch whose nodes run, if it is `number`."""
        serving = self.serving
        return serving.epoch if serving is not None and serving.number == number else None

    def heard(self, machine: str, message: Preparing | Prepared | Spawned | NodeEnded) -> None:
        """A worker's agent speaks of an epoch."""
        if isinstance(message, Prepared) and self._hub.admission.knows(message.public_key):
            message = NodeEnded(message.epoch, "", "the key of its node is not a new one")
        for session in self.sessions:
            session.heard(machine, message)

    def lose(self, machine: str, cause: str) -> None:
        """The machine is gone, its nodes with it."""
        for session in self.sessions:
            session.lose(machine, cause)

    def machine_of(self, rank: int) -> str:
        """The worker of a node that runs; "" for the master's own."""
        return self.serving.seats[rank].machine if self.serving is not None else ""

    def tick(self) -> None:
        """A heartbeat: look for nodes that ended, fell silent or are stuck."""
        serving = self.serving
        if serving is not None and serving.epoch is not None:
            ended = self._rank_zero.exit_cause()
            if ended is not None:
                serving.epoch.ended(0, ended)
            serving.epoch.tick()
        for session in self.sessions:
            session.tick()
        if serving is not None and self._clock.now() < self._observed_until:
            serving.ask_counters()

    def observe(self) -> None:
        """Somebody looks at the nodes' counters: have them told with every heartbeat for a while, and now if nobody
        looked until now. More answers than that would be a flood, however many look."""
        now = self._clock.now()
        if self.serving is not None and now >= self._observed_until:
            self.serving.ask_counters()
        self._observed_until = now + _OBSERVED_S

    def warm(self) -> None:
        """A session is likely to begin soon: start rank 0's process, which imports for seconds."""
        try:
            self._rank_zero.warm_ahead()
        except (OSError, ResourceError) as error:
            _log.warning("cannot start a node ahead of its use: %s", error)

    def begin(self, seats: tuple[Seat, ...]) -> None:
        """Prepare a session in the place of the coming one."""
        self.abandon()
        self._number += 1
        self.coming = Session(
            self._number,
            seats,
            self._served,
            self._timing,
            self._clock,
            self._outbox.send,
            self._outbox.to_nodes(self._number),
            self._tell,
        )
        self.warm()
        self.coming.prepare()

    def abandon(self) -> None:
        """End the coming session, if there is one."""
        if self.coming is not None:
            self.coming.end()
            self.coming = None

    def switch(self, session: Session) -> None:
        """The serving session makes room for the prepared one, which fails if rank 0 cannot be started."""
        self.end_serving()
        self.coming, self.serving = None, session
        keys = CurveKeys.generate()
        self._hub.admission.admit(keys.public, node_name(0, session.number))
        for rank, key in session.keys.items():
            self._hub.admission.admit(key, node_name(rank, session.number))
        try:
            self._rank_zero.start(session.number, keys, session.seats[0].planned_bytes)
        except (OSError, ResourceError) as error:
            session.fail(ResourceError(f"cannot start a node: {error}"))
            return
        session.launch(keys.public, self._overruled(session))

    def distrust(self, session: Session) -> None:
        """Workers of the session gave up over each other: let nothing pass between workers alone for a while."""
        self._distrust.quarrelled(session.quarrel, self._clock.now())

    def end_serving(self) -> None:
        """End the nodes of the serving session, if there is one."""
        session, self.serving = self.serving, None
        if session is None:
            return
        names = [node_name(rank, session.number) for rank in range(len(session.seats))]
        for name in names:
            self._outbox.send(Shutdown(session.number), name)
        self._rank_zero.stop(_GRACE_S)
        session.end()
        for name in names:
            self._hub.admission.revoke(name)
            self._hub.disconnect(name)

    def cancel(self, request: str) -> None:
        """Tell rank 0 that nobody waits for the request any more. From any thread."""
        serving = self.serving
        if serving is not None:
            self._hub.post(Cancel(serving.number, request), to=node_name(0, serving.number))

    def _overruled(self, session: Session) -> str:
        """Why the session's all-reduces go by the star, whatever the user wants; "" where they need not."""
        if len(session.seats) <= 2 or self._served.collective == "star":
            return ""
        return self._distrust.reason(self._clock.now())

    def close(self) -> None:
        """End everything, without waiting for the nodes."""
        for session in self.sessions:
            session.end()
        self._rank_zero.close()
