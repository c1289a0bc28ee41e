"""The collectives: the star, the mesh and two shots. All add in the order of ranks, and give the same bits.

The star: every rank sends its part to rank 0, which sums and answers (TPI-LLM, section 3.2): two one-way latencies and
2 (N - 1) messages per all-reduce, all of them over rank 0's links. The mesh: every rank sends its part to every other
and sums all of them: one latency and N (N - 1) messages, N - 1 over each rank's link in each direction.

Two shots over the mesh: every rank sums a slice of the matrix, and then sends it to all: two latencies, and over each
rank's link about twice the matrix in each direction, however many ranks there are: for large matrices. No cut changes a
rounding.
"""

from collections.abc import Sequence

import numpy as np

from tpiedge.collectives.arrays import Summable, widened
from tpiedge.collectives.codec import read_array, rounded
from tpiedge.collectives.job import Job
from tpiedge.collectives.peer_channel import PeerChannel
from tpiedge.collectives.summation import OrderedSum, is_finite
from tpiedge.errors import Misconduct, ProtocolError
from tpiedge.transport.endpoint import Buffer
from tpiedge.wire.data import CANCEL, Partial, Reduced, Slice
from tpiedge.wire.tensors import INT8_GROUP


class Star:
    """A Collective. Rank 0 is the root."""

    def __init__(self, channel: PeerChannel) -> None:
        self._channel = channel

    def begin(self, job: Job) -> None:
        channel, tag = self._channel, job.tag
        if channel.rank == 0:
            return
        header = None if job.own is None else job.codec.header(job.own)
        part = Partial(channel.epoch, tag.step, tag.block, tag.chunk, 0, channel.rank, header)
        tensors = () if job.own is None else (job.codec.encode(job.own),)
        channel.send(part, tensors, (0,), job.what, job.sent)

    def advance(self, job: Job) -> None:
        if self._channel.rank == 0:
            self._answer(job, self._sum(job) if job.total is None else job.total)

    def finish(self, job: Job) -> Summable:
        if job.total is not None:
            return job.total
        channel = self._channel
        ((_, total, message),) = channel.inbox.collect(Reduced, job.tag, {0}, job.what, job.shape, job.codec)
        assert isinstance(message, Reduced)
        assert total is not None  # only a part may come without
        job.cancel = bool(message.flags & CANCEL)
        return total

    def _sum(self, job: Job) -> Summable:
        """Sums this rank's part and those of all leaves."""
        channel = self._channel
        out = np.empty(job.shape, job.codec.dtype)
        with np.errstate(over="ignore", invalid="ignore"):
            total = OrderedSum(None if job.own is None else rounded(job.codec, job.own), out)
            leaves = set(channel.peers)
            for rank, part, _ in channel.inbox.collect(
                Partial, job.tag, leaves, job.what, job.shape, job.codec
            ):
                total.put(rank, part)
            return total.finish(job.what)

    def _answer(self, job: Job, total: Summable) -> None:
        channel, codec, tag = self._channel, job.codec, job.tag
        flags = CANCEL if job.cancel else 0
        message = Reduced(channel.epoch, tag.step, tag.block, tag.chunk, flags, codec.header(total))
        encoded = codec.encode(total)
        channel.send(message, (encoded,), channel.peers, job.what, job.sent)
        job.total = total if codec.exact else codec.decode(encoded, job.shape)


class Mesh:
    """A Collective. Every rank has a link to every other."""

    def __init__(self, channel: PeerChannel) -> None:
        self._channel = channel

    def begin(self, job: Job) -> None:
        channel, codec, tag = self._channel, job.codec, job.tag
        flags = CANCEL if job.cancel else 0
        header = None if job.own is None else codec.header(job.own)
        part = Partial(channel.epoch, tag.step, tag.block, tag.chunk, flags, channel.rank, header)
        if job.own is None:
            channel.send(part, (), channel.peers, job.what, job.sent)
            return
        encoded = codec.encode(job.own)
        channel.send(part, (encoded,), channel.peers, job.what, job.sent)
        if not codec.exact:
            job.own = codec.decode(encoded, job.shape)

    def advance(self, job: Job) -> None:
        """There is nothing more to send."""

    def finish(self, job: Job) -> Summable:
        channel = self._channel
        with np.errstate(over="ignore", invalid="ignore"):
            total = OrderedSum(job.own, np.empty(job.shape, job.codec.dtype), channel.rank)
            others = set(channel.peers)
            for rank, part, message in channel.inbox.collect(
                Partial, job.tag, others, job.what, job.shape, job.codec
            ):
                assert isinstance(message, Partial)
                total.put(rank, part)
                if rank == 0:
                    job.cancel = bool(message.flags & CANCEL)
            # Of three nodes, one may have sent another what made that other's part so. And only rank 0 is believed.
            out = total.finish(job.what, blames=channel.rank == 0 and channel.size == 2)
        result: Summable = rounded(job.codec, out)
        return result


