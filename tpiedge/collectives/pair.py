"""The star of two ranks, in one latency: each sends its part to the other, and both add in the order of ranks.

With a single leaf the sum need not travel: rank 0 sends its own part at once, marked ADD_OWN, instead of waiting for
the leaf's and answering with the sum. The bits are those of the star, p0 + p1.
"""

import time

import numpy as np
import torch

from tpiedge.collectives.arrays import Array, array_of, header_of
from tpiedge.collectives.communicator import Communicator, Doing, Liveness, Tag
from tpiedge.collectives.star import StarLeaf, StarRoot, owned
from tpiedge.collectives.summation import OrderedSum
from tpiedge.errors import ProtocolError
from tpiedge.transport.endpoint import Endpoint
from tpiedge.wire.codec import encode
from tpiedge.wire.data import ADD_OWN, CANCEL, Partial, Reduced
from tpiedge.wire.flat import FLAT_BYTES
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

    def all_reduce(self, partial: torch.Tensor, tag: Tag, *, contributes: bool = True) -> torch.Tensor:
        own = array_of(partial)
        what = Doing("all-reduce", tag)
        started = time.perf_counter()
        frames = self._frames_for(own.shape)
        frames.address(tag)
        part = own if contributes else np.zeros_like(own)
        np.copyto(frames.array, part)
        self.cancelled = self._cancel_requested
        if self.cancelled:
            frames.frame[:FLAT_BYTES] = encode(self._reduced(tag, CANCEL, header_of(own)))
        self._send_frame(frames.frame, what)
        with np.errstate(over="ignore", invalid="ignore"):
            total = OrderedSum(part, frames.array)
            expected = frames.expected(tag)
            for rank, theirs, _ in self._inbox.collect(Partial, tag, self._leaves, what, own.shape, expected):
                total.put(rank, theirs)
            total.finish(what)
        result = owned(partial, own, frames.array, contributes)
        self.wait_s += time.perf_counter() - started
        return result

    def _reduced(self, tag: Tag, flags: int, header: TensorHeader) -> Reduced:
        return super()._reduced(tag, flags | ADD_OWN, header)


class PairLeaf(StarLeaf):
    """Rank 1 of two."""

    def _answer(self, header: TensorHeader) -> Reduced:
        return Reduced(self._epoch, 0, 0, 0, ADD_OWN, header)

    def _complete(
        self, partial: torch.Tensor, own: Array, received: Array, answer: Message | None, contributes: bool
    ) -> torch.Tensor:
        if isinstance(answer, Reduced) and not answer.flags & ADD_OWN:
            raise ProtocolError("node 0 sent a sum where its own part was due: update tpiedge on both")
        if not contributes:
            return torch.from_numpy(received.copy())
        np.add(received, own, own)
        return partial
