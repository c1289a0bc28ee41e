"""Sorts one rank's messages of the tensor plane: awaited now, too early (held up to a limit), too late (dropped).

A message that speaks for another rank, or that its rank never sends, ends the wait. Liveness is asked every 50 ms.
"""

from collections.abc import Iterable, Iterator, Sequence, Set
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
from tpiedge.wire.data import Gathered, Hidden, LeavePages, Partial, Reduced, Slice, StepPlan
from tpiedge.wire.epochs import Echo, Probe
from tpiedge.wire.fields import Message, SummandPrecision

#: For each rank. The protocol lets it be ahead by the all-reduces under way.
MAX_HELD: Final = 64
MAX_HELD_BYTES: Final = 32 * MIB
_SLICE_S: Final = 0.05
# Messages taken in at once.
_BURST: Final = 4096

DataMessage = StepPlan | LeavePages | Hidden | Partial | Reduced | Gathered | Slice
_Key = tuple[type, int, int, int, int, int]
"""Kind, step, block, chunk, hop, rank of the sender."""
_Sorted = tuple[_Key | None, Envelope]
"""A message and its key; None where it is too late."""


def node_name(rank: int) -> str:
    return f"node-{rank}"


class PeerChannel:
    """One rank of `size` in one epoch. `endpoint` stays the caller's, who closes it."""

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
        #: Ranks whose links steps need; others may break and come back.
        self.needed: Set[int] = set(self.peers)
        self.dropped = 0

    @property
    def holds(self) -> bool:
        return bool(self._held)

    def send(
        self, message: Message, tensor: Buffer | None, ranks: Sequence[int], what: Doing, sent: int = 0
    ) -> None:
        """Sends to `ranks` in this order, but for the first `sent`. Raises PeerLost, ProtocolError."""
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
                # Earlier ones have the message.
                names, waiting = names[done:], waiting[done:]

    def begin(self, step: int) -> None:
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
        """Yields one message of `kind` from each of `ranks`, as they arrive: rank, tensor (`read_array`), message. A
        list has the shape for each rank. Raises PeerLost, ProtocolError (Misconduct if one rank is to blame)."""
        missing = set(ranks)
        place = (kind, *tag, hop)
        early = [rank for rank in ranks if (*place, rank) in self._held] if self._held else []
        while missing:
            if early:
                rank = early.pop()
                envelope = self._held.pop((*place, rank))
            else:
                received = self._receive(what)
                if received is None or (key := received[0]) is None:
                    # A peer may send late messages without end.
                    for rank in sorted(missing):
                        self._liveness.check(rank, str(what))
                    continue
                rank, envelope = key[-1], received[1]
                if key[:-1] != place or rank not in missing:
                    self._hold(key, envelope)
                    continue
            missing.discard(rank)
            expected = shape[rank] if isinstance(shape, list) else shape
            yield rank, read_array(envelope, rank, expected, wire), envelope.message

    def next_plan(self) -> StepPlan | LeavePages:
        """Waits for rank 0's next plan, however long it is idle."""
        what = f"the plan of the step after {self._step}"
        while True:
            plans = [key for key in self._held if key[0] in (StepPlan, LeavePages) and key[1] > self._step]
            if plans:
                plan = self._held.pop(min(plans, key=lambda key: key[1])).message
                assert isinstance(plan, StepPlan | LeavePages)
                self.begin(plan.step)
                return plan
            received = self._receive(what)
            if received is None or received[0] is None:
                for peer in sorted(self.needed):
                    self._liveness.check_idle(peer, what)
            else:
                self._hold(received[0], received[1])

    def take_in(self, what: str) -> None:
        """Receives what has come already, so that it does not pile up. Does not wait."""
        for _ in range(_BURST):
            received = self._receive(what, 0.0)
            if received is None:
                return
            if received[0] is not None:
                self._hold(received[0], received[1])

    def _receive(self, what: object, timeout_s: float = _SLICE_S) -> _Sorted | None:
        """Returns None without a message, or if a link broke that no step needs."""
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
        return None if envelope is None else (self._key(envelope), envelope)

    def _key(self, envelope: Envelope) -> _Key | None:
        """Returns None, and counts, if the message is too late."""
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
        if (rank != 0 and isinstance(message, StepPlan | LeavePages | Hidden)) or (
            self.rank == 0 and isinstance(message, Reduced)
        ):
            raise Misconduct(rank, f"node {rank} sent {type(message).__name__}, which only node 0 may send")
        block, chunk, hop = (int(getattr(message, field, 0)) for field in ("block", "chunk", "hop"))
        return type(message), message.step, block, chunk, hop, rank

    def _hold(self, key: _Key, envelope: Envelope) -> None:
        rank = key[-1]
        if key in self._held:
            raise Misconduct(rank, f"node {rank} sent {envelope.message} twice")
        self._held[key] = envelope
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
