"""Sorts one rank's messages of the tensor plane into awaited, early and late messages.

Early messages are held up to a limit. Late messages are dropped. A message raises Misconduct if it names another rank
as its sender. A message that its sender is not allowed to send also raises Misconduct.
"""

from collections.abc import Container, Iterable, Iterator, Sequence, Set
from typing import Final

from tpiedge.collectives.codec import Shape, read_array
from tpiedge.collectives.communicator import Doing, Liveness, Tag
from tpiedge.collectives.summation import Summable
from tpiedge.errors import Misconduct, PeerLost, ProtocolError
from tpiedge.transport.endpoint import (
    TENSOR,
    Buffer,
    Endpoint,
    Envelope,
    LinkReset,
    MalformedMessage,
    Unreachable,
    frame_of,
)
from tpiedge.units import MIB
from tpiedge.wire.data import Gathered, Hidden, PageOrders, Partial, Reduced, Slice, StepPlan
from tpiedge.wire.epochs import Echo, Probe
from tpiedge.wire.fields import Message, SummandPrecision

#: Most messages held of one rank. The protocol lets a rank be ahead by the all-reduces under way.
MAX_HELD: Final = 64
MAX_HELD_BYTES: Final = 32 * MIB
_SLICE_S: Final = 0.05
# Messages taken in at once.
_BURST: Final = 4096

DataMessage = StepPlan | PageOrders | Hidden | Partial | Reduced | Gathered | Slice
_Key = tuple[type, int, int, int, int, int]
"""The message's kind, step, block, chunk, hop and sender's rank."""


def _check_choices(rank: int, said: int, chose: tuple[int, int], tag: Tag) -> None:
    if said != chose[1]:
        raise Misconduct(
            rank,
            f"node {rank} chose other experts than node {chose[0]} in {tag}: install the same tpiedge on both "
            "machines; if they have the same, test their memory",
        )


def node_name(rank: int) -> str:
    return f"node-{rank}"


