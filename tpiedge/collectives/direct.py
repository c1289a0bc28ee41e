"""Star, mesh and two-shot add in the order of ranks and give the same bits.

In a star (TPI-LLM, section 3.2), all ranks send their parts to rank 0, and rank 0 sends back the sum. In a mesh, each
rank sends its part to all. In a two-shot, each rank sums one slice and sends the sum to all.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tpiedge.collectives.codec import EXACT, Shape, decode_array, encode_array, header_of, rounded
from tpiedge.collectives.communicator import Doing, Tag
from tpiedge.collectives.peer_channel import PeerChannel
from tpiedge.collectives.summation import Summable, check_sum, is_finite, ordered_sum, widened
from tpiedge.errors import Misconduct, ProtocolError
from tpiedge.transport.endpoint import Buffer
from tpiedge.wire.data import CANCEL, Partial, Reduced, Slice
from tpiedge.wire.fields import INT8_GROUP, SummandPrecision


@dataclass(slots=True, eq=False)
class AllReduce:
    """One all-reduce under way. All ranks call the same methods in the same order. Methods raise PeerLost and
    ProtocolError."""

    channel: PeerChannel
    tag: Tag
    shape: Shape
    #: This rank's part, not rounded. It must not change meanwhile.
    own: Summable | None
    wire: SummandPrecision
    cancel: bool = False  # whether rank 0 sends the cancel flag
    sent: int = 0  # how many peers, in order, have this rank's first message
    total: Summable | None = None  # the sum so far
    advanced: bool = False

    @property
    def what(self) -> Doing:
        return Doing("all-reduce", self.tag)

    def start(self) -> None:
        """Sends the messages that need no other rank's part."""
        raise NotImplementedError

    def advance(self) -> None:
        """Waits for the messages of `start`, then sends the next ones. Idempotent."""
        if not self.advanced:
            self._advance()
            self.advanced = True

    def _advance(self) -> None:
        pass

    def finish(self) -> Summable:
        """Returns the sum, in new memory. After this call `cancel` is final."""
        raise NotImplementedError

    def _room(self) -> Summable:
        return np.empty(self.shape, np.int32 if self.wire == "i32" else np.float32)

    def _send(self, part: Summable | None, to: Sequence[int], hop: int | None = None) -> Buffer:
        header = None if part is None else header_of(self.wire, part.shape, part.itemsize)
        encoded = None if part is None else encode_array(self.wire, part)
        rank, place = self.channel.rank, (self.channel.epoch, *self.tag, CANCEL if self.cancel else 0)
        message = Partial(*place, rank, header) if hop is None else Slice(*place, hop, rank, header)
        self.channel.send(message, encoded, to, self.what, self.sent)
        return encoded or b""

    def _sum(
        self, kind: type[Partial | Slice], own: Summable | None, out: Summable, blames: bool | None
    ) -> Summable:
        """Sums all parts into `out` or a wider copy. `blames`: whether the check may blame a rank; None: no check."""
        channel, what = self.channel, self.what
        parts = {channel.rank: own}
        for rank, part, message in channel.collect(kind, self.tag, channel.peers, what, out.shape, self.wire):
            assert isinstance(message, Partial | Slice)
            parts[rank] = part
            if rank == 0:
                self.cancel = bool(message.flags & CANCEL)
        with np.errstate(over="ignore", invalid="ignore"):
            total = ordered_sum(parts, out)
            if blames is not None:
                check_sum(total, parts, what, None if blames else channel.rank)
        return total


