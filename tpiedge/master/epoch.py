"""One epoch's nodes as the master sees them. No socket, no thread. Every node says Hello and gets its part. A node that
listens answers with its address. Once all nodes listen, they get the addresses."""

import re
from collections.abc import Callable, Mapping
from dataclasses import InitVar, dataclass
from enum import StrEnum

from tpiedge.clock import Clock
from tpiedge.errors import (
    ChildLost,
    GrammarRefused,
    InternalError,
    OutOfMemory,
    PeerLost,
    ProtocolError,
    ResourceError,
    TpiedgeError,
    UserError,
)
from tpiedge.host.addresses import check_endpoint, endpoint_at
from tpiedge.launch.bootstrap import Timing
from tpiedge.planner.network import connects_to, listens
from tpiedge.sanitise import sanitised_line
from tpiedge.wire import control
from tpiedge.wire.fields import Message

EpochEvent = Message | TpiedgeError  # a message of a node, or the end of the epoch

#: Errors of a node that the user sees unchanged, not as a lost node.
_OWN_FAULTS: Mapping[str, type[TpiedgeError]] = {
    **{kind.__name__: kind for kind in (UserError, GrammarRefused, ChildLost, OutOfMemory, InternalError)},
    **dict.fromkeys(("ReadFault", "IntegrityError"), ResourceError),
}
_UNSAID = "it did not say why"
_OF_RANK_0 = control.AnswerPart | control.Finished | control.Compiled | control.Failed | control.Halted


class NodeState(StrEnum):
    STARTING = "starting"
    JOINED = "joined"
    LOADING = "loading"
    READY = "ready"
    LOST = "lost"


@dataclass
class Member:
    """A node of the epoch. Times are seconds on the caller's clock."""

    rank: int
    state: NodeState
    heard: float
    step: int = 0
    block: int = 0
    bytes_read: int = 0
    assigned_at: float | None = None  # when it got its part, until it says where it listens
    endpoint: str = ""  # where it listens
    peers: range | None = None  # the ranks that it is still to connect to
    #: Whether the node ended by itself, broke the protocol or hung. Silence and a lost link or machine do not count.
    failed: bool = False
    gave_up: str = ""  # why it gave up over another node
    disputes: bool = False  # it gave up over a worker, and either may be at fault
    breach: str = ""  # how it broke the protocol


