"""The collectives. All add in the order of ranks, and give the same bits.

Star: every rank sends its part to rank 0, which sums and answers (TPI-LLM, section 3.2): two latencies, 2 (N - 1)
messages over rank 0's links. Mesh: every rank sends its part to all: one latency, N (N - 1) messages. Two-shot, for
large matrices: every rank sums a slice and sends it to all: two latencies, about twice the matrix over each link.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tpiedge.collectives.codec import Codec, Shape, rounded
from tpiedge.collectives.communicator import Doing, Tag
from tpiedge.collectives.peer_channel import PeerChannel
from tpiedge.collectives.summation import OrderedSum, Summable, is_finite, widened
from tpiedge.errors import Misconduct, ProtocolError
from tpiedge.transport.endpoint import Buffer
from tpiedge.wire.data import CANCEL, Partial, Reduced, Slice
from tpiedge.wire.fields import INT8_GROUP


@dataclass(slots=True)
class Job:
    """One all-reduce under way. `own`: this rank's part, not rounded yet, None without one; it must not change
    meanwhile. `cancel`: on rank 0 whether to send the flag; elsewhere and in the end whether it was sent. `sent`: how
    many peers, in order, have this rank's first message already (at the root of a star its answer, then `total`).
    `total`: the sum, or what is known of it."""

    tag: Tag
    shape: Shape
    own: Summable | None
    codec: Codec
    cancel: bool = False
    sent: int = 0
    total: Summable | None = None
    advanced: bool = False
    what: Doing = field(init=False)

    def __post_init__(self) -> None:
        self.what = Doing("all-reduce", self.tag)


class Collective:
    """One way to sum. All ranks call the same methods in the same order; each raises PeerLost, ProtocolError."""

    def __init__(self, channel: PeerChannel) -> None:
        self._channel = channel

    def begin(self, job: Job) -> None:
        """Sends what needs no other rank's part."""
        raise NotImplementedError

    def advance(self, job: Job) -> None:
        """Waits for what others sent in `begin`, and sends what follows. Once for every job."""

    def finish(self, job: Job) -> Summable:
        """The sum, in the caller's own memory; `job.cancel` is the same on every rank."""
        raise NotImplementedError

    def _send(self, job: Job, part: Summable | None, to: Sequence[int], hop: int | None = None) -> Buffer:
        """Sends this rank's part, or a slice in its hop; None without one. Returns its bytes."""
        channel, codec = self._channel, job.codec
        header = None if part is None else codec.header(part.shape, part.itemsize)
        encoded = b"" if part is None else codec.encode(part)
        place = channel.epoch, *job.tag, CANCEL if job.cancel else 0
        message = (
            Partial(*place, channel.rank, header) if hop is None else Slice(*place, hop, channel.rank, header)
        )
        channel.send(message, () if part is None else (encoded,), to, job.what, job.sent)
        return encoded

    def _sum(
        self, job: Job, kind: type[Partial | Slice], own: Summable | None, out: Summable, blames: bool | None
    ) -> Summable:
        """Sums every rank's part, in `out` unless too narrow. `blames` as of OrderedSum, None: unchecked. Sets
        `job.cancel`."""
        channel = self._channel
        with np.errstate(over="ignore", invalid="ignore"):
            total = OrderedSum(own, out, channel.rank)
            peers = set(channel.peers)
            for rank, part, message in channel.collect(kind, job.tag, peers, job.what, out.shape, job.codec):
                assert isinstance(message, Partial | Slice)
                total.put(rank, part)
                if rank == 0:
                    job.cancel = bool(message.flags & CANCEL)
            return total.complete() if blames is None else total.finish(job.what, blames=blames)


