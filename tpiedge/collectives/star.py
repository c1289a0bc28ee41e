"""The star: every rank sends its part to rank 0, which sums in the order of ranks and answers (TPI-LLM,
section 3.2).

Two one-way latencies and 2 (N - 1) messages per all-reduce, all of them over rank 0's links.
"""

import numpy as np

from tpiedge.collectives.arrays import Array
from tpiedge.collectives.codec import rounded
from tpiedge.collectives.courier import Courier
from tpiedge.collectives.job import Job
from tpiedge.collectives.summation import OrderedSum
from tpiedge.wire.data import CANCEL, Partial, Reduced

__all__ = ["Star"]


class Star:
    """A Collective. Rank 0 is the root."""

    def __init__(self, courier: Courier) -> None:
        self._courier = courier

    def begin(self, job: Job) -> None:
        courier, tag = self._courier, job.tag
        if courier.rank == 0:
            return
        header = None if job.own is None else job.codec.header(job.shape)
        part = Partial(courier.epoch, tag.step, tag.block, tag.chunk, 0, courier.rank, header)
        tensors = () if job.own is None else (job.codec.encode(job.own),)
        courier.send(part, tensors, (0,), job.what, job.sent)

    def advance(self, job: Job) -> None:
        if self._courier.rank == 0:
            self._answer(job, self._sum(job) if job.total is None else job.total)

    def finish(self, job: Job) -> Array:
        if job.total is not None:
            return job.total
        courier = self._courier
        ((_, total, message),) = courier.inbox.collect(Reduced, job.tag, {0}, job.what, job.shape, job.codec)
        assert isinstance(message, Reduced)
        assert total is not None  # only a part may come without
        job.cancel = bool(message.flags & CANCEL)
        return total

    def _sum(self, job: Job) -> Array:
        """Of the own part and those of all leaves."""
        courier = self._courier
        out = np.empty(job.shape, np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            total = OrderedSum(None if job.own is None else rounded(job.codec, job.own), out)
            leaves = set(courier.peers)
            for rank, part, _ in courier.inbox.collect(
                Partial, job.tag, leaves, job.what, job.shape, job.codec
            ):
                total.put(rank, part)
            total.finish(job.what)
        return out

    def _answer(self, job: Job, total: Array) -> None:
        courier, codec, tag = self._courier, job.codec, job.tag
        flags = CANCEL if job.cancel else 0
        message = Reduced(courier.epoch, tag.step, tag.block, tag.chunk, flags, codec.header(job.shape))
        encoded = codec.encode(total)
        courier.send(message, (encoded,), courier.peers, job.what, job.sent)
        job.total = total if codec.exact else codec.decode(encoded, job.shape)
