"""Messages of the tensor plane, sorted: what the current wait asks for, what comes too early, what comes
too late.

Laws: a message of another epoch or an earlier step is dropped and counted; one that is not awaited yet is
held, up to MAX_HELD messages and MAX_HELD_BYTES of each rank, whatever the others do; a message that speaks for
another rank than its connection's, or that its rank never sends, ends the wait. Every wait goes in slices, between
which liveness is asked.
"""

from collections.abc import Iterator, Mapping, Set
from typing import Final

from tpiedge.collectives.arrays import Summable
from tpiedge.collectives.codec import AnyCodec, Shape, read_array
from tpiedge.collectives.communicator import Doing, Liveness, Tag
from tpiedge.errors import Misconduct, PeerLost, ProtocolError
from tpiedge.transport.endpoint import Endpoint, Envelope, LinkReset, MalformedMessage
from tpiedge.units import MIB
from tpiedge.wire.data import Gathered, Hidden, LeavePages, Partial, Reduced, Slice, StepPlan
from tpiedge.wire.epochs import Echo, Probe
from tpiedge.wire.messages import Message

#: Of each rank. Who keeps to the protocol is ahead by the all-reduces under way.
MAX_HELD: Final = 64
MAX_HELD_BYTES: Final = 32 * MIB
_SLICE_S: Final = 0.05
# Messages that are taken in between two looks at something else.
_BURST: Final = 4096

DataMessage = StepPlan | LeavePages | Hidden | Partial | Reduced | Gathered | Slice
_Key = tuple[type, int, int, int, int, int]
"""Kind, step, block, chunk, hop, rank of the sender."""
ReceivedPart = tuple[int, Summable | None, Message]
"""A rank, its tensor (read-only; None where it has nothing to add), its message."""


