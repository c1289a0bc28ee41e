"""What the all-reduces of one shape have in common: made once, filled in for every block.

An all-reduce runs right after a wake-up, when every call of Python costs several times the usual. So the tensor is
computed in the frame that is sent, and the header of an answer is not read but compared with the expected one.
"""

from collections.abc import Mapping
from typing import Final

from tpiedge.collectives.arrays import Array, frame_array
from tpiedge.collectives.communicator import Tag
from tpiedge.transport.endpoint import Endpoint
from tpiedge.transport.reduction import Combine, Exchange, Reduce, Reduces
from tpiedge.wire.data import Partial, Reduced
from tpiedge.wire.flat import FLAT_BYTES
from tpiedge.wire.stencil import PLACE_AT, PLACE_BYTES, Stencil
from tpiedge.wire.tensors import TensorHeader, check_tensors

__all__ = ["Expected", "ReduceFrames", "Shape"]

Shape = tuple[int, ...]


class Expected:
    """Frames that need no closer look: as long as `shape` wants, and with just this header for their sender."""

    __slots__ = ("_bytes", "_headers", "shape")

    def __init__(self, shape: Shape, frame_bytes: int, headers: Mapping[int, bytes]) -> None:
        self.shape: Final = shape
        self._bytes = frame_bytes
        self._headers = headers

    def matches(self, rank: int, frame: memoryview) -> bool:
        return len(frame) == self._bytes and bytes(frame[:FLAT_BYTES]) == self._headers.get(rank)


class ReduceFrames:
    """The outgoing frame with its tensor `array`, and the headers that each rank should answer with.

    The place in `outgoing` and `incoming` is of no account.
    """

    def __init__(
        self, header: TensorHeader, outgoing: Partial | Reduced, incoming: Mapping[int, Partial | Reduced]
    ) -> None:
        check_tensors((header,), (header.nbytes,))
        self.shape: Final = header.shape
        self.frame: Final = bytearray(FLAT_BYTES + header.nbytes)
        self.array: Final[Array] = frame_array(self.frame, header.shape)
        self._outgoing = Stencil(outgoing)
        self._incoming = [(rank, Stencil(message)) for rank, message in incoming.items()]
        self.reduce: Reduce | None = None
        """The whole all-reduce in one call, where the endpoint can."""

    def reduce_through(self, endpoint: Endpoint, combine: Combine, names: Mapping[int, str]) -> None:
        """Set `reduce`. `names`: what `endpoint` calls the ranks."""
        if isinstance(endpoint, Reduces):
            answers = {names[rank]: stencil.at(0, 0, 0) for rank, stencil in self._incoming}
            header = self._outgoing.at(0, 0, 0)
            exchange = Exchange(combine, header, answers, PLACE_AT, PLACE_BYTES, self.frame)
            self.reduce = endpoint.reducer(exchange)

    def address(self, tag: Tag) -> None:
        """Make the outgoing frame one of `tag`."""
        self.frame[:FLAT_BYTES] = self._outgoing.at(tag.step, tag.block, tag.chunk)

    def expected(self, tag: Tag) -> Expected:
        step, block, chunk = tag.step, tag.block, tag.chunk
        headers = {rank: stencil.at(step, block, chunk) for rank, stencil in self._incoming}
        return Expected(self.shape, len(self.frame), headers)
