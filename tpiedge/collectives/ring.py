"""The ring: slices of the matrix travel from each rank to the next, first growing sums, then whole ones.

2 (N - 1) one-way latencies, and over each rank's link about twice the matrix in each direction. A slice is a run of
columns, and each begins at another rank: the order of summation depends on an element's column alone. Where parts
travel rounded a growing sum is rounded at every hop, so the bits are not those of the star.

For comparisons among nodes that trust each other: every rank believes its neighbour's cancel flag, as it does its sums.
"""

import numpy as np

from tpiedge.collectives.arrays import Summable, widened
from tpiedge.collectives.codec import Shape, read_array, rounded
from tpiedge.collectives.job import Job
from tpiedge.collectives.peer_channel import PeerChannel
from tpiedge.collectives.slices import Travelling, check_slices, column_ranges, send_slice, travelling
from tpiedge.collectives.summation import OrderedSum
from tpiedge.errors import Misconduct
from tpiedge.wire.data import CANCEL, Slice


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
