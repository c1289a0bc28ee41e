"""One epoch of a cluster as its master sees it: which node gets what when, and how a loss is told.

Life of an epoch's start: every node says Hello and gets its part of the plan; those that others connect to answer with
the address of their data endpoint; once all that a node connects to listen, it is told where. A loss is told to all
nodes and becomes one event for the caller. No socket and no thread here: whoever owns the hub hands messages in and
passes on what is posted.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence

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
from tpiedge.nodes.addresses import check_endpoint
from tpiedge.nodes.hearsay import hearsay
from tpiedge.nodes.linking import connects_to, listens
from tpiedge.nodes.membership import Loss, Member, Membership, State
from tpiedge.wire.control import (
    Accused,
    Assign,
    Connect,
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

__all__ = ["Epoch", "Event"]

Event = Message | TpiedgeError
"""What a node said, or the error that ends the epoch."""

_OWN_FAULTS: Mapping[str, type[TpiedgeError]] = {
    "UserError": UserError,
    "OutOfMemory": OutOfMemory,
    "ReadFault": ResourceError,
    "IntegrityError": ResourceError,
    "InternalError": InternalError,
}
"""Failures of a node that are better shown as what they are than as a lost node."""
#: More than a node needs to open a port; the others wait for that longer.
_LISTEN_S = 60.0
_OF_RANK_0 = re.compile(r"node[- ]0\b")


class Epoch:
    """Not thread-safe: one thread calls everything but the properties.

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
        tell: Callable[[Event], None],
    ) -> None:
        self.number = number
        self._clock = clock
        self._membership = membership
        self._assign = assign
        self._post = post
        self._tell = tell
        #: Who is yet to say where it listens (and since when), where the others do, and to whom each is yet to be
        #: connected.
        self._listeners: dict[int, float] = {}
        self._endpoints: dict[int, str] = {}
        self._unconnected: dict[int, range] = {}
        #: The nodes that gave up over another one, and what they said.
        self._reports: dict[int, str] = {}
        self._at_odds: set[int] = set()
        self._started = False
        #: The nodes that broke the protocol, and how.
        self.offences: dict[int, str] = {}

    @property
    def members(self) -> tuple[Member, ...]:
        return self._membership.members

    @property
    def bereft(self) -> Collection[int]:
        """The nodes that gave up over the loss of another one."""
        return self._reports.keys()

    @property
    def at_odds(self) -> Collection[int]:
        """The nodes that gave up over what may be another worker's doing, or their own: only the two know."""
        return self._at_odds

    @property
    def all_ready(self) -> bool:
        """Whether every node has its weights and none is lost."""
        return self._membership.all_in(State.READY)

    def handle(self, rank: int, message: Message) -> None:
        """A message of the node `rank`. What it must not send costs it its place."""
        try:
            self._dispatch(rank, message)
        except ProtocolError as error:
            self.offend(rank, str(error))

    def lose(self, rank: int, cause: str) -> None:
        """The node's link or its machine failed."""
        self._announce(self._membership.lose(rank, cause))

    def offend(self, rank: int, cause: str) -> None:
        """The node broke the protocol."""
        self.lose(rank, cause)  # first: it knows which ranks there are
        self.offences.setdefault(rank, hearsay(cause))

    def ended(self, rank: int, cause: str) -> None:
        """The node's process ended. That it gave up over another node says more than its exit status, and rank 0, which
        the master started itself, is believed whom it gave up over."""
        report = self._reports.get(rank)
        missed = PeerLost.read(report) if report and rank == 0 else None
        if missed is not None and 0 < missed.rank < len(self._membership.members):
            self.lose(missed.rank, missed.cause)
        self.lose(rank, f"it gave up, because {report}" if report else cause)

    def tick(self) -> None:
        """Look for silent nodes, then tell all how everyone does."""
        now = self._clock.now()
        self._announce(self._membership.tick(now))
        for rank, since in list(self._listeners.items()):
            if now - since >= _LISTEN_S:
                del self._listeners[rank]
                self.lose(rank, f"it did not say where it listens within {_LISTEN_S:.0f} s")
        self._pulse()

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
                self._assign_to(rank)
            case Listening(endpoint=endpoint):
                self._listens(rank, endpoint)
            case Heartbeat(step=step, block=block, bytes_read=bytes_read):
                self._membership.heartbeat(rank, step, block, bytes_read, now)
            case Loading():
                self._membership.reach(rank, State.LOADING, now)
                self._tell(message)
            case Ready():
                self._membership.reach(rank, State.READY, now)
                self._started = self.all_ready
                self._tell(message)
            case Failed(request=request, kind=kind) if rank or not request or kind not in _OWN_FAULTS:
                self._node_failed(rank, message)
            case Stats():
                self._tell(message)
            case Accused(guilty=guilty, cause=cause) if rank == 0:
                self.offend(guilty, cause)
            case Failed() | Token() | PromptScores() | Finished() if rank == 0:
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

    def _listens(self, rank: int, endpoint: str) -> None:
        if rank not in self._listeners:
            raise ProtocolError("it says that it listens, where nobody is to connect to it or it has said so")
        del self._listeners[rank]
        self._endpoints[rank] = check_endpoint(endpoint)
        self._connect()

    def _connect(self) -> None:
        """Tell those nodes where to connect to of which all others listen."""
        for rank, others in list(self._unconnected.items()):
            if all(other in self._endpoints for other in others):
                del self._unconnected[rank]
                self._post(Connect(self.number, tuple((o, self._endpoints[o]) for o in others)), rank)

    def _node_failed(self, rank: int, failed: Failed) -> None:
        """A node reports why it ends. That it lost a peer is no news of its own as long as the peer is found apart."""
        if failed.kind in _OWN_FAULTS:
            self._membership.lose(rank, hearsay(failed.message))
            self._tell(_OWN_FAULTS[failed.kind](hearsay(failed.message)))
            return
        if failed.kind in ("PeerLost", "Misconduct"):
            # Whom a node other than rank 0 accuses, only its own word speaks against.
            self._reports[rank] = hearsay(failed.message)
            if rank and self._is_of_a_worker(rank, failed.message):
                self._at_odds.add(rank)
            return
        if failed.kind == "ProtocolError" and self._started:
            # What it was given to add up was wrong, and it cannot tell by whom.
            self._reports[rank] = hearsay(failed.message)
            self._at_odds.add(rank)
        self.lose(rank, f"{failed.kind}: {failed.message}")

    def _is_of_a_worker(self, rank: int, message: str) -> bool:
        """Whether the node `rank` speaks of another one than rank 0 and itself."""
        missed = PeerLost.read(message)
        if missed is not None:
            return missed.rank not in (0, rank) and missed.rank < len(self._membership.members)
        return _OF_RANK_0.match(message) is None

    def _announce(self, losses: Sequence[Loss]) -> None:
        for loss in losses:
            cause = hearsay(
                loss.cause
            )  # a cause that is too long for a message must not keep the loss from being told
            for member in self._present():
                self._post(Lost(self.number, loss.rank, cause), member)
            doing = "the work" if self._started else "the start"
            self._tell(PeerLost(loss.rank, doing, cause))

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
            self._post(Pulse(self.number, peers), rank)

    def _present(self) -> list[int]:
        absent = (State.STARTING, State.LOST)
        return [member.rank for member in self._membership.members if member.state not in absent]
