"""Collectives in which whole parts travel: the star and the mesh. Both give the same bits.

The star: every rank sends its part to rank 0, which sums and answers (TPI-LLM, section 3.2): two one-way latencies and
2 (N - 1) messages per all-reduce, all of them over rank 0's links. The mesh: every rank sends its part to every other
and sums all of them: one latency and N (N - 1) messages, N - 1 over each rank's link in each direction.
"""

import numpy as np

from tpiedge.collectives.arrays import Summable
from tpiedge.collectives.codec import rounded
from tpiedge.collectives.job import Job
from tpiedge.collectives.peer_channel import PeerChannel
from tpiedge.collectives.summation import OrderedSum
from tpiedge.wire.data import CANCEL, Partial, Reduced


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
