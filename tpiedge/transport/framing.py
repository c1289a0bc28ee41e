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

__all__ = ["CONTROL", "TENSOR", "Plane", "flatten", "frames_of", "names_of", "read_frames"]


@dataclass(frozen=True, slots=True)
class Plane:
    """Limits of a connection in bytes, and how many messages may queue per peer and direction.

    `prompt`: a post or a close by another thread interrupts a wait at once. Without, it waits for up to 20 ms,
    and messages arrive a few microseconds sooner.
    """

    header_limit: int
    tensor_limit: int
    queue_length: int
    prompt: bool = True

    @property
    def frame_limit(self) -> int:
        return max(self.header_limit, self.tensor_limit)


CONTROL = Plane(MAX_CONTROL_HEADER, 0, 1000)
TENSOR = Plane(MAX_TENSOR_HEADER, MAX_TENSOR_BYTES, 256, prompt=False)


def flatten(tensor: Buffer) -> bytes | memoryview:
    """The bytes of a contiguous buffer without copying them."""
    if isinstance(tensor, bytes):
        return tensor
    view = memoryview(tensor)
    return view.cast("B") if view.nbytes else b""


def frames_of(message: Message, tensors: Sequence[Buffer], plane: Plane) -> list[bytes | memoryview]:
    """All frames; ProtocolError where they would break the plane's limits or do not fit the message."""
    flat = [flatten(tensor) for tensor in tensors]
    _check_tensors(message, [len(tensor) for tensor in flat], plane)
    return [encode(message, plane.header_limit), *flat]


def names_of(to: str | Sequence[str] | None) -> Sequence[str | None]:
    """The addressees that `Endpoint.send` is given, as a sequence."""
    return (to,) if to is None or isinstance(to, str) else to


def read_frames(sender: str, frames: Sequence[Buffer], plane: Plane) -> Envelope:
    """The envelope of received frames; MalformedMessage names the sender."""
    try:
        if not frames:
            raise ProtocolError("no frames at all")
        message = decode(frames[0], plane.header_limit)
        tensors = tuple([memoryview(frame).toreadonly() for frame in frames[1:]])
        _check_tensors(message, [tensor.nbytes for tensor in tensors], plane)
    except ProtocolError as error:
        raise MalformedMessage(sender, str(error)) from None
    return Envelope(sender, message, tensors)


def _check_tensors(message: Message, sizes: list[int], plane: Plane) -> None:
    headers = tensors_of(message)
    if len(headers) == 1 == len(sizes) and sizes[0] == headers[0].nbytes <= plane.tensor_limit:
        return
    check_frames(headers, sizes)
    if sizes and max(sizes) > plane.tensor_limit:
        raise ProtocolError(f"a tensor of {max(sizes)} bytes; this connection carries {plane.tensor_limit}")
