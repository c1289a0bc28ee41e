"""The mesh: every rank sends its part to every other and sums all of them in the order of ranks.

One one-way latency and N (N - 1) messages per all-reduce, N - 1 over each rank's link in each direction; the bits are
those of the star.
"""

import numpy as np

from tpiedge.collectives.arrays import Array
from tpiedge.collectives.codec import rounded
from tpiedge.collectives.courier import Courier
from tpiedge.collectives.job import Job
from tpiedge.collectives.summation import OrderedSum
from tpiedge.wire.data import CANCEL, Partial

__all__ = ["Mesh"]


class Mesh:
    """A Collective. Every rank has a link to every other."""

    def __init__(self, courier: Courier) -> None:
        self._courier = courier

    def begin(self, job: Job) -> None:
        courier, codec, tag = self._courier, job.codec, job.tag
        flags = CANCEL if job.cancel else 0
        header = None if job.own is None else codec.header(job.shape)
        part = Partial(courier.epoch, tag.step, tag.block, tag.chunk, flags, courier.rank, header)
        if job.own is None:
            courier.send(part, (), courier.peers, job.what, job.sent)
            return
        encoded = codec.encode(job.own)
        courier.send(part, (encoded,), courier.peers, job.what, job.sent)
        if not codec.exact:
            job.own = codec.decode(encoded, job.shape)

    def advance(self, job: Job) -> None:
        """There is nothing more to send."""

    def finish(self, job: Job) -> Array:
        courier = self._courier
        out = np.empty(job.shape, np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            total = OrderedSum(job.own, out, courier.rank)
            others = set(courier.peers)
            for rank, part, message in courier.inbox.collect(
                Partial, job.tag, others, job.what, job.shape, job.codec
            ):
                assert isinstance(message, Partial)
                total.put(rank, part)
                if rank == 0:
                    job.cancel = bool(message.flags & CANCEL)
            # Of three, one may have sent another what made that one's part so. And only rank 0 is believed.
            total.finish(job.what, convicts=courier.rank == 0 and courier.size == 2)
        return rounded(job.codec, out)
