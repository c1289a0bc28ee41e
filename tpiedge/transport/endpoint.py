"""The transport as the rest of tpiedge sees it: a hub that many spokes connect to.

Messages between one hub and one spoke arrive in the order sent, or the peer is gone. One thread owns an
endpoint: it alone calls `send` and `recv`. `post`, `close` and the counters are for any thread.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Protocol

from tpiedge.errors import PeerError, ProtocolError, TpiedgeError
from tpiedge.wire.messages import Message

if TYPE_CHECKING:
    from tpiedge.transport.admission import Admission


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
        self.hub = hub


@dataclass(frozen=True, slots=True)
class Envelope:
    """A message as received. `tensors`: read-only views of the received bytes, one per tensor header."""

    sender: str
    message: Message
    tensors: tuple[memoryview, ...] = ()


@dataclass(slots=True)
class Counters:
    """What was thrown away, and why. Nothing else remembers it.

    rejected: handshakes with a key that is not admitted. impostor: connections whose routing id is not the
    name that belongs to the key. revoked: messages of peers that are admitted no more. duplicate: messages
    of a second process under a name in use. malformed: raised as MalformedMessage. undeliverable: posted
    messages whose peer was gone when their turn came, or that were not taken before the end.
    """

    rejected: int = 0
    impostor: int = 0
    revoked: int = 0
    duplicate: int = 0
    malformed: int = 0
    undeliverable: int = 0

    def add(self, other: "Counters") -> None:
        """Count what `other` has counted as well."""
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))


class Endpoint(Protocol):
    """One end. A hub names the peer in `to`; a spoke has one peer, the hub, and leaves `to` out."""

    @property
    def address(self) -> str:
        """Where spokes connect to: the hub's own address."""
        ...

    @property
    def bytes_sent(self) -> int:
        """Headers and tensors handed to the transport."""
        ...

    @property
    def bytes_received(self) -> int: ...

    @property
    def counters(self) -> Counters: ...

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
        ...

    def recv(self, timeout_s: float) -> Envelope | None:
        """The next message, or None after `timeout_s`.

        Raises MalformedMessage, LinkReset (hub), DuplicateName (spoke): the endpoint goes on working;
        EndpointClosed: it does not.
        """
        ...

    def send_frame(
        self, frame: Buffer, to: str | Sequence[str] | None = None, timeout_s: float | None = None
    ) -> None:
        """As `send`, of a frame as `framing.frame_of` makes it. Not looked at again."""
        ...

    def recv_frame(self, timeout_s: float) -> tuple[str, memoryview] | None:
        """As `recv`, up to the reading: the sender and the frame, whose contents are not checked yet."""
        ...

    def read(self, sender: str, frame: memoryview) -> Envelope:
        """What `recv_frame` gave, read. MalformedMessage, which is counted."""
        ...

    def post(self, message: Message | Sequence[Message], to: str | None = None) -> None:
        """Queue a message without tensors, or several for one waking, from any thread; the owner sends it inside
        `recv` (or its next `send`).

        At a spoke it waits until the hub takes it, after those that were posted before. Raises ProtocolError at once
        where it cannot be encoded; is counted as undeliverable where `to` is gone.
        """
        ...

    @property
    def posted(self) -> int:
        """How many of them wait."""
        ...

    def close(self) -> None:
        """Free everything; a wait in progress ends with EndpointClosed. Idempotent."""
        ...


class Hub(Endpoint, Protocol):
    """The control plane's hub as the master sees it. `wake` and `admission` are for any thread."""

    @property
    def admission(self) -> "Admission": ...

    def wake(self) -> None:
        """End a wait in `recv` that is under way, or else the next one, as if its time were up."""
        ...

    def address_of(self, name: str) -> str:
        """The IP address that `name` is connected from, "" where it is not known."""
        ...

    def is_connected(self, name: str) -> bool:
        """Whether the connection of `name` stands, as far as this computer knows: it is told at once of a process that
        ended there, and of packets that vanish only after minutes."""
        ...

    def disconnect(self, name: str, farewell: Message | None = None) -> None:
        """Forget the connection of `name`, which is admitted no more; `farewell` is the last it may hear."""
        ...