def cut(array: Summable, count: int) -> list[Summable]:
    """Views of `count` runs of units, as equal as can be, each a matrix of a unit per row; some may be empty.

    A unit is a group of a row where groups fill the rows, else a row: so a cut changes no rounding.
    """
    rows, columns = array.shape
    unit = columns if columns % INT8_GROUP else INT8_GROUP
    units = rows * columns // unit
    matrix = array.reshape(units, unit)
    return [matrix[at * units // count : (at + 1) * units // count] for at in range(count)]


def check_slices(slices: Sequence[Summable], what: object) -> None:
    """ProtocolError where a slice of the sum is not finite. Whose part was at fault only the rank that summed it could
    tell."""
    with np.errstate(over="ignore", invalid="ignore"):
        for owner, part in enumerate(slices):
            if not is_finite(part):
                raise ProtocolError(
                    f"the sum of {what} is not finite in the slice that node {owner} added up; "
                    "run it with --collective star to learn which node is at fault"
                )


_PARTS, _SUMS = 0, 1


class TwoShot:
    """A Collective. Every rank has a link to every other; rank r sums slice r."""

    def __init__(self, channel: PeerChannel) -> None:
        self._channel = channel

    def begin(self, job: Job) -> None:
        channel = self._channel
        if job.own is None:
            self._send(job, _PARTS, None, channel.peers)
            return
        slices = cut(job.own, channel.size)
        for rank in channel.peers:
            self._send(job, _PARTS, slices[rank], (rank,))

    def advance(self, job: Job) -> None:
        channel, codec = self._channel, job.codec
        job.total = np.empty(job.shape, codec.dtype)
        slices = cut(job.total, channel.size)
        mine = self._sum(job, slices[channel.rank])
        encoded = self._send(job, _SUMS, mine, channel.peers)
        if not codec.exact:
            np.copyto(mine, codec.decode(encoded, mine.shape))
        elif mine is not slices[channel.rank]:
            _put(job, slices, channel.rank, mine)

    def finish(self, job: Job) -> Summable:
        channel, inbox = self._channel, self._channel.inbox
        assert job.total is not None  # since `advance`
        slices = cut(job.total, channel.size)
        for rank, envelope in inbox.await_all(Slice, job.tag, set(channel.peers), job.what, _SUMS):
            if not envelope.tensors:
                raise Misconduct(rank, f"node {rank} sent no tensor where the sum of a slice belongs")
            whole = read_array(envelope, rank, slices[rank].shape, job.codec)
            slices = _put(job, slices, rank, whole)
        check_slices(slices, job.what)
        return job.total

    def _send(self, job: Job, hop: int, part: Summable | None, to: Sequence[int]) -> Buffer:
        """Sends a slice, None where this rank has nothing to add. Returns its bytes."""
        channel, codec, tag = self._channel, job.codec, job.tag
        header = None if part is None else codec.header(part)
        encoded = b"" if part is None else codec.encode(part)
        flags = CANCEL if job.cancel else 0
        message = Slice(channel.epoch, tag.step, tag.block, tag.chunk, flags, hop, channel.rank, header)
        channel.send(message, () if part is None else (encoded,), to, job.what)
        return encoded

    def _sum(self, job: Job, mine: Summable) -> Summable:
        """Sums every rank's part of this rank's slice, into `mine` unless that is too narrow."""
        channel = self._channel
        own = None if job.own is None else rounded(job.codec, cut(job.own, channel.size)[channel.rank])
        others = set(channel.peers)
        with np.errstate(over="ignore", invalid="ignore"):
            total = OrderedSum(own, mine, channel.rank)
            for rank, part, message in channel.inbox.collect(
                Slice, job.tag, others, job.what, mine.shape, job.codec, _PARTS
            ):
                assert isinstance(message, Slice)
                total.put(rank, part)
                if rank == 0:
                    job.cancel = bool(message.flags & CANCEL)
            if channel.rank == 0:
                # Of three nodes, one may have sent another what made that other's part so.
                return total.finish(job.what, blames=channel.size == 2)
            return total.complete()  # all ranks look at it in `finish`, when rank 0 has it


def _put(job: Job, slices: list[Summable], rank: int, values: Summable) -> list[Summable]:
    """Puts the sum of a slice into its place in the total. Returns the slices of the total, which may be wider now."""
    assert job.total is not None  # since `advance`
    total = widened(job.total, values)
    if total is not job.total:
        job.total, slices = total, cut(total, len(slices))
    np.copyto(slices[rank], values)
    return slices
