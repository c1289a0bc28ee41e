"""The ring: slices of the matrix travel from each rank to the next, first growing sums, then whole ones.

2 (N - 1) one-way latencies, and over each rank's link about twice the matrix in each direction. The order of summation
is fixed, but every slice has its own: it begins at another rank.
"""

import numpy as np

from tpiedge.collectives.arrays import Array
from tpiedge.collectives.codec import Shape, read_array
from tpiedge.collectives.courier import Courier
from tpiedge.collectives.job import Job
from tpiedge.collectives.slices import check_slices, cut, send_slice
from tpiedge.transport.endpoint import Buffer
from tpiedge.wire.data import CANCEL, Slice

__all__ = ["Ring"]


class Ring:
    """A Collective. At hop h rank r sends slice r - h to rank r + 1, all modulo N; from hop N - 1 on, whole sums.

    A flag of rank 0 has gone round by then, too.
    """

    def __init__(self, courier: Courier) -> None:
        self._courier = courier
        self._size = courier.size
        self._next = ((courier.rank + 1) % courier.size,)
        self._before = (courier.rank - 1) % courier.size

    def begin(self, job: Job) -> None:
        job.total = np.empty(job.shape, np.float32)
        if job.own is None:
            send_slice(self._courier, job, 0, (), None, self._next)
            return
        first = cut(job.own, self._size)[self._at(0)]
        send_slice(self._courier, job, 0, first.shape, job.codec.encode(first), self._next)

    def advance(self, job: Job) -> None:
        slices = self._slices(job)
        own = None if job.own is None else cut(job.own, self._size)
        for hop in range(1, self._size):
            grown = slices[self._at(hop)]
            received, _ = self._receive(job, hop - 1, grown.shape)
            _add(received, None if own is None else own[self._at(hop)], grown)
            encoded = job.codec.encode(grown)
            send_slice(self._courier, job, hop, grown.shape, encoded, self._next)
        if not job.codec.exact:
            np.copyto(grown, job.codec.decode(encoded, grown.shape))

    def finish(self, job: Job) -> Array:
        slices = self._slices(job)
        last = 2 * self._size - 2
        for hop in range(self._size, last + 1):
            whole = slices[self._at(hop)]
            received, encoded = self._receive(job, hop - 1, whole.shape)
            if hop < last:
                # The bytes as they came: nothing is rounded twice.
                send_slice(self._courier, job, hop, whole.shape, encoded, self._next)
            _add(received, None, whole)
        if self._courier.rank == 0:
            owners = [(at - 1) % self._size for at in range(self._size)]
            check_slices(slices, owners, job.what)
        assert job.total is not None
        return job.total

    def _at(self, hop: int) -> int:
        """Which slice this rank sends at `hop`, and has received at the hop before."""
        return (self._courier.rank - hop) % self._size

    def _slices(self, job: Job) -> list[Array]:
        assert job.total is not None  # since `begin`
        return cut(job.total, self._size)

    def _receive(self, job: Job, hop: int, shape: Shape) -> tuple[Array | None, Buffer | None]:
        """A slice of the rank before this one, and the same as it travelled."""
        ((_, envelope),) = self._courier.inbox.await_all(Slice, job.tag, {self._before}, job.what, hop)
        message = envelope.message
        assert isinstance(message, Slice)
        if self._courier.rank != 0:
            job.cancel |= bool(message.flags & CANCEL)
        if not envelope.tensors:
            return None, None
        return read_array(envelope, self._before, shape, job.codec), envelope.tensors[0]


def _add(first: Array | None, second: Array | None, out: Array) -> None:
    """In `out`; None is nothing to add."""
    if first is None or second is None:
        only = second if first is None else first
        np.copyto(out, np.float32(0) if only is None else only)
        return
    with np.errstate(over="ignore", invalid="ignore"):
        np.add(first, second, out)