class PeerChannel:
    """One rank's messages in one epoch. The caller closes `endpoint`."""

    def __init__(self, endpoint: Endpoint, liveness: Liveness, *, epoch: int, rank: int, size: int) -> None:
        self.rank: Final = rank
        self.size: Final = size
        self.epoch: Final = epoch
        self.endpoint: Final = endpoint
        self.peers: Final = tuple(peer for peer in range(size) if peer != rank)
        self._liveness = liveness
        self._ranks = {node_name(peer): peer for peer in self.peers}
        self._held: dict[_Key, Envelope] = {}
        self._step = 0
        #: Ranks whose links are needed for steps; links to other ranks may break and come back.
        self.needed: Set[int] = set(self.peers)
        self.dropped = 0

    @property
    def holds(self) -> bool:
        return bool(self._held)

    def send(
        self, message: Message, tensor: Buffer | None, ranks: Sequence[int], what: Doing, sent: int = 0
    ) -> None:
        """Sends to `ranks` in order, but not to the first `sent` of them. Raises PeerLost, ProtocolError."""
        waiting = ranks[sent:]
        if not waiting:
            return
        frame = frame_of(message, tensor, TENSOR)
        names = [node_name(rank) for rank in waiting]
        while names:
            try:
                self.endpoint.send_frame(frame, names, 0.05)
                return
            except Unreachable as error:
                done = names.index(error.peer)
                self._liveness.check(waiting[done], str(what))
                # The ranks before it have the message.
                names, waiting = names[done:], waiting[done:]

    def start_step(self, step: int) -> None:
        self._step = step
        late = [key for key in self._held if key[1] < step]
        self.dropped += len(late)
        for key in late:
            del self._held[key]

    def collect(
        self,
        kind: type,
        tag: Tag,
        ranks: Iterable[int],
        what: Doing,
        shape: Shape | list[Shape],
        wire: SummandPrecision | None = None,
        hop: int = 0,
    ) -> Iterator[tuple[int, Summable | None, Message]]:
        """Yields (rank, tensor, message) as messages arrive. `shape`: the shape for all ranks, or a list by rank.
        Raises PeerLost, ProtocolError. All ranks that choose experts must have chosen the same."""
        missing: dict[_Key, int] = {(kind, *tag.place, hop, rank): rank for rank in ranks}
        chose = self.rank, tag.choices
        while missing:
            here = next((key for key in self._held if key in missing), None)
            if here is not None:
                rank, envelope = missing.pop(here), self._held.pop(here)
                if said := getattr(envelope.message, "choices", 0):
                    chose = chose if chose[1] else (rank, said)
                    _check_choices(rank, said, chose, tag)
                expected = shape[rank] if isinstance(shape, list) else shape
                yield rank, read_array(envelope, rank, expected, wire), envelope.message
            elif not self._receive(what, missing):
                # A peer may send late messages without end.
                for rank in sorted(missing.values()):
                    self._liveness.check(rank, str(what))

    def next_plan(self) -> StepPlan | PageOrders:
        """Waits for the next plan, without a time limit."""
        what = f"the plan of the step after {self._step}"
        while True:
            plans = [key for key in self._held if key[0] in (StepPlan, PageOrders) and key[1] > self._step]
            if plans:
                plan = self._held.pop(min(plans, key=lambda key: key[1])).message
                assert isinstance(plan, StepPlan | PageOrders)
                self.start_step(plan.step)
                return plan
            if not self._receive(what):
                for peer in sorted(self.needed):
                    self._liveness.check_idle(peer, what)

    def take_in(self, what: str) -> None:
        """Receives waiting messages. Does not wait."""
        for _ in range(_BURST):
            if self._receive(what, timeout_s=0.0) is None:
                return

    def _receive(
        self, what: object, awaited: Container[_Key] = (), timeout_s: float = _SLICE_S
    ) -> bool | None:
        """Receives one message. Returns whether the message is held, or None if no message came."""
        try:
            envelope = self.endpoint.recv(timeout_s)
        except LinkReset as error:
            rank = self._rank(error.peer)
            if rank not in self.needed:
                return None
            # Messages under way are lost; only a new epoch sends them again.
            raise PeerLost(rank, str(what), f"its connection {error.broke}") from error
        except MalformedMessage as error:
            raise Misconduct(self._rank(error.peer), str(error)) from error
        if envelope is None:
            return None
        key = self._key(envelope)
        if key is None:
            return False
        if key in self._held:
            raise Misconduct(key[-1], f"node {key[-1]} sent {envelope.message} twice")
        self._held[key] = envelope
        if key not in awaited:
            self._check_ahead(key[-1])
        return True

    def _key(self, envelope: Envelope) -> _Key | None:
        """Returns the message's key, or None if the message is late. Counts late messages."""
        rank = self._rank(envelope.sender)
        message = envelope.message
        if isinstance(message, Probe | Echo):
            self.dropped += 1  # late, of the survey of the links
            return None
        if not isinstance(message, DataMessage):
            raise Misconduct(rank, f"node {rank} sent {type(message).__name__} on the tensor plane")
        if message.epoch != self.epoch or message.step < self._step:
            self.dropped += 1
            return None
        if getattr(message, "sender", rank) != rank:
            raise Misconduct(rank, f"node {rank} speaks for another node: {message}")
        if (rank != 0 and isinstance(message, StepPlan | PageOrders | Hidden)) or (
            self.rank == 0 and isinstance(message, Reduced)
        ):
            raise Misconduct(rank, f"node {rank} sent {type(message).__name__}, which only node 0 may send")
        block, chunk, hop = (int(getattr(message, field, 0)) for field in ("block", "chunk", "hop"))
        return type(message), message.step, block, chunk, hop, rank

    def _check_ahead(self, rank: int) -> None:
        ahead = [held.tensor for (*_, sender), held in self._held.items() if sender == rank]
        nbytes = sum(tensor.nbytes for tensor in ahead if tensor is not None)
        if len(ahead) > MAX_HELD or nbytes > MAX_HELD_BYTES:
            raise Misconduct(
                rank, f"node {rank} is too far ahead: {len(ahead)} messages that are not awaited yet"
            )

    def _rank(self, name: str) -> int:
        rank = self._ranks.get(name)
        if rank is None:
            raise ProtocolError(f"{name} has no rank in epoch {self.epoch}")
        return rank
