"""The tree of depth 2: parts go up to rank 0 by way of the heads, who sum those of their children; the sum comes down.

Four one-way latencies, and no rank has more than about twice sqrt(N) messages per all-reduce in each direction. Summed
in the order of ranks, but in the brackets of the tree: the bits differ from the star's.

For comparisons among nodes that trust each other: a child believes its head's cancel flag, as it does the sum.
"""

import numpy as np

from tpiedge.collectives.arrays import Summable
from tpiedge.collectives.codec import read_array
from tpiedge.collectives.job import Job
from tpiedge.collectives.peer_channel import PeerChannel
from tpiedge.collectives.shape import tree_children, tree_parent
from tpiedge.collectives.summation import OrderedSum
from tpiedge.errors import Misconduct, ProtocolError
from tpiedge.wire.data import CANCEL, Partial, Reduced


class Tree:
    """A Collective. Rank 0 is the root; ranks without children send their parts at once."""

    def __init__(self, channel: PeerChannel) -> None:
        self._channel = channel
        self._parent = tree_parent(channel.rank, channel.size)
        self._children = tree_children(channel.rank, channel.size)

    def begin(self, job: Job) -> None:
        if self._parent is not None and not self._children:
            self._send_up(job, self._parent, job.own)

    def advance(self, job: Job) -> None:
        if not self._children:
            return
        total = self._sum(job)
        if self._parent is not None:
            self._send_up(job, self._parent, total)
        else:
            self._answer(job, np.zeros(job.shape, job.codec.dtype) if total is None else total)

    def finish(self, job: Job) -> Summable:
        if self._parent is None:
            assert job.total is not None  # since `advance`
            return job.total
        channel, parent = self._channel, self._parent
        ((_, envelope),) = channel.inbox.await_all(Reduced, job.tag, {parent}, job.what)
        message = envelope.message
        assert isinstance(message, Reduced)
        total = read_array(envelope, parent, job.shape, job.codec)
        job.cancel = bool(message.flags & CANCEL)
        # The bytes as they came: nothing is rounded twice.
        channel.send(message, envelope.tensors, self._children, job.what)
        return total

    def _send_up(self, job: Job, parent: int, part: Summable | None) -> None:
        channel, tag = self._channel, job.tag
        header = None if part is None else job.codec.header(part)
        message = Partial(channel.epoch, tag.step, tag.block, tag.chunk, 0, channel.rank, header)
        channel.send(message, () if part is None else (job.codec.encode(part),), (parent,), job.what)

    def _sum(self, job: Job) -> Summable | None:
        """Sums this rank's part and its children's; None where none of these ranks has a share."""
        channel = self._channel
        out = np.empty(job.shape, job.codec.dtype)
        with np.errstate(over="ignore", invalid="ignore"):
            total = OrderedSum(job.own, out, channel.rank, (channel.rank, *self._children), channel.size)
            children = set(self._children)
            for rank, part, _ in channel.inbox.collect(
                Partial, job.tag, children, job.what, job.shape, job.codec
            ):
                total.put(rank, part)
            if total.empty:
                return None
            # Only rank 0 says which node is at fault: no other is believed.
            return self._checked(job, total) if channel.rank == 0 else total.complete()

    def _checked(self, job: Job, total: OrderedSum) -> Summable:
        try:
            return total.finish(job.what)
        except Misconduct as error:
            children = tree_children(error.rank, self._channel.size) if error.rank else ()
            if not children:
                raise
            # A head passes on what its children gave it.
            raise ProtocolError(
                f"the sum of {job.what} is not finite in the part that node {error.rank} added up for itself and "
                f"{len(children)} others; run it with --collective star to learn which node is at fault"
            ) from None

    def _answer(self, job: Job, total: Summable) -> None:
        channel, codec, tag = self._channel, job.codec, job.tag
        flags = CANCEL if job.cancel else 0
        message = Reduced(channel.epoch, tag.step, tag.block, tag.chunk, flags, codec.header(total))
        encoded = codec.encode(total)
        channel.send(message, (encoded,), self._children, job.what)
        job.total = total if codec.exact else codec.decode(encoded, job.shape)
