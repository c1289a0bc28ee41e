"""The star of two ranks, in one latency: each sends its part to the other, and both add in the order of ranks.

With a single leaf the sum need not travel: rank 0 sends its own part at once, marked ADD_OWN, instead of waiting for
the leaf's and answering with the sum. The bits are those of the star, p0 + p1.
"""

import numpy as np

from tpiedge.collectives.arrays import Array
from tpiedge.collectives.communicator import Communicator, Doing, Liveness, Tag
from tpiedge.collectives.frames import ReduceFrames
from tpiedge.collectives.star import StarLeaf, StarRoot
from tpiedge.errors import ProtocolError
from tpiedge.transport.endpoint import Endpoint
from tpiedge.transport.reduction import Combine
from tpiedge.wire.data import ADD_OWN, Reduced
from tpiedge.wire.messages import Message
from tpiedge.wire.tensors import TensorHeader

__all__ = ["PairLeaf", "PairRoot", "leaf", "root"]


def root(hub: Endpoint, liveness: Liveness, *, epoch: int, size: int) -> Communicator:
    """Rank 0 of `size` ranks, two at least."""
    kind = PairRoot if size == 2 else StarRoot
    return kind(hub, liveness, epoch=epoch, size=size)


def leaf(spoke: Endpoint, liveness: Liveness, *, epoch: int, rank: int, size: int) -> Communicator:
    """Any other rank."""
    kind = PairLeaf if size == 2 else StarLeaf
    return kind(spoke, liveness, epoch=epoch, rank=rank, size=size)


class PairRoot(StarRoot):
    """Rank 0 of two."""

    _combine = Combine.ADD

    def _reduce(self, own: Array | None, frames: ReduceFrames, tag: Tag, sent: int) -> Array:
        what = Doing("all-reduce", tag)
        part = np.zeros(frames.shape, np.float32) if own is None else own
        if not sent:
            np.copyto(frames.array, part)
            frames.address(tag)
            self._mark_cancel(frames, tag)
            self._send_frame(frames.frame, what)
        self._sum(part, frames, tag, what)
        return frames.array

    def _reduced(self, tag: Tag, flags: int, header: TensorHeader) -> Reduced:
        return super()._reduced(tag, flags | ADD_OWN, header)


class PairLeaf(StarLeaf):
    """Rank 1 of two."""

    _combine = Combine.ADD

    def _answer(self, header: TensorHeader) -> Reduced:
        return Reduced(self._epoch, 0, 0, 0, ADD_OWN, header)

    def _complete(self, own: Array | None, received: Array, answer: Message | None) -> Array:
        if isinstance(answer, Reduced) and not answer.flags & ADD_OWN:
            raise ProtocolError("node 0 sent a sum where its own part was due: update tpiedge on both")
        return received if own is None else np.add(received, own, own)