class Inbox:
    """Receives for one rank of one epoch. `ranks` maps the endpoint's peer names to ranks."""

    def __init__(self, endpoint: Endpoint, ranks: Mapping[str, int], epoch: int, liveness: Liveness) -> None:
        self._endpoint = endpoint
        self._ranks = ranks
        self._is_root = 0 not in ranks.values()
        self._epoch = epoch
        self._liveness = liveness
        self._held: dict[_Key, Envelope] = {}
        self._step = 0
        #: Whose links steps need. Nothing is under way on others, which may break and come back.
        self.needed: Set[int] = set(ranks.values())
        self.dropped = 0

    @property
    def holds(self) -> bool:
        """Whether a message came before it was awaited."""
        return bool(self._held)

    def begin(self, step: int) -> None:
        """Messages of earlier steps are of no more use."""
        self._step = step
        late = [key for key in self._held if key[1] < step]
        self.dropped += len(late)
        for key in late:
            del self._held[key]

    def collect(
        self,
        kind: type,
        tag: Tag,
        ranks: set[int],
        what: Doing,
        shape: Shape | None = None,
        codec: AnyCodec | None = None,
        hop: int = 0,
    ) -> Iterator[ReceivedPart]:
        """As `await_all`, read: each tensor of `shape` (None: any matrix) as `codec` reads it (None: f32 or bf16, as it
        says itself)."""
        for rank, envelope in self.await_all(kind, tag, ranks, what, hop):
            array = read_array(envelope, rank, shape, codec) if envelope.tensors else None
            yield rank, array, envelope.message

    def await_all(
        self, kind: type, tag: Tag, ranks: set[int], what: Doing, hop: int = 0
    ) -> Iterator[tuple[int, Envelope]]:
        """One message of `kind` for `tag` from each of `ranks`, in the order of arrival.

        Raises PeerLost, ProtocolError (Misconduct where one rank is to blame), and whatever the endpoint raises.
        """
        missing = set(ranks)
        place = (kind, tag.step, tag.block, tag.chunk, hop)
        if self._held:
            for rank in ranks:
                early = self._held.pop((*place, rank), None)
                if early is not None:
                    missing.discard(rank)
                    yield rank, early
        while missing:
            envelope = self._read(*self._receive(missing, what))
            key = self._key(envelope)
            if key is None:
                self._check(missing, what)  # a peer may send nothing else, without end
            elif key[:-1] == place and key[-1] in missing:
                missing.discard(key[-1])
                yield key[-1], envelope
            else:
                self._hold(key, envelope)

    def next_plan(self, rank: int) -> StepPlan | LeavePages:
        """The next plan from `rank`, however long it has nothing to do."""
        what = f"the plan of the step after {self._step}"
        while True:
            plans = [
                key
                for key in self._held
                if key[0] in (StepPlan, LeavePages) and key[1] > self._step and key[-1] == rank
            ]
            if plans:
                plan = self._held.pop(min(plans, key=lambda key: key[1])).message
                assert isinstance(plan, StepPlan | LeavePages)
                self.begin(plan.step)
                return plan
            received = self._wait(what)
            if received is None or not self._keep(*received):
                for peer in sorted(self.needed):
                    self._liveness.check_idle(peer, what)

    def take_in(self, what: str) -> None:
        """Receive what has come already, so that no peer's messages pile up. Waits for nothing; raises as `collect`."""
        for _ in range(_BURST):
            received = self._wait(what, 0.0)
            if received is None:
                return
            self._keep(*received)

    def _receive(self, missing: set[int], what: Doing) -> tuple[str, memoryview]:
        while True:
            received = self._wait(what)
            if received is not None:
                return received
            self._check(missing, what)

    def _check(self, missing: set[int], what: Doing) -> None:
        for rank in sorted(missing):
            self._liveness.check(rank, str(what))

    def _wait(self, what: object, timeout_s: float = _SLICE_S) -> tuple[str, memoryview] | None:
        try:
            return self._endpoint.recv_frame(timeout_s)
        except LinkReset as error:
            rank = self._rank(error.peer)
            if rank not in self.needed:
                return None
            # What was under way is lost, and only a new epoch sends it again.
            raise PeerLost(rank, str(what), f"its connection {error.broke}") from error
        except MalformedMessage as error:
            raise Misconduct(self._rank(error.peer), str(error)) from error

    def _read(self, sender: str, frame: memoryview) -> Envelope:
        try:
            return self._endpoint.read(sender, frame)
        except MalformedMessage as error:
            raise Misconduct(self._rank(sender), str(error)) from error

    def _key(self, envelope: Envelope) -> _Key | None:
        """Where the message belongs; None (and counted) where it is too late."""
        rank = self._rank(envelope.sender)
        message = envelope.message
        if isinstance(message, Probe | Echo):
            self.dropped += 1  # of the survey of the links, on a slow one
            return None
        if not isinstance(message, DataMessage):
            raise Misconduct(rank, f"node {rank} sent {type(message).__name__} on the tensor plane")
        if message.epoch != self._epoch or message.step < self._step:
            self.dropped += 1
            return None
        if getattr(message, "sender", rank) != rank:
            raise Misconduct(rank, f"node {rank} speaks for another node: {message}")
        if (rank != 0 and isinstance(message, StepPlan | LeavePages | Hidden)) or (
            self._is_root and isinstance(message, Reduced)
        ):
            raise Misconduct(rank, f"node {rank} sent {type(message).__name__}, which only node 0 may send")
        block, chunk, hop = (int(getattr(message, field, 0)) for field in ("block", "chunk", "hop"))
        return type(message), message.step, block, chunk, hop, rank

    def _keep(self, sender: str, frame: memoryview) -> bool:
        """For later, unless it is too late."""
        envelope = self._read(sender, frame)
        key = self._key(envelope)
        if key is not None:
            self._hold(key, envelope)
        return key is not None

    def _hold(self, key: _Key, envelope: Envelope) -> None:
        if key in self._held:
            raise Misconduct(key[-1], f"node {key[-1]} sent {envelope.message} twice")
        self._held[key] = envelope
        rank = key[-1]
        ahead = [held for (*_, sender), held in self._held.items() if sender == rank]
        if len(ahead) > MAX_HELD or sum(map(_nbytes, ahead)) > MAX_HELD_BYTES:
            raise Misconduct(
                rank, f"node {rank} is too far ahead: {len(ahead)} messages that are not awaited yet"
            )

    def _rank(self, name: str) -> int:
        rank = self._ranks.get(name)
        if rank is None:
            raise ProtocolError(f"{name} has no rank in epoch {self._epoch}")
        return rank


def _nbytes(envelope: Envelope) -> int:
    return sum(tensor.nbytes for tensor in envelope.tensors)
