"""One epoch of a cluster as its master sees it: what is sent to each node, and how a loss is announced.

How an epoch starts: every node says Hello and gets its part of the plan; a node that others connect to answers with the
address of its data endpoint; once all peers of a node listen, the node gets their addresses. A loss is announced to all
nodes and becomes one event for the caller. No socket and no thread here: the owner of the hub passes messages in and
sends what is posted.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import InitVar, dataclass, field
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
from tpiedge.wire.codec import PROTOCOL
from tpiedge.wire.control import (
    Accused,
    Assign,
    Compiled,
    Connect,
    Embedding,
    Failed,
    Finished,
    Halted,
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
    StepSpans,
    Token,
)
from tpiedge.wire.fields import Message

EpochEvent = Message | TpiedgeError
"""A message of a node, or the error that ends the epoch."""

_OWN_FAULTS: Mapping[str, type[TpiedgeError]] = {
    "UserError": UserError,
    "GrammarRefused": GrammarRefused,
    "ChildLost": ChildLost,
    "OutOfMemory": OutOfMemory,
    "ReadFault": ResourceError,
    "IntegrityError": ResourceError,
    "InternalError": InternalError,
}
"""Failures of a node that the user sees as themselves instead of as a lost node."""


class NodeState(StrEnum):
    STARTING = "starting"
    JOINED = "joined"
    LOADING = "loading"
    READY = "ready"
    LOST = "lost"


@dataclass
class Member:
    """What the master knows of one node. Times are seconds on the caller's clock."""

    rank: int
    state: NodeState
    heard: float
    step: int = 0
    block: int = 0
    bytes_read: int = 0