class Star(AllReduce):
    def start(self) -> None:
        if self.channel.rank != 0:
            self._send(self.own, (0,))

    def _advance(self) -> None:
        channel, wire = self.channel, self.wire
        if channel.rank != 0:
            return
        total = self.total
        if total is None:
            own = None if self.own is None else rounded(wire, self.own)
            total = self._sum(Partial, own, self._room(), True)
        flags = CANCEL if self.cancel else 0
        message = Reduced(channel.epoch, *self.tag, flags, header_of(wire, total.shape, total.itemsize))
        encoded = encode_array(wire, total)
        channel.send(message, encoded, channel.peers, self.what, self.sent)
        self.total = total if wire in EXACT else decode_array(wire, encoded, self.shape)

    def finish(self) -> Summable:
        if self.total is not None:
            return self.total
        ((_, total, message),) = self.channel.collect(
            Reduced, self.tag, (0,), self.what, self.shape, self.wire
        )
        assert isinstance(message, Reduced)
        assert total is not None  # only a part may come without a tensor
        self.cancel = bool(message.flags & CANCEL)
        return total


class Mesh(AllReduce):
    def start(self) -> None:
        encoded = self._send(self.own, self.channel.peers)
        if self.own is not None and self.wire not in EXACT:
            self.own = decode_array(self.wire, encoded, self.shape)

    def finish(self) -> Summable:
        # Among three nodes, the blamed one may only have forwarded another's fault. And only rank 0 is believed.
        blames = self.channel.rank == 0 and self.channel.size == 2
        return rounded(self.wire, self._sum(Partial, self.own, self._room(), blames))


def cut(array: Summable, count: int) -> list[Summable]:
    """Cuts `array` into `count` views of nearly equal size, perhaps empty. int8 groups stay whole."""
    rows, columns = array.shape
    unit = columns if columns % INT8_GROUP else INT8_GROUP
    units = rows * columns // unit
    matrix = array.reshape(units, unit)
    return [matrix[at * units // count : (at + 1) * units // count] for at in range(count)]


def check_slices(slices: Sequence[Summable], what: object) -> None:
    """Raises ProtocolError if a slice is not finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        for owner, part in enumerate(slices):
            if not is_finite(part):
                raise ProtocolError(
                    f"the sum of {what} is not finite in the slice that node {owner} added up; "
                    "run it with --collective star to learn which node is at fault"
                )


_PARTS, _SUMS = 0, 1


class TwoShot(AllReduce):
    def start(self) -> None:
        channel = self.channel
        if self.own is None:
            self._send(None, channel.peers, _PARTS)
            return
        slices = cut(self.own, channel.size)
        for rank in channel.peers:
            self._send(slices[rank], (rank,), _PARTS)

    def _advance(self) -> None:
        channel, wire = self.channel, self.wire
        self.total = self._room()
        slices = cut(self.total, channel.size)
        own = None if self.own is None else rounded(wire, cut(self.own, channel.size)[channel.rank])
        # All ranks check the sum in `finish`; rank 0 blames, as in a mesh, only the other one of two.
        blames = None if channel.rank else channel.size == 2
        mine = self._sum(Slice, own, slices[channel.rank], blames)
        encoded = self._send(mine, channel.peers, _SUMS)
        if wire not in EXACT:
            np.copyto(mine, decode_array(wire, encoded, mine.shape))
        elif mine is not slices[channel.rank]:
            self._put(slices, channel.rank, mine)

    def finish(self) -> Summable:
        channel = self.channel
        assert self.total is not None  # since `advance`
        slices = cut(self.total, channel.size)
        shapes = [part.shape for part in slices]
        for rank, whole, _ in channel.collect(
            Slice, self.tag, channel.peers, self.what, shapes, self.wire, _SUMS
        ):
            if whole is None:
                raise Misconduct(rank, f"node {rank} sent no tensor where the sum of a slice belongs")
            slices = self._put(slices, rank, whole)
        check_slices(slices, self.what)
        return self.total

    def _put(self, slices: list[Summable], rank: int, values: Summable) -> list[Summable]:
        assert self.total is not None  # since `advance`
        total = widened(self.total, values)
        if total is not self.total:
            self.total, slices = total, cut(total, len(slices))
        np.copyto(slices[rank], values)
        return slices