class Star(Collective):
    def begin(self, job: Job) -> None:
        if self._channel.rank != 0:
            self._send(job, job.own, (0,))

    def advance(self, job: Job) -> None:
        channel, codec = self._channel, job.codec
        if channel.rank != 0:
            return
        total = job.total
        if total is None:
            own = None if job.own is None else rounded(codec, job.own)
            total = self._sum(job, Partial, own, np.empty(job.shape, codec.dtype), True)
        flags = CANCEL if job.cancel else 0
        message = Reduced(channel.epoch, *job.tag, flags, codec.header(total.shape, total.itemsize))
        encoded = codec.encode(total)
        channel.send(message, (encoded,), channel.peers, job.what, job.sent)
        job.total = total if codec.exact else codec.decode(encoded, job.shape)

    def finish(self, job: Job) -> Summable:
        if job.total is not None:
            return job.total
        ((_, total, message),) = self._channel.collect(Reduced, job.tag, {0}, job.what, job.shape, job.codec)
        assert isinstance(message, Reduced)
        assert total is not None  # only a part may come without
        job.cancel = bool(message.flags & CANCEL)
        return total


class Mesh(Collective):
    def begin(self, job: Job) -> None:
        encoded = self._send(job, job.own, self._channel.peers)
        if job.own is not None and not job.codec.exact:
            job.own = job.codec.decode(encoded, job.shape)

    def finish(self, job: Job) -> Summable:
        channel = self._channel
        # Of three nodes, the blamed one may only have forwarded another's fault. And only rank 0 is believed.
        blames = channel.rank == 0 and channel.size == 2
        return rounded(
            job.codec, self._sum(job, Partial, job.own, np.empty(job.shape, job.codec.dtype), blames)
        )


def cut(array: Summable, count: int) -> list[Summable]:
    """Views of `count` nearly equal runs of units, each a matrix of a unit per row; some may be empty. A unit is a
    group of a row where groups fill the rows, else a row: so a cut changes no rounding."""
    rows, columns = array.shape
    unit = columns if columns % INT8_GROUP else INT8_GROUP
    units = rows * columns // unit
    matrix = array.reshape(units, unit)
    return [matrix[at * units // count : (at + 1) * units // count] for at in range(count)]


def check_slices(slices: Sequence[Summable], what: object) -> None:
    """Raises ProtocolError where a slice of the sum is not finite. Only the rank that summed it could tell whose part
    it was."""
    with np.errstate(over="ignore", invalid="ignore"):
        for owner, part in enumerate(slices):
            if not is_finite(part):
                raise ProtocolError(
                    f"the sum of {what} is not finite in the slice that node {owner} added up; "
                    "run it with --collective star to learn which node is at fault"
                )


_PARTS, _SUMS = 0, 1


class TwoShot(Collective):
    def begin(self, job: Job) -> None:
        channel = self._channel
        if job.own is None:
            self._send(job, None, channel.peers, _PARTS)
            return
        slices = cut(job.own, channel.size)
        for rank in channel.peers:
            self._send(job, slices[rank], (rank,), _PARTS)

    def advance(self, job: Job) -> None:
        channel, codec = self._channel, job.codec
        job.total = np.empty(job.shape, codec.dtype)
        slices = cut(job.total, channel.size)
        own = None if job.own is None else rounded(codec, cut(job.own, channel.size)[channel.rank])
        # All ranks check the sum in `finish`; rank 0 blames, as in a mesh, only the other one of two.
        blames = None if channel.rank else channel.size == 2
        mine = self._sum(job, Slice, own, slices[channel.rank], blames)
        encoded = self._send(job, mine, channel.peers, _SUMS)
        if not codec.exact:
            np.copyto(mine, codec.decode(encoded, mine.shape))
        elif mine is not slices[channel.rank]:
            _put(job, slices, channel.rank, mine)

    def finish(self, job: Job) -> Summable:
        channel = self._channel
        assert job.total is not None  # since `advance`
        slices = cut(job.total, channel.size)
        shapes = [part.shape for part in slices]
        peers = set(channel.peers)
        for rank, whole, _ in channel.collect(Slice, job.tag, peers, job.what, shapes, job.codec, _SUMS):
            if whole is None:
                raise Misconduct(rank, f"node {rank} sent no tensor where the sum of a slice belongs")
            slices = _put(job, slices, rank, whole)
        check_slices(slices, job.what)
        return job.total


def _put(job: Job, slices: list[Summable], rank: int, values: Summable) -> list[Summable]:
    """Puts a slice's sum into its place. Returns the slices of the total, which may be wider now."""
    assert job.total is not None  # since `advance`
    total = widened(job.total, values)
    if total is not job.total:
        job.total, slices = total, cut(total, len(slices))
    np.copyto(slices[rank], values)
    return slices
