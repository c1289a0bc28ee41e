"""The master's control thread: it owns the hub, keeps the membership and passes events on.

Life of a cluster's start: every node says Hello; rank 0 gets its part of the plan and answers with the address of its
data endpoint; then the others get theirs. Every heartbeat interval the thread looks for dead or silent nodes and tells
all nodes how everyone does. A loss is told to all and becomes one event for the caller.
"""

import queue
import threading
from collections.abc import Callable, Mapping, Sequence

from tpiedge.clock import Clock
from tpiedge.errors import (
    InternalError,
    OutOfMemory,
    PeerLost,
    ProtocolError,
    ResourceError,
    TpiedgeError,
    UserError,
)
from tpiedge.nodes.membership import Loss, Membership, State
from tpiedge.transport.endpoint import Endpoint, EndpointClosed, Envelope, LinkReset, MalformedMessage
from tpiedge.wire.control import (
    Assign,
    Failed,
    Finished,
    Heartbeat,
    Hello,
    Listening,
    Loading,
    Lost,
    PeerPulse,
    PromptScores,
    Pulse,
    Ready,
    Stats,
    Token,
)
from tpiedge.wire.messages import PROTOCOL, Message

__all__ = ["Controller"]

_OWN_FAULTS: Mapping[str, type[TpiedgeError]] = {
    "UserError": UserError,
    "OutOfMemory": OutOfMemory,
    "ReadFault": ResourceError,
    "IntegrityError": ResourceError,
    "InternalError": InternalError,
}
"""Failures of a node that are better shown as what they are than as a lost node."""


class Controller:
    """Runs between `start` and `close`; `events` are messages of the nodes, or the error that ends the cluster.

    `assign(rank, root_endpoint)` makes a node's part of the plan; `exit_causes()` says which processes have ended.
    """

    def __init__(
        self,
        hub: Endpoint,
        clock: Clock,
        membership: Membership,
        epoch: int,
        heartbeat_s: float,
        assign: Callable[[int, str], Assign],
        exit_causes: Callable[[], Sequence[str | None]],
    ) -> None:
        self.events: queue.Queue[Message | TpiedgeError] = queue.Queue()
        self._hub = hub
        self._clock = clock
        self._membership = membership
        self._epoch = epoch
        self._heartbeat_s = heartbeat_s
        self._assign = assign
        self._exit_causes = exit_causes
        self._root_endpoint = ""
        self._assigned: set[int] = set()
        self._reports: dict[int, str] = {}
        self._started = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="controller", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    @property
    def all_ready(self) -> bool:
        """Whether every node has its weights and none is lost."""
        return self._membership.all_in(State.READY)

    def close(self) -> None:
        """End the thread. What was posted before is sent."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        due = self._clock.now()
        while not self._closing.is_set():
            try:
                # When this thread itself was held up, heartbeats are waiting: hear them all before judging silence.
                while (envelope := self._hub.recv(max(0.0, due - self._clock.now()))) is not None:
                    self._handle(envelope)
                due = self._clock.now() + self._heartbeat_s
                self._watch()
                self._pulse()
            except (MalformedMessage, LinkReset) as error:
                self._lose(self._membership.lose(_rank(error.peer), str(error)))
            except EndpointClosed:
                return
            except TpiedgeError as error:
                self.events.put(error)
                return
            except Exception as error:
                self.events.put(InternalError(f"the control thread failed: {type(error).__name__}: {error}"))
                return

    def _handle(self, envelope: Envelope) -> None:
        rank = _rank(envelope.sender)
        try:
            self._dispatch(rank, envelope.message)
        except ProtocolError as error:
            self._lose(self._membership.lose(rank, str(error)))

    def _dispatch(self, rank: int, message: Message) -> None:
        now = self._clock.now()
        if getattr(message, "rank", rank) != rank:
            raise ProtocolError("it speaks for another node")
        match message:
            case Hello(protocol=protocol):
                if protocol != PROTOCOL:
                    raise ProtocolError(
                        f"it speaks protocol {protocol}, this master {PROTOCOL}: update tpiedge on both"
                    )
                self._membership.reach(rank, State.JOINED, now)
                self._assign_joined()
            case Listening(endpoint=endpoint) if rank == 0:
                self._root_endpoint = endpoint
                self._assign_joined()
            case Heartbeat(step=step, block=block, bytes_read=bytes_read):
                self._membership.heartbeat(rank, step, block, bytes_read, now)
            case Loading():
                self._membership.reach(rank, State.LOADING, now)
                self.events.put(message)
            case Ready():
                self._membership.reach(rank, State.READY, now)
                self._started = self.all_ready
                self.events.put(message)
            case Failed(request=request, kind=kind) if not request or kind not in _OWN_FAULTS:
                self._node_failed(rank, message)
            case Failed() | Token() | PromptScores() | Finished() | Stats():
                self.events.put(message)
            case _:
                raise ProtocolError(f"it sent {type(message).__name__}, which is not a node's to send")

    def _assign_joined(self) -> None:
        """Rank 0 gets its part when it joins, the others once rank 0 listens (a single node needs no listener)."""
        for member in self._membership.members:
            has_root = member.rank == 0 or self._root_endpoint
            if has_root and member.state is State.JOINED and member.rank not in self._assigned:
                self._assigned.add(member.rank)
                self._hub.send(self._assign(member.rank, self._root_endpoint), to=f"node-{member.rank}")

    def _node_failed(self, rank: int, failed: Failed) -> None:
        """A node reports why it ends. That it lost a peer is no news of its own as long as the peer is found apart."""
        if failed.kind in _OWN_FAULTS:
            self._membership.lose(rank, failed.message)
            self.events.put(_OWN_FAULTS[failed.kind](failed.message))
        elif failed.kind == "PeerLost":
            self._reports[rank] = failed.message
        else:
            self._lose(self._membership.lose(rank, f"{failed.kind}: {failed.message}"))

    def _watch(self) -> None:
        for rank, cause in enumerate(self._exit_causes()):
            if cause is not None and not self._closing.is_set():
                report = self._reports.get(rank)
                self._lose(self._membership.lose(rank, f"it gave up, because {report}" if report else cause))
        self._lose(self._membership.tick(self._clock.now()))

    def _lose(self, losses: Sequence[Loss]) -> None:
        for loss in losses:
            for member in self._present():
                self._hub.post(Lost(self._epoch, loss.rank, loss.cause), to=f"node-{member}")
            doing = "the work" if self._started else "the start"
            self.events.put(PeerLost(loss.rank, doing, loss.cause))

    def _pulse(self) -> None:
        now = self._clock.now()
        peers = tuple(
            PeerPulse(
                member.rank,
                max(0, round((now - member.heard) * 1000)),
                member.step,
                member.block,
                member.bytes_read,
                member.state.value,
            )
            for member in self._membership.members
        )
        for rank in self._present():
            self._hub.post(Pulse(self._epoch, peers), to=f"node-{rank}")

    def _present(self) -> list[int]:
        absent = (State.STARTING, State.LOST)
        return [member.rank for member in self._membership.members if member.state not in absent]


def _rank(peer: str) -> int:
    return int(peer.removeprefix("node-"))
