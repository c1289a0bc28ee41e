"""The ring: slices of the matrix travel from each rank to the next, first growing sums, then whole ones.

2 (N - 1) one-way latencies, and over each rank's link about twice the matrix in each direction. A slice is a run of
columns, and each begins at another rank: the order of summation depends on an element's column alone. Where parts
travel rounded a growing sum is rounded at every hop, so the bits are not those of the star.

For comparisons among nodes that trust each other: every rank believes its neighbour's cancel flag, as it does its sums.
"""

import numpy as np

from tpiedge.collectives.arrays import F32Array
from tpiedge.collectives.codec import Shape, read_array, rounded
from tpiedge.collectives.job import Job
from tpiedge.collectives.peer_channel import PeerChannel
from tpiedge.collectives.slices import check_slices, column_ranges, send_slice
from tpiedge.errors import Misconduct
from tpiedge.transport.endpoint import Buffer
from tpiedge.wire.data import CANCEL, Slice

__all__ = ["Ring"]


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
        job.total = np.empty(job.shape, np.float32)
        first = self._slice(job, 0)
        self._send(job, 0, self._shape(job, 0), None if first is None else job.codec.encode(first))

    def advance(self, job: Job) -> None:
        for hop in range(1, self._size):
            received, _ = self._receive(job, hop - 1, self._shape(job, hop))
            grown = _sum(received, self._slice(job, hop), self._shape(job, hop))
            self._send(job, hop, grown.shape, job.codec.encode(grown))
        self._put(job, hop, rounded(job.codec, grown))

    def finish(self, job: Job) -> F32Array:
        last = 2 * self._size - 2
        for hop in range(self._size, last + 1):
            shape = self._shape(job, hop)
            whole, encoded = self._receive(job, hop - 1, shape)
            if whole is None:
                raise Misconduct(
                    self._before, f"node {self._before} sent no tensor where a whole sum belongs"
                )
            if hop < last:
                # The bytes as they came: nothing is rounded twice.
                self._send(job, hop, shape, encoded)
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

    def _slice(self, job: Job, hop: int) -> F32Array | None:
        """The columns of `hop` in this rank's part; None without a part."""
        return None if job.own is None else np.ascontiguousarray(job.own[:, self._columns(job, hop)])

    def _put(self, job: Job, hop: int, values: F32Array) -> None:
        assert job.total is not None  # since `begin`
        job.total[:, self._columns(job, hop)] = values

    def _send(self, job: Job, hop: int, shape: Shape, encoded: Buffer | None) -> None:
        send_slice(self._channel, job, hop, shape, encoded, self._next)

    def _receive(self, job: Job, hop: int, shape: Shape) -> tuple[F32Array | None, Buffer | None]:
        """A slice of the rank before this one, and the same as it travelled."""
        ((_, envelope),) = self._channel.inbox.await_all(Slice, job.tag, {self._before}, job.what, hop)
        message = envelope.message
        assert isinstance(message, Slice)
        if self._channel.rank != 0:
            job.cancel |= bool(message.flags & CANCEL)
        if not envelope.tensors:
            return None, None
        return read_array(envelope, self._before, shape, job.codec), envelope.tensors[0]


def _sum(first: F32Array | None, second: F32Array | None, shape: Shape) -> F32Array:
    """None is nothing to add."""
    if first is None or second is None:
        only = second if first is None else first
        return np.zeros(shape, np.float32) if only is None else only
    with np.errstate(over="ignore", invalid="ignore"):
        return first + second
