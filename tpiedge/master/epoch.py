"""One epoch of a cluster as its master sees it: what is sent to each node, and how a loss is announced.

How an epoch starts: every node says Hello and gets its part of the plan; a node that others connect to answers with the
address of its data endpoint; once all peers of a node listen, the node gets their addresses. A loss is announced to all
nodes and becomes one event for the caller. No socket and no thread here: the owner of the hub passes messages in and
sends what is posted.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence

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
from tpiedge.master.membership import Loss, Member, Membership, NodeState
from tpiedge.planner.linking import connects_to, listens
from tpiedge.sanitise import sanitised_line
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
from tpiedge.wire.messages import PROTOCOL, Message

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
#: A node needs less to open a port; the other nodes wait longer than this for its address.
_LISTEN_S = 60.0
_OF_RANK_0 = re.compile(r"node[- ]0\b")


class Epoch:
    """Not thread-safe: one thread calls everything but the properties. Nothing here blocks.

    `assign(rank)` makes a node's part of the plan; `post(message, rank)` sends without waiting;
    `tell(event)` hands an event to the caller.
    """

    def __init__(
        self,
        number: int,
        clock: Clock,
        membership: Membership,
        assign: Callable[[int], Assign],
        post: Callable[[Message, int], None],
        tell: Callable[[EpochEvent], None],
    ) -> None:
        self.number = number
        self._clock = clock
        self._membership = membership
        self._assign = assign
        self._post = post
        self._tell = tell
        #: Nodes that have not said yet where they listen, with the time since when that is awaited; the addresses of
        #: those that have; for each node without its peers' addresses, the ranks that it connects to.
        self._listeners: dict[int, float] = {}
        self._endpoints: dict[int, str] = {}
        self._unconnected: dict[int, range] = {}
        #: The error of each node that gave up over another one.
        self._reports: dict[int, str] = {}
        self._disputing: set[int] = set()
        self._started = False
        #: Nodes of which it is known that they ended by themselves, broke the protocol or hang: none that only fell
        #: silent, or was cut off with its link or its machine.
        self.failed: set[int] = set()
        #: How each node that broke the protocol did so.
        self.breaches: dict[int, str] = {}

    @property
    def members(self) -> tuple[Member, ...]:
        return self._membership.members

    @property
    def gave_up(self) -> Collection[int]:
        """The nodes that gave up over the loss of another one."""
        return self._reports.keys()

    @property
    def disputing(self) -> Collection[int]:
        """The nodes that gave up over another worker, where the master cannot tell which of the two is at fault."""
        return self._disputing

    @property
    def all_ready(self) -> bool:
        """Whether every node has loaded its weights and none is lost."""
        return self._membership.all_in(NodeState.READY)

    def handle(self, rank: int, message: Message, source: str = "") -> None:
        """Handles a message of the node `rank`, which came from the IP address `source` where that is known. A message
        that breaks the protocol loses the node."""
        try:
            self._dispatch(rank, message, source)
        except ProtocolError as error:
            self.broke_protocol(rank, str(error))

    def lose(self, rank: int, cause: str) -> None:
        """The node's link or its machine failed. Does nothing if it is lost already."""
        self._announce(self._membership.lose(rank, cause))

    def fail(self, rank: int, cause: str) -> None:
        """The node failed by itself, or hangs: it is lost."""
        self.failed.add(rank)
        self.lose(rank, cause)

    def broke_protocol(self, rank: int, cause: str) -> None:
        """The node broke the protocol: it is lost. Raises ProtocolError for a rank that does not exist."""
        self.fail(rank, cause)  # first: it checks the rank
        self.breaches.setdefault(rank, sanitised_line(cause))

    def ended(self, rank: int, cause: str) -> None:
        """The node's process ended.

        If it gave up over another node, that explains more than its exit status. The master started rank 0 itself and
        so believes its word: the node that rank 0 missed is lost first.
        """
        report = self._reports.get(rank)
        missed = PeerLost.read(report) if report and rank == 0 else None
        if missed is not None and 0 < missed.rank < len(self._membership.members):
            self.lose(missed.rank, missed.cause)
        if report:
            self.lose(rank, f"it gave up, because {report}")
        else:
            self.fail(rank, cause)

    def tick(self, *, excused: bool = False) -> None:
        """Looks for silent nodes, unless they are `excused`, then sends every node the progress of all."""
        now = self._clock.now()
        if not excused:
            self._announce(self._membership.tick(now))
        for rank, since in list(self._listeners.items()):
            if now - since >= _LISTEN_S:
                del self._listeners[rank]
                self.lose(rank, f"it did not say where it listens within {_LISTEN_S:.0f} s")
        self._pulse()

    def _dispatch(self, rank: int, message: Message, source: str) -> None:
        now = self._clock.now()
        if getattr(message, "rank", rank) != rank:
            raise ProtocolError("it speaks for another node")
        match message:
            case Hello(protocol=protocol):
                if protocol != PROTOCOL:
                    raise ProtocolError(
                        f"it speaks protocol {protocol}, this master {PROTOCOL}: update tpiedge on both"
                    )
                self._membership.reach(rank, NodeState.JOINED, now)
                self._assign_to(rank)
            case Listening(endpoint=endpoint):
                self._listens(rank, endpoint, source)
            case Heartbeat(step=step, block=block, bytes_read=bytes_read):
                self._membership.heartbeat(rank, step, block, bytes_read, now)
                if rank == 0 and message.reading:
                    self._tell(message)
            case Loading():
                self._membership.reach(rank, NodeState.LOADING, now)
                self._tell(message)
            case Ready():
                self._membership.reach(rank, NodeState.READY, now)
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

    def _assign_to(self, rank: int) -> None:
        part = self._assign(rank)
        size = len(part.nodes)
        self._post(part, rank)
        if listens(rank, size, part.collective):
            self._listeners[rank] = self._clock.now()
        if rank:
            self._unconnected[rank] = connects_to(rank, size, part.collective)
            self._connect()

    def _listens(self, rank: int, endpoint: str, source: str) -> None:
        if rank not in self._listeners:
            raise ProtocolError("it says that it listens, where nobody is to connect to it or it has said so")
        del self._listeners[rank]
        # Rank 0 is this machine's own, and may listen at each of its addresses.
        self._endpoints[rank] = endpoint_at(source if rank else "", check_endpoint(endpoint))
        self._connect()

    def _connect(self) -> None:
        """Sends the peers' addresses to each node whose peers all listen."""
        for rank, others in list(self._unconnected.items()):
            if all(other in self._endpoints for other in others):
                del self._unconnected[rank]
                self._post(Connect(self.number, tuple((o, self._endpoints[o]) for o in others)), rank)

    def _node_failed(self, rank: int, failed: Failed) -> None:
        """A node reports why it ends. A report that it lost a peer is only kept: that loss is found elsewhere."""
        if failed.kind in _OWN_FAULTS:
            self.failed.add(rank)
            self._membership.lose(rank, sanitised_line(failed.message))
            self._tell(_OWN_FAULTS[failed.kind](sanitised_line(failed.message)))
            return
        if failed.kind in ("PeerLost", "Misconduct"):
            # A node other than rank 0 may name any peer, so its report alone loses no other node.
            self._reports[rank] = sanitised_line(failed.message)
            if rank and self._is_of_a_worker(rank, failed.message):
                self._disputing.add(rank)
            return
        if failed.kind == "ProtocolError" and self._started:
            # It was sent a wrong part to add up, and cannot tell by which node.
            self._reports[rank] = sanitised_line(failed.message)
            self._disputing.add(rank)
        self.fail(rank, failed.message)

    def _is_of_a_worker(self, rank: int, message: str) -> bool:
        """Whether the error of the node `rank` names a node other than rank 0 and itself."""
        missed = PeerLost.read(message)
        if missed is not None:
            return missed.rank not in (0, rank) and missed.rank < len(self._membership.members)
        return _OF_RANK_0.match(message) is None

    def _announce(self, losses: Sequence[Loss]) -> None:
        for loss in losses:
            cause = sanitised_line(loss.cause)  # also cuts it, so that it fits into a message
            for member in self._present():
                self._post(Lost(self.number, loss.rank, cause), member)
            doing = "the work" if self._started else "the start"
            self._tell(PeerLost(loss.rank, doing, cause))

    def _pulse(self) -> None:
        peers = tuple(
            PeerPulse(
                member.rank,
                member.step,
                member.block,
                member.bytes_read,
                member.state.value,
            )
            for member in self._membership.members
        )
        for rank in self._present():
            self._post(Pulse(self.number, peers), rank)

    def _present(self) -> list[int]:
        absent = (NodeState.STARTING, NodeState.LOST)
        return [member.rank for member in self._membership.members if member.state not in absent]
