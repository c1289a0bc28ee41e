"""A message as one frame: the encoded header, then the raw bytes of its tensor, and what all endpoints do with it.

A `Plane` is one kind of connection with its limits; nothing larger is sent, nothing larger is read.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tpiedge.errors import ProtocolError
from tpiedge.transport.endpoint import Buffer, Counters, Envelope, MalformedMessage
from tpiedge.units import MIB
from tpiedge.wire.codec import FLAT_BYTES, FLAT_MARK, decode, encode, tensors_of
from tpiedge.wire.limits import MAX_CONTROL_HEADER, MAX_FILE_CHUNK, MAX_TENSOR_BYTES, MAX_TENSOR_HEADER
from tpiedge.wire.messages import Message
from tpiedge.wire.tensors import check_tensors

# Of the largest frames, at a spoke.
_MOST_WAITING = 192 * MIB


@dataclass(frozen=True, slots=True)
class Plane:
    """Limits of a connection in bytes, and how many messages may queue per peer and direction.

    `waiting_limit`: bytes of one peer that may wait at a hub, besides a message of the largest size. `prompt`: a post
    or a close by another thread interrupts a wait at once. Without, it waits for up to 20 ms, and messages arrive a
    few microseconds sooner.
    """

    header_limit: int
    tensor_limit: int
    queue_length: int
    waiting_limit: int = 1 * MIB
    prompt: bool = True

    @property
    def frame_limit(self) -> int:
        return max(self.header_limit, FLAT_BYTES + self.tensor_limit)

    @property
    def receive_length(self) -> int:
        """How many messages may wait at a spoke, however large."""
        return max(1, min(self.queue_length, _MOST_WAITING // self.frame_limit))

    @property
    def backlog_limit(self) -> int:
        """Bytes of one peer that may wait at a hub."""
        return self.frame_limit + self.waiting_limit


CONTROL = Plane(MAX_CONTROL_HEADER, 0, 1000, waiting_limit=8 * MIB)
# Three chunks are under way at most (engine/steps.py), each with its hidden states, a part and, by two shots, a
# slice of the sum; with the plan and the end of the step before, eleven messages of a peer, of 1 MiB or one row each,
# or of twice as much where integers are wide. A spoke's libzmq keeps as many of them as `receive_length` says; the
# others wait at their sender.
TENSOR = Plane(MAX_TENSOR_HEADER, MAX_TENSOR_BYTES, 256, waiting_limit=16 * MIB, prompt=False)
FILES = Plane(MAX_TENSOR_HEADER, MAX_FILE_CHUNK, 8)


def frame_of(message: Message, tensors: Sequence[Buffer], plane: Plane) -> bytes:
    """The frame; ProtocolError where it would break the plane's limits or the tensors do not fit the message."""
    flat = [_flatten(tensor) for tensor in tensors]
    _check_tensors(message, [len(tensor) for tensor in flat], plane)
    return b"".join((encode(message, plane.header_limit), *flat))


def names_of(to: str | Sequence[str] | None) -> Sequence[str | None]:
    """The addressees that `Endpoint.send` is given, as a sequence."""
    return (to,) if to is None or isinstance(to, str) else to


def read_frame(sender: str, frame: Buffer, plane: Plane) -> Envelope:
    """The envelope of a received frame; MalformedMessage names the sender."""
    data = memoryview(frame).toreadonly()
    try:
        if not data or data[0] != FLAT_MARK:
            return Envelope(sender, decode(data, plane.header_limit))
        message = decode(data[:FLAT_BYTES], plane.header_limit)
        tensor = data[FLAT_BYTES:]
        tensors = (tensor,) if tensor or tensors_of(message) else ()
        _check_tensors(message, [tensor.nbytes for tensor in tensors], plane)
    except ProtocolError as error:
        raise MalformedMessage(sender, str(error)) from None
    return Envelope(sender, message, tensors)


def _flatten(tensor: Buffer) -> bytes | memoryview:
    """The bytes of a contiguous buffer without copying them."""
    if isinstance(tensor, bytes):
        return tensor
    view = memoryview(tensor)
    return view.cast("B") if view.nbytes else b""


def _check_tensors(message: Message, sizes: list[int], plane: Plane) -> None:
    check_tensors(tensors_of(message), sizes)
    if sizes and max(sizes) > plane.tensor_limit:
        raise ProtocolError(f"a tensor of {max(sizes)} bytes; this connection carries {plane.tensor_limit}")


SEND_TIMEOUT_S = 3.0


def messages_of(message: Message | Sequence[Message]) -> Sequence[Message]:
    """Those that were posted: one or several."""
    return message if isinstance(message, Sequence) else (message,)


class Messages:
    """Messages over an endpoint's own frames."""

    _plane: Plane

    def send(
        self,
        message: Message,
        tensors: Sequence[Buffer] = (),
        to: str | Sequence[str] | None = None,
        timeout_s: float | None = None,
    ) -> None:
        self.send_frame(frame_of(message, tensors, self._plane), to, timeout_s)

    def recv(self, timeout_s: float) -> Envelope | None:
        received = self.recv_frame(timeout_s)
        return None if received is None else self.read(*received)

    def read(self, sender: str, frame: memoryview) -> Envelope:
        raise NotImplementedError

    def send_frame(
        self, frame: Buffer, to: str | Sequence[str] | None = None, timeout_s: float | None = None
    ) -> None:
        raise NotImplementedError

    def recv_frame(self, timeout_s: float) -> tuple[str, memoryview] | None:
        raise NotImplementedError


class Messaging(Messages):
    """An Endpoint but for its frames."""

    def __init__(self, name: str, plane: Plane) -> None:
        self.name = name
        self.counters = Counters()
        self.bytes_sent = 0
        self.bytes_received = 0
        self._plane = plane

    def read(self, sender: str, frame: memoryview) -> Envelope:
        try:
            return read_frame(sender, frame, self._plane)
        except MalformedMessage:
            self.counters.malformed += 1
            raise
