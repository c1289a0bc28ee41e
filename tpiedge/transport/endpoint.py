"""Defines the transport's interface: a hub with many spokes.

A frame is an encoded message and its tensor's raw bytes. A connection's messages arrive in order. One thread owns an
endpoint. Other threads may call `post` and `close` and read counters.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpiedge.errors import PeerError, ProtocolError, TpiedgeError
from tpiedge.units import MIB
from tpiedge.wire.codec import FLAT_BYTES, FLAT_MARK, decode, encode, tensor_of
from tpiedge.wire.fields import (
    MAX_CONTROL_HEADER,
    MAX_FILE_CHUNK,
    MAX_TENSOR_BYTES,
    MAX_TENSOR_HEADER,
    Message,
)

if TYPE_CHECKING:
    from tpiedge.transport.native_reducer import Exchange, Reduce

SEND_TIMEOUT_S = 3.0
# Bytes of the largest frames that may wait at a spoke.
_MOST_WAITING = 192 * MIB

Buffer = bytes | bytearray | memoryview
"""Contiguous memory of any shape; may change as soon as `send` returns."""


class EndpointClosed(TpiedgeError):
    """`close` was called, perhaps during a wait."""


class Unreachable(PeerError):
    """The peer `peer` is not connected, or takes no frame."""

    def __init__(self, peer: str, waited_s: float) -> None:
        super().__init__(f"{peer} cannot be reached (waited {waited_s:.1f} s)")
        self.peer = peer


class MalformedMessage(ProtocolError):
    """The admitted peer `peer` broke the protocol."""

    def __init__(self, peer: str, cause: str) -> None:
        super().__init__(f"{peer} sent a malformed message: {cause}")
        self.peer = peer


class LinkReset(PeerError):
    """The connection of `peer` was re-established. Messages may be lost. `broke` says how the old connection broke."""

    def __init__(self, peer: str, cause: str = "") -> None:
        self.broke = f"broke and was made anew{cause and ': '}{cause}"
        super().__init__(f"the connection of {peer} {self.broke}")
        self.peer = peer


class DuplicateName(PeerError):
    """The hub already serves a living process of the same name."""

    def __init__(self, hub: str, name: str) -> None:
        super().__init__(
            f"{hub} already has a living {name}: stop that process, or give this one a --state of its own"
        )


@dataclass(frozen=True, slots=True)
class Envelope:
    """A received message. `tensor` is a read-only view of the received bytes."""

    sender: str
    message: Message
    tensor: memoryview | None = None


@dataclass(frozen=True, slots=True)
class Plane:
    """Limits of a link. Sizes are in bytes."""

    header_limit: int
    tensor_limit: int
    queue_length: int  # messages per peer and direction
    waiting_limit: int = 1 * MIB  # bytes of a peer that may wait at a hub beside one message
    prompt: bool = True  # a post or close ends a wait at once, else within 20 ms

    @property
    def frame_limit(self) -> int:
        return max(self.header_limit, FLAT_BYTES + self.tensor_limit)

    @property
    def receive_length(self) -> int:
        """The most messages that may wait at a spoke."""
        return max(1, min(self.queue_length, _MOST_WAITING // self.frame_limit))

    @property
    def backlog_limit(self) -> int:
        """The most bytes of one peer that may wait at a hub."""
        return self.frame_limit + self.waiting_limit


CONTROL = Plane(MAX_CONTROL_HEADER, 0, 1000, waiting_limit=8 * MIB)
# At most three chunks are under way (engine/steps.py), each with hidden states, a part and, in a two-shot, a slice of
# the sum. With the plan and the end of the previous step, a peer has up to eleven messages, of 1 MiB or one row each,
# or twice that for wide integers. Messages beyond a spoke's `receive_length` wait at their sender.
TENSOR = Plane(MAX_TENSOR_HEADER, MAX_TENSOR_BYTES, 256, waiting_limit=16 * MIB, prompt=False)
FILES = Plane(MAX_TENSOR_HEADER, MAX_FILE_CHUNK, 8)


def frame_of(message: Message, tensor: Buffer | None, plane: Plane) -> bytes:
    """Encodes a message. Raises ProtocolError."""
    view = None if tensor is None else memoryview(tensor)
    _check_tensor(message, None if view is None else view.nbytes, plane)
    header = encode(message, plane.header_limit)
    return header if view is None or not view.nbytes else b"".join((header, view.cast("B")))


def names_of(to: str | Sequence[str] | None) -> Sequence[str | None]:
    return (to,) if to is None or isinstance(to, str) else to


def read_frame(sender: str, frame: Buffer, plane: Plane) -> Envelope:
    """Decodes a frame. Raises MalformedMessage."""
    data = memoryview(frame).toreadonly()
    try:
        if not data or data[0] != FLAT_MARK:
            return Envelope(sender, decode(data, plane.header_limit))
        message = decode(data[:FLAT_BYTES], plane.header_limit)
        tensor = data[FLAT_BYTES:] if len(data) > FLAT_BYTES or tensor_of(message) else None
        _check_tensor(message, None if tensor is None else tensor.nbytes, plane)
    except ProtocolError as error:
        raise MalformedMessage(sender, str(error)) from None
    return Envelope(sender, message, tensor)


def _check_tensor(message: Message, count: int | None, plane: Plane) -> None:
    header = tensor_of(message)
    if header is None and count is not None:
        raise ProtocolError("a tensor without its header")
    if header is None:
        return
    if count is None:
        raise ProtocolError("a tensor header without its tensor")
    if header.nbytes > plane.tensor_limit:
        raise ProtocolError(
            f"tensor of {header.nbytes} bytes; a message holds at most {plane.tensor_limit} here"
        )
    if count != header.nbytes:
        raise ProtocolError(f"tensor of {count} bytes where {header} needs {header.nbytes}")


@dataclass(slots=True)
class Counters:
    """`refused` counts handshakes and messages that no honest peer sends."""

    refused: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0


class Endpoint:
    """A hub or a spoke. A hub needs the peer's name in `to`."""

    address: str

    def __init__(self, name: str, plane: Plane) -> None:
        self.name = name
        self.counters = Counters()
        self._plane = plane

    def send(
        self,
        message: Message,
        tensor: Buffer | None = None,
        to: str | Sequence[str] | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Sends to each peer in order, each within `timeout_s` (None: SEND_TIMEOUT_S). Raises Unreachable at the first
        failure. Raises ProtocolError before it sends."""
        self.send_frame(frame_of(message, tensor, self._plane), to, timeout_s)

    def recv(self, timeout_s: float) -> Envelope | None:
        """Returns the next message, or None after `timeout_s`. After MalformedMessage, LinkReset or DuplicateName, call
        again."""
        received = self.recv_frame(timeout_s)
        if received is None:
            return None
        try:
            return read_frame(*received, self._plane)
        except MalformedMessage:
            self.counters.refused += 1
            raise

    def send_frame(
        self, frame: Buffer, to: str | Sequence[str] | None = None, timeout_s: float | None = None
    ) -> None:
        """Sends a frame of `frame_of` as `send` does, without checks."""
        raise NotImplementedError

    def recv_frame(self, timeout_s: float) -> tuple[str, memoryview] | None:
        """Returns (sender, frame) like `recv`, but does not decode the frame."""
        raise NotImplementedError

    def reducer(self, _exchange: "Exchange") -> "Reduce | None":
        """Returns a native all-reduce, or None if it would be useless or impossible."""
        return None

    def post(self, message: Message | Sequence[Message], to: str | None = None) -> None:
        """Queues messages, from any thread. The owner's next `recv` or `send` sends them. A hub drops messages to
        absent peers."""
        messages = message if isinstance(message, Sequence) else (message,)
        self._queue([(frame_of(one, None, self._plane), to) for one in messages])

    def _queue(self, frames: Sequence[tuple[bytes, str | None]]) -> None:
        raise NotImplementedError

    @property
    def posted(self) -> int:
        raise NotImplementedError

    def close(self) -> None:
        """Frees everything. Ends a wait with EndpointClosed. Idempotent."""
        raise NotImplementedError