@dataclass(eq=False)
class Epoch:
    """Not thread-safe: one thread calls everything. Nothing here blocks. Each of its `nodes` goes STARTING -> JOINED ->
    LOADING -> READY, each at most once, and to LOST from anywhere, which is final. `assign(rank)` makes a node's part
    of the plan; `post(message, rank)` sends without waiting; `tell(event)` hands an event to the caller."""

    number: int
    _clock: Clock
    nodes: InitVar[int]
    _timing: Timing
    _assign: Callable[[int], Assign]
    _post: Callable[[Message, int], None]
    _tell: Callable[[EpochEvent], None]
    #: Nodes that have not said yet where they listen; the addresses of those that have; for each node without its
    #: peers' addresses, the ranks that it connects to.
    _listeners: dict[int, float] = field(default_factory=dict)
    _endpoints: dict[int, str] = field(default_factory=dict)
    _unconnected: dict[int, range] = field(default_factory=dict)
    #: The error of each node that gave up over another one; those that gave up over a worker, where the master
    #: cannot tell which of the two is at fault.
    gave_up: dict[int, str] = field(default_factory=dict)
    disputing: set[int] = field(default_factory=set)
    _started: bool = False
    #: Nodes of which it is known that they ended by themselves, broke the protocol or hang: none that only fell
    #: silent, or was cut off with its link or its machine.
    failed: set[int] = field(default_factory=set)
    #: How each node that broke the protocol did so.
    breaches: dict[int, str] = field(default_factory=dict)

    def __post_init__(self, nodes: int) -> None:
        now = self._clock.now()
        self.members = tuple(Member(rank, NodeState.STARTING, now) for rank in range(nodes))

    @property
    def all_ready(self) -> bool:
        """Whether every node has loaded its weights and none is lost."""
        return all(member.state is NodeState.READY for member in self.members)

    def handle(self, rank: int, message: Message, source: str = "") -> None:
        """Handles a message of the node `rank`, which came from the IP address `source` where that is known. A message
        that breaks the protocol loses the node."""
        try:
            self._dispatch(rank, message, source)
        except ProtocolError as error:
            self.broke_protocol(rank, str(error))

    def lose(self, rank: int, cause: str) -> None:
        """The node's link or its machine failed. Does nothing if it is lost already. Raises ProtocolError for a rank
        that does not exist."""
        member = self._member(rank)
        if member.state is NodeState.LOST:
            return
        member.state, cause = NodeState.LOST, sanitised_line(cause)  # cut: it must fit into a message
        for other in self._present():
            self._post(Lost(self.number, rank, cause), other)
        self._tell(PeerLost(rank, "the work" if self._started else "the start", cause))

    def fail(self, rank: int, cause: str) -> None:
        """The node ended by itself, or hangs."""
        self.failed.add(rank)
        self.lose(rank, cause)

    def broke_protocol(self, rank: int, cause: str) -> None:
        self.fail(rank, cause)  # first: it checks the rank
        self.breaches.setdefault(rank, sanitised_line(cause))

    def ended(self, rank: int, cause: str) -> None:
        """The node's process ended. If it gave up over another node, that explains more than its exit status. The
        master started rank 0 itself and so believes its word: the node that rank 0 missed is lost first."""
        report = self.gave_up.get(rank)
        missed = PeerLost.read(report) if report and rank == 0 else None
        if missed is not None and 0 < missed.rank < len(self.members):
            self.lose(missed.rank, missed.cause)
        if report:
            self.lose(rank, f"it gave up, because {report}")
        else:
            self.fail(rank, cause)

    def tick(self, *, excused: bool = False) -> None:
        """Looks for silent nodes, unless they are `excused`, then sends every node the progress of all."""
        now, timing = self._clock.now(), self._timing
        for member in () if excused else self.members:
            silent_s = now - member.heard
            if member.state is NodeState.STARTING:
                limit_s, cause = timing.start_s, f"it did not start within {timing.start_s:.0f} s"
            else:
                # While nodes start, more processes than cores import, read and allocate at once, and no request runs.
                limit_s = timing.timeout_s * (1 if member.state is NodeState.READY else 6)
                cause = f"silent for {silent_s:.1f} s (killed, frozen or cut off)"
            if silent_s > limit_s:
                self.lose(member.rank, cause)
        for rank in [rank for rank, since in self._listeners.items() if now - since >= 60.0]:
            # The others wait longer for its address: theirs is not the failure.
            del self._listeners[rank]
            self.lose(rank, "it did not say where it listens within 60 s")
        peers = tuple(
            PeerPulse(one.rank, one.step, one.block, one.bytes_read, one.state.value) for one in self.members
        )
        for rank in self._present():
            self._post(Pulse(self.number, peers), rank)

    def _dispatch(self, rank: int, message: Message, source: str) -> None:
        member = self._member(rank)
        if getattr(message, "rank", rank) != rank:
            raise ProtocolError("it speaks for another node")
        match message:
            case Hello(protocol=protocol):
                if protocol != PROTOCOL:
                    raise ProtocolError(
                        f"it speaks protocol {protocol}, this master {PROTOCOL}: update tpiedge on both"
                    )
                self._reach(member, NodeState.JOINED)
                self._assign_to(rank)
            case Listening(endpoint=endpoint):
                if rank not in self._listeners:
                    raise ProtocolError(
                        "it says that it listens, where nobody is to connect to it or it has said so"
                    )
                del self._listeners[rank]
                # Rank 0 is this machine's own, and may listen at each of its addresses.
                self._endpoints[rank] = endpoint_at(source if rank else "", check_endpoint(endpoint))
                self._connect()
            case Heartbeat():
                if member.state is NodeState.STARTING:
                    raise ProtocolError(f"node {rank} sends heartbeats before it has joined")
                if member.state is not NodeState.LOST:
                    member.heard, member.bytes_read = self._clock.now(), message.bytes_read
                    member.step, member.block = message.step, message.block
                if rank == 0 and message.reading:
                    self._tell(message)
            case Loading():
                self._reach(member, NodeState.LOADING)
                self._tell(message)
            case Ready():
                self._reach(member, NodeState.READY)
                self._started = self.all_ready
                self._tell(message)
            case Failed(request=request, kind=kind) if rank or not request or kind not in _OWN_FAULTS:
                self._node_failed(rank, message)
            case Stats() | StepSpans():
                self._tell(message)
            case Accused(accused=accused, cause=cause) if rank == 0:
                self.broke_protocol(accused, cause)
            case Failed() | Token() | Compiled() | PromptScores() | Embedding() | Finished() | Halted() if (
                rank == 0
            ):
                self._tell(message)
            case _:
                raise ProtocolError(f"it sent {type(message).__name__}, which is not a node's to send")

    def _member(self, rank: int) -> Member:
        if not 0 <= rank < len(self.members):
            raise ProtocolError(f"there is no node {rank} in a cluster of {len(self.members)}")
        return self.members[rank]

    def _reach(self, member: Member, state: NodeState) -> None:
        """The node says that it is in `state`. Raises ProtocolError for a step backwards."""
        if member.state is NodeState.LOST:
            return
        order = list(NodeState)
        again = state is member.state is not NodeState.LOADING
        if again or order.index(state) < order.index(member.state):
            raise ProtocolError(f"node {member.rank} says it is {state}, but it was {member.state} already")
        member.state, member.heard = state, self._clock.now()

    def _assign_to(self, rank: int) -> None:
        part = self._assign(rank)
        size = len(part.nodes)
        self._post(part, rank)
        if listens(rank, size, part.collective):
            self._listeners[rank] = self._clock.now()
        if rank:
            self._unconnected[rank] = connects_to(rank, size, part.collective)
            self._connect()

    def _connect(self) -> None:
        for rank, others in list(self._unconnected.items()):
            if all(other in self._endpoints for other in others):
                del self._unconnected[rank]
                self._post(Connect(self.number, tuple((o, self._endpoints[o]) for o in others)), rank)

    def _node_failed(self, rank: int, failed: Failed) -> None:
        """A node reports why it ends. A report that it lost a peer is only kept: that loss is found elsewhere."""
        if failed.kind in _OWN_FAULTS:
            self.failed.add(rank)
            self.members[rank].state = NodeState.LOST
            self._tell(_OWN_FAULTS[failed.kind](sanitised_line(failed.message)))
            return
        if failed.kind in ("PeerLost", "Misconduct"):
            # A node other than rank 0 may name any peer, so its report alone loses no other node.
            self.gave_up[rank] = sanitised_line(failed.message)
            missed = PeerLost.read(failed.message)
            of_rank_0 = re.match(r"node[- ]0\b", failed.message)  # which is the master's own, and trusted
            if rank and not of_rank_0 and (missed is None or missed.rank not in (0, rank)):
                self.disputing.add(rank)
            return
        if failed.kind == "ProtocolError" and self._started:
            # It was sent a wrong part to add up, and cannot tell by which node.
            self.gave_up[rank] = sanitised_line(failed.message)
            self.disputing.add(rank)
        self.fail(rank, failed.message)

    def _present(self) -> list[int]:
        absent = (NodeState.STARTING, NodeState.LOST)
        return [member.rank for member in self.members if member.state not in absent]
