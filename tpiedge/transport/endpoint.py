"""The transport as the rest of tpiedge sees it: a hub that many spokes connect to, and messages as frames.

A frame is the encoded header, then the raw bytes of its tensor. A `Plane` is one kind of connection with its limits;
nothing larger is sent, nothing larger is read. Messages between one hub and one spoke arrive in the order sent, or the
peer is gone. One thread owns an endpoint: it alone calls `send` and `recv`. `post`, `close` and the counters are for
any thread.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpiedge.errors import PeerError, ProtocolError, TpiedgeError
from tpiedge.units import MIB
from tpiedge.wire.codec import FLAT_BYTES, FLAT_MARK, decode, encode, tensors_of
from tpiedge.wire.fields import (
    MAX_CONTROL_HEADER,
    MAX_FILE_CHUNK,
    MAX_TENSOR_BYTES,
    MAX_TENSOR_HEADER,
    Message,
)

if TYPE_CHECKING:
    from tpiedge.transport.admission import Admission

SEND_TIMEOUT_S = 3.0
# Of the largest frames, at a spoke.
_MOST_WAITING = 192 * MIB

Buffer = bytes | bytearray | memoryview
"""Contiguous bytes, flat or not (`memoryview(array)`); may change as soon as `send` returns."""


class EndpointClosed(TpiedgeError):
    """`close` was called, perhaps by another thread during a wait."""


class Unreachable(PeerError):
    """The peer `peer` is not connected, or does not take any more."""

    def __init__(self, peer: str, waited_s: float) -> None:
        super().__init__(f"{peer} cannot be reached (waited {waited_s:.1f} s)")
        self.peer = peer


class MalformedMessage(ProtocolError):
    """The admitted peer `peer` sent what the protocol does not allow."""

    def __init__(self, peer: str, cause: str) -> None:
        super().__init__(f"{peer} sent a malformed message: {cause}")
        self.peer = peer


class LinkReset(PeerError):
    """The connection of `peer` broke and was made anew, perhaps by a restarted process.

    Messages of either direction may have been lost in between. `cause`: why it broke, where that is known;
    `broke`: that it did and why, for a sentence about the connection.
    """

    def __init__(self, peer: str, cause: str = "") -> None:
        self.broke = f"broke and was made anew{cause and ': '}{cause}"
        super().__init__(f"the connection of {peer} {self.broke}")
        self.peer = peer


class DuplicateName(PeerError):
    """The hub `hub` already serves a living process under this endpoint's name."""

    def __init__(self, hub: str, name: str) -> None:
        super().__init__(
            f"{hub} already has a living {name}: stop that process, or give this one a --state of its own"
        )


@dataclass(frozen=True, slots=True)
class Envelope:
    """A message as received. `tensors`: read-only views of the received bytes, one per tensor header."""

    sender: str
    message: Message
    tensors: tuple[memoryview, ...] = ()


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
    headers = tensors_of(message)
    if len(headers) != len(sizes):
        raise ProtocolError(f"{len(sizes)} tensors for {len(headers)} tensor headers")
    for header, count in zip(headers, sizes, strict=True):
        expected, most = header.nbytes, plane.tensor_limit
        if expected > most:
            raise ProtocolError(f"tensor of {expected} bytes; a message holds at most {most} here")
        if count != expected:
            raise ProtocolError(f"tensor of {count} bytes where {header} needs {expected}")


@dataclass(slots=True)
class Counters:
    """What passed, headers and tensors, and what was thrown away, and why. Nothing else remembers it.

    rejected: handshakes with a key that is not admitted. impostor: connections whose routing id is not the
    name that belongs to the key. revoked: messages of peers that are admitted no more. duplicate: messages
    of a second process under a name in use. malformed: raised as MalformedMessage.
    """

    rejected: int = 0
    impostor: int = 0
    revoked: int = 0
    duplicate: int = 0
    malformed: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0


class Endpoint:
    """One end. A hub names the peer in `to`; a spoke has one peer, the hub, and leaves `to` out."""

    address: str
    """Where spokes connect to: the hub's own address."""

    def __init__(self, name: str, plane: Plane) -> None:
        self.name = name
        self.counters = Counters()
        self._plane = plane

    @property
    def bytes_sent(self) -> int:
        return self.counters.bytes_sent

    @property
    def bytes_received(self) -> int:
        return self.counters.bytes_received

    def send(
        self,
        message: Message,
        tensors: Sequence[Buffer] = (),
        to: str | Sequence[str] | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Hand over a message; waits up to `timeout_s` (default: the endpoint's) for each peer to be there.

        A hub may name several peers: the message is encoded once and goes to them in this order. Unreachable
        names the first that did not get it; those after it did not either.

        ProtocolError: too large, or the tensors do not fit the message; nothing was sent. Unreachable,
        EndpointClosed.
        """
        self.send_frame(frame_of(message, tensors, self._plane), to, timeout_s)

    def recv(self, timeout_s: float) -> Envelope | None:
        """The next message, or None after `timeout_s`.

        Raises MalformedMessage, LinkReset (hub), DuplicateName (spoke): the endpoint goes on working;
        EndpointClosed: it does not.
        """
        received = self.recv_frame(timeout_s)
        return None if received is None else self.read(*received)

    def send_frame(
        self, frame: Buffer, to: str | Sequence[str] | None = None, timeout_s: float | None = None
    ) -> None:
        """As `send`, of a frame as `frame_of` makes it. Not looked at again."""
        raise NotImplementedError

    def recv_frame(self, timeout_s: float) -> tuple[str, memoryview] | None:
        """As `recv`, up to the reading: the sender and the frame, whose contents are not checked yet."""
        raise NotImplementedError

    def read(self, sender: str, frame: memoryview) -> Envelope:
        """What `recv_frame` gave, read. MalformedMessage, which is counted."""
        try:
            return read_frame(sender, frame, self._plane)
        except MalformedMessage:
            self.counters.malformed += 1
            raise

    def post(self, message: Message | Sequence[Message], to: str | None = None) -> None:
        """Queue a message without tensors, or several for one waking, from any thread; the owner sends it inside
        `recv` (or its next `send`).

        At a spoke it waits until the hub takes it, after those that were posted before. Raises ProtocolError at once
        where it cannot be encoded; is dropped where `to` is gone.
        """
        messages = message if isinstance(message, Sequence) else (message,)
        self._queue([(frame_of(one, (), self._plane), to) for one in messages])

    def _queue(self, frames: Sequence[tuple[bytes, str | None]]) -> None:
        raise NotImplementedError

    @property
    def posted(self) -> int:
        """How many of them wait."""
        raise NotImplementedError

    def close(self) -> None:
        """Free everything; a wait in progress ends with EndpointClosed. Idempotent."""
        raise NotImplementedError


class Hub(Endpoint):
    """The control plane's hub as the master sees it. `wake` and `admission` are for any thread."""

    admission: "Admission"

    def wake(self) -> None:
        """End a wait in `recv` that is under way, or else the next one, as if its time were up."""
        raise NotImplementedError

    def address_of(self, name: str) -> str:
        """The IP address that `name` is connected from, "" where it is not known. For the owner."""
        raise NotImplementedError

    def is_connected(self, name: str) -> bool:
        """Whether the connection of `name` stands, as far as this computer knows: it is told at once of a process that
        ended there, and of packets that vanish only after minutes. For the owner."""
        raise NotImplementedError

    def disconnect(self, name: str, farewell: Message | None = None) -> None:
        """Forget the connection of `name`, which is admitted no more; `farewell` is the last it may hear. For the
        owner."""
        raise NotImplementedError
