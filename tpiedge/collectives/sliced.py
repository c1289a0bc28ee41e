"""Collectives in which every rank sums a slice of the matrix: two shots over the mesh, and the ring.

Two shots: every rank sums a slice, and then sends it to all: two one-way latencies, and over each rank's link about
twice the matrix in each direction, however many ranks there are: for large matrices. Each slice is summed in the order
of ranks, and no cut changes a rounding: the bits are those of the star.

The ring: slices travel from each rank to the next, first growing sums, then whole ones: 2 (N - 1) one-way latencies and
as many bytes. A slice is a run of columns, and each begins at another rank: the order of summation depends on an
element's column alone. Where parts travel rounded a growing sum is rounded at every hop, so the bits are not those of
the star. It is for comparisons among nodes that trust each other: every rank believes its neighbour's cancel flag, as
it does its sums.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from tpiedge.collectives.arrays import Summable, widened
from tpiedge.collectives.codec import Shape, read_array, rounded
from tpiedge.collectives.job import Job
from tpiedge.collectives.peer_channel import PeerChannel
from tpiedge.collectives.summation import OrderedSum, is_finite
from tpiedge.errors import Misconduct, ProtocolError
from tpiedge.transport.endpoint import Buffer
from tpiedge.wire.data import CANCEL, Slice
from tpiedge.wire.tensors import INT8_GROUP, TensorHeader

Travelling = tuple[TensorHeader, Buffer]
"""A slice as it travels: its header and its bytes."""


def cut(array: Summable, count: int) -> list[Summable]:
    """Views of `count` runs of units, as equal as can be, each a matrix of a unit per row; some may be empty.

    A unit is a group of a row where groups fill the rows, else a row: so a cut changes no rounding.
    """
    rows, columns = array.shape
    unit = columns if columns % INT8_GROUP else INT8_GROUP
    units = rows * columns // unit
    matrix = array.reshape(units, unit)
    return [matrix[at * units // count : (at + 1) * units // count] for at in range(count)]


def column_ranges(columns: int, count: int) -> list[slice]:
    """`count` runs of the columns, of whole groups but for the last, as equal as such can be; some may be empty.

    So a cut changes no rounding, and where a column belongs does not depend on the number of rows.
    """
    groups = -(-columns // INT8_GROUP)
    bounds = [min(columns, at * groups // count * INT8_GROUP) for at in range(count + 1)]
    return [slice(*pair) for pair in pairwise(bounds)]


def travelling(job: Job, part: Summable) -> Travelling:
    return job.codec.header(part), job.codec.encode(part)


def send_slice(
    channel: PeerChannel, job: Job, hop: int, slice_: Travelling | None, to: Sequence[int]
) -> None:
    """`slice_`: None where this rank has nothing to add. Raises PeerLost, ProtocolError."""
    tag = job.tag
    header, tensors = (None, ()) if slice_ is None else (slice_[0], (slice_[1],))
    flags = CANCEL if job.cancel else 0
    message = Slice(channel.epoch, tag.step, tag.block, tag.chunk, flags, hop, channel.rank, header)
    channel.send(message, tensors, to, job.what)


def check_slices(slices: Sequence[Summable], owners: Sequence[int], what: object) -> None:
    """ProtocolError where a slice of the sum is not finite; `owners`: who summed each. Whose part was at fault only the
    owner could tell."""
    with np.errstate(over="ignore", invalid="ignore"):
        finite = [is_finite(part) for part in slices]
    for owner, fine in zip(owners, finite, strict=True):
        if not fine:
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
            send_slice(channel, job, _PARTS, None, channel.peers)
            return
        slices = cut(job.own, channel.size)
        for rank in channel.peers:
            send_slice(channel, job, _PARTS, travelling(job, slices[rank]), (rank,))

    def advance(self, job: Job) -> None:
        channel, codec = self._channel, job.codec
        job.total = np.empty(job.shape, codec.dtype)
        slices = cut(job.total, channel.size)
        mine = self._sum(job, slices[channel.rank])
        header, encoded = travelling(job, mine)
        send_slice(channel, job, _SUMS, (header, encoded), channel.peers)
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
        check_slices(slices, range(channel.size), job.what)
        return job.total

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


class Ring:
    """A Collective. At hop h rank r sends slice r - h to rank r + 1, all modulo N; from hop N - 1 on, whole sums.

    A flag of rank 0 has gone round by then, too.
    """

    def __init__(self, channel: PeerChannel) -> None:
        self._channel = channel
        self._size = channel.size
        self._next = ((channel.rank + 1) % channel.size,)
        self._before = (channel.rank - 1) % channel.size

    def begin(self, job: Job) -> None:
        job.total = np.empty(job.shape, job.codec.dtype)
        first = self._slice(job, 0)
        self._send(job, 0, None if first is None else travelling(job, first))

    def advance(self, job: Job) -> None:
        for hop in range(1, self._size):
            received, _ = self._receive(job, hop - 1, self._shape(job, hop))
            grown = self._sum(job, hop, received)
            self._send(job, hop, travelling(job, grown))
        self._put(job, hop, rounded(job.codec, grown))

    def finish(self, job: Job) -> Summable:
        last = 2 * self._size - 2
        for hop in range(self._size, last + 1):
            whole, travelled = self._receive(job, hop - 1, self._shape(job, hop))
            if whole is None:
                raise Misconduct(
                    self._before, f"node {self._before} sent no tensor where a whole sum belongs"
                )
            if hop < last:
                # The bytes as they came: nothing is rounded twice.
                self._send(job, hop, travelled)
            self._put(job, hop, whole)
        assert job.total is not None  # since `begin`
        if self._channel.rank == 0:
            slices = [job.total[:, columns] for columns in column_ranges(job.shape[1], self._size)]
            check_slices(slices, [(at - 1) % self._size for at in range(self._size)], job.what)
        return job.total

    def _columns(self, job: Job, hop: int) -> slice:
        """The columns that this rank sends at `hop`, and has received at the hop before."""
        return column_ranges(job.shape[1], self._size)[(self._channel.rank - hop) % self._size]

    def _shape(self, job: Job, hop: int) -> Shape:
        columns = self._columns(job, hop)
        return job.shape[0], columns.stop - columns.start

    def _slice(self, job: Job, hop: int) -> Summable | None:
        """The columns of `hop` in this rank's part; None without a part."""
        return None if job.own is None else np.ascontiguousarray(job.own[:, self._columns(job, hop)])

    def _sum(self, job: Job, hop: int, received: Summable | None) -> Summable:
        """Adds this rank's columns of `hop` to what has been summed of them so far."""
        out = np.empty(self._shape(job, hop), job.codec.dtype)
        with np.errstate(over="ignore", invalid="ignore"):
            total = OrderedSum(received, out, 0, (0, 1), self._size)
            total.put(1, self._slice(job, hop))
            return total.complete()

    def _put(self, job: Job, hop: int, values: Summable) -> None:
        assert job.total is not None  # since `begin`
        job.total = widened(job.total, values)
        job.total[:, self._columns(job, hop)] = values

    def _send(self, job: Job, hop: int, slice_: Travelling | None) -> None:
        send_slice(self._channel, job, hop, slice_, self._next)

    def _receive(self, job: Job, hop: int, shape: Shape) -> tuple[Summable | None, Travelling | None]:
        """A slice of the rank before this one, and the same as it travelled."""
        ((_, envelope),) = self._channel.inbox.await_all(Slice, job.tag, {self._before}, job.what, hop)
        message = envelope.message
        assert isinstance(message, Slice)
        if self._channel.rank != 0:
            job.cancel |= bool(message.flags & CANCEL)
        if message.tensor is None:
            return None, None
        values = read_array(envelope, self._before, shape, job.codec)
        return values, (message.tensor, envelope.tensors[0])
