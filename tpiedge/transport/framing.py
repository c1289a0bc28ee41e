"""A message as frames: the encoded header, then the raw bytes of each tensor.

A `Plane` is one kind of connection with its limits; nothing larger is sent, nothing larger is read.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tpiedge.errors import ProtocolError
from tpiedge.transport.endpoint import Buffer, Envelope, MalformedMessage
from tpiedge.wire.codec import decode, encode, tensors_of
from tpiedge.wire.limits import MAX_CONTROL_HEADER, MAX_TENSOR_BYTES, MAX_TENSOR_HEADER
from tpiedge.wire.messages import Message
from tpiedge.wire.tensors import check_frames

__all__ = ["CONTROL", "TENSOR", "Framer", "Plane", "flatten", "read_frames"]


@dataclass(frozen=True, slots=True)
class Plane:
    """Limits of a connection in bytes, and how many messages may queue per peer and direction."""

    header_limit: int
    tensor_limit: int
    queue_length: int

    @property
    def frame_limit(self) -> int:
        return max(self.header_limit, self.tensor_limit)


CONTROL = Plane(MAX_CONTROL_HEADER, 0, 1000)
TENSOR = Plane(MAX_TENSOR_HEADER, MAX_TENSOR_BYTES, 256)


def flatten(tensor: Buffer) -> bytes | memoryview:
    """The bytes of a contiguous buffer without copying them."""
    if isinstance(tensor, bytes):
        return tensor
    view = memoryview(tensor)
    return view.cast("B") if view.nbytes else b""


class Framer:
    """Encodes the messages of one sender; the same two objects for several peers only once."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._last: tuple[Message, Sequence[Buffer], list[bytes | memoryview]] | None = None

    def frames(self, message: Message, tensors: Sequence[Buffer]) -> list[bytes | memoryview]:
        """All frames; ProtocolError where they would break the plane's limits or do not fit the message."""
        last = self._last
        if last is not None and last[0] is message and last[1] is tensors:
            return last[2]
        flat = [flatten(tensor) for tensor in tensors]
        _check_tensors(message, [len(tensor) for tensor in flat], self._plane)
        frames = [encode(message, self._plane.header_limit), *flat]
        self._last = (message, tensors, frames)
        return frames


def read_frames(sender: str, frames: Sequence[Buffer], plane: Plane) -> Envelope:
    """The envelope of received frames; MalformedMessage names the sender."""
    try:
        if not frames:
            raise ProtocolError("no frames at all")
        message = decode(frames[0], plane.header_limit)
        tensors = tuple(memoryview(frame).toreadonly() for frame in frames[1:])
        _check_tensors(message, [tensor.nbytes for tensor in tensors], plane)
    except ProtocolError as error:
        raise MalformedMessage(sender, str(error)) from None
    return Envelope(sender, message, tensors)


def _check_tensors(message: Message, sizes: list[int], plane: Plane) -> None:
    check_frames(tensors_of(message), sizes)
    if sizes and max(sizes) > plane.tensor_limit:
        raise ProtocolError(f"a tensor of {max(sizes)} bytes; this connection carries {plane.tensor_limit}")