@dataclass(eq=False)
class Epoch:
    """Belongs to one thread. No method blocks. A node's states are STARTING, JOINED, LOADING and READY, in this order.
    A node of any state may become LOST, for good. `_assign(rank)` returns a node's part. `_emit` gets events."""

    number: int
    _clock: Clock
    nodes: InitVar[int]
    _timing: Timing
    _assign: Callable[[int], control.Assign]
    _post: Callable[[Message, int], None]
    _emit: Callable[[EpochEvent], None]
    started: bool = False  # every node was ready

    def __post_init__(self, nodes: int) -> None:
        now = self._clock.now()
        self.members = tuple(Member(rank, NodeState.STARTING, now) for rank in range(nodes))

    @property
    def all_ready(self) -> bool:
        return all(member.state is NodeState.READY for member in self.members)

    def handle(self, rank: int, message: Message, source: str = "") -> None:
        """Handles a message from IP `source`. A breach marks the node as lost."""
        try:
            self._dispatch(rank, message, source)
        except ProtocolError as error:
            self.broke_protocol(rank, str(error))

    def mark_lost(self, rank: int, cause: str) -> None:
        """Marks the node as lost, once. Raises ProtocolError for an unknown rank."""
        member = self._member(rank)
        if member.state is NodeState.LOST:
            return
        member.state, cause = NodeState.LOST, sanitised_line(cause)  # cut: it must fit into a message
        for other in self._present():
            self._post(control.Lost(self.number, rank, cause), other)
        self._emit(PeerLost(rank, "the work" if self.started else "the start", cause))

    def fail(self, rank: int, cause: str) -> None:
        self._member(rank).failed = True
        self.mark_lost(rank, cause)

    def broke_protocol(self, rank: int, cause: str) -> None:
        self.fail(rank, cause)  # first: it checks the rank
        self.members[rank].breach = self.members[rank].breach or sanitised_line(cause) or _UNSAID

    def ended(self, rank: int, cause: str) -> None:
        if not self._explained(rank):  # its own report explains more than an exit status
            self.fail(rank, cause)

    def _explained(self, rank: int) -> bool:
        """Marks a node as lost if it told why it gave up; returns whether it told. A peer that rank 0 blames is marked
        first."""
        report = self._member(rank).gave_up
        missed = PeerLost.read(report) if report and rank == 0 else None
        if missed is not None and 0 < missed.rank < len(self.members):
            self.mark_lost(missed.rank, missed.cause)
        if report:
            self.mark_lost(rank, f"it gave up, because {report}")
        return bool(report)

    def tick(self, *, own_stall: bool = False) -> None:
        """Marks silent nodes as lost, unless `own_stall`. Sends progress to all nodes."""
        now, timing = self._clock.now(), self._timing
        for member in () if own_stall else self.members:
            silent_s = now - member.heard
            if member.state is NodeState.STARTING:
                limit_s, cause = timing.start_s, f"it did not start within {timing.start_s:.0f} s"
            else:
                # While nodes start, more processes than cores import, read and allocate at once, and no request runs.
                limit_s = timing.timeout_s * (1 if member.state is NodeState.READY else 6)
                cause = f"silent for {silent_s:.1f} s (killed, frozen or cut off)"
            if silent_s > limit_s and not self._explained(member.rank):
                self.mark_lost(member.rank, cause)
        for member in self.members:
            if member.assigned_at is not None and now - member.assigned_at >= 60.0:
                self.mark_lost(member.rank, "it did not say where it listens within 60 s")
        peers = tuple(
            control.PeerPulse(one.rank, one.step, one.block, one.bytes_read, one.state.value)
            for one in self.members
        )
        for rank in self._present():
            self._post(control.Pulse(self.number, peers), rank)

    def _dispatch(self, rank: int, message: Message, source: str) -> None:
        member = self._member(rank)
        if getattr(message, "rank", rank) != rank:
            raise ProtocolError("it speaks for another node")
        match message:
            case control.Hello():
                self._reach(member, NodeState.JOINED)
                part = self._assign(rank)
                self._post(part, rank)
                if listens(rank, len(part.nodes), part.collective):
                    member.assigned_at = self._clock.now()
                if rank:
                    member.peers = connects_to(rank, len(part.nodes), part.collective)
                    self._connect()
            case control.Listening(endpoint=endpoint):
                if member.assigned_at is None:
                    raise ProtocolError(
                        "it says that it listens, where nobody is to connect to it or it has said so"
                    )
                member.assigned_at = None
                # Rank 0 runs on this machine, and may listen at any of its addresses.
                member.endpoint = endpoint_at(source if rank else "", check_endpoint(endpoint))
                self._connect()
            case control.Heartbeat():
                if member.state is NodeState.STARTING:
                    raise ProtocolError(f"node {rank} sends heartbeats before it has joined")
                if member.state is not NodeState.LOST:
                    member.heard, member.bytes_read = self._clock.now(), message.bytes_read
                    member.step, member.block = message.step, message.block
                if rank == 0 and message.reading:
                    self._emit(message)
            case control.Loading():
                self._reach(member, NodeState.LOADING)
                self._emit(message)
            case control.Ready():
                self._reach(member, NodeState.READY)
                self.started = self.all_ready
                self._emit(message)
            case control.Failed(request=request, kind=kind) if rank or not request or kind not in _OWN_FAULTS:
                self._node_failed(member, message)
            case control.Breach(offender=offender, cause=cause) if rank == 0:
                self.broke_protocol(offender, cause)
            case control.Stats() | control.StepSpans():
                self._emit(message)
            case _ if rank == 0 and isinstance(message, _OF_RANK_0):
                self._emit(message)
            case _:
                raise ProtocolError(f"it sent {type(message).__name__}, which is not a node's to send")

    def _member(self, rank: int) -> Member:
        if not 0 <= rank < len(self.members):
            raise ProtocolError(f"there is no node {rank} in a cluster of {len(self.members)}")
        return self.members[rank]

    def _reach(self, member: Member, state: NodeState) -> None:
        """Moves the node to `state`. Raises ProtocolError for a step backwards."""
        if member.state is NodeState.LOST:
            return
        order = list(NodeState)
        again = state is member.state is not NodeState.LOADING
        if again or order.index(state) < order.index(member.state):
            raise ProtocolError(f"node {member.rank} says it is {state}, but it was {member.state} already")
        member.state, member.heard = state, self._clock.now()

    def _connect(self) -> None:
        for member in self.members:
            if member.peers is not None and all(self.members[other].endpoint for other in member.peers):
                endpoints = tuple((other, self.members[other].endpoint) for other in member.peers)
                member.peers = None
                self._post(control.Connect(self.number, endpoints), member.rank)

    def _node_failed(self, member: Member, failed: control.Failed) -> None:
        """Notes why a node ends. Other methods look for a peer that the node reports as lost."""
        if failed.kind in _OWN_FAULTS:
            member.failed, member.state = True, NodeState.LOST
            self._emit(_OWN_FAULTS[failed.kind](sanitised_line(failed.message)))
        elif failed.kind in ("PeerLost", "Misconduct"):
            member.gave_up = sanitised_line(failed.message) or _UNSAID
            missed = PeerLost.read(failed.message)
            of_rank_0 = re.match(r"node[- ]0\b", failed.message)  # the master's own is trusted
            if member.rank and not of_rank_0 and (missed is None or missed.rank not in (0, member.rank)):
                member.disputes = True
        else:
            if failed.kind == "ProtocolError" and self.started:
                # It got a wrong part of a sum, and cannot tell which node sent it.
                member.gave_up, member.disputes = sanitised_line(failed.message) or _UNSAID, True
            self.fail(member.rank, failed.message)

    def _present(self) -> list[int]:
        absent = (NodeState.STARTING, NodeState.LOST)
        return [member.rank for member in self.members if member.state not in absent]
