"""Two shots over the mesh: every rank sums a slice of the matrix, and then sends it to all.

Two one-way latencies, and over each rank's link about twice the matrix in each direction, however many ranks there are:
for large matrices. Each slice is summed in the order of ranks, and no cut changes a rounding: the bits are those of the
star.
"""

import numpy as np

from tpiedge.collectives.arrays import Summable, widened
from tpiedge.collectives.codec import read_array, rounded
from tpiedge.collectives.job import Job
from tpiedge.collectives.peer_channel import PeerChannel
from tpiedge.collectives.slices import check_slices, cut, send_slice, travelling
from tpiedge.collectives.summation import OrderedSum
from tpiedge.errors import Misconduct
from tpiedge.wire.data import CANCEL, Slice

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
