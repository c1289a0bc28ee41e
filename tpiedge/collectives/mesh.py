"""The mesh: every rank sends its part to every other and sums all of them in the order of ranks.

One one-way latency and N (N - 1) messages per all-reduce, N - 1 over each rank's link in each direction; the bits are
those of the star.
"""

import numpy as np

from tpiedge.collectives.arrays import Summable
from tpiedge.collectives.codec import rounded
from tpiedge.collectives.job import Job
from tpiedge.collectives.peer_channel import PeerChannel
from tpiedge.collectives.summation import OrderedSum
from tpiedge.wire.data import CANCEL, Partial


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
