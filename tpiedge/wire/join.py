"""Defines the messages by which a worker joins. Every version of tpiedge reads them.

Their fields never change; a change needs a new tag.
"""

from typing import Annotated, Literal

from msgspec import Meta

from tpiedge.wire.fields import U32, Blob, Key, Message, Name, Text

JOIN_TAGS = range(64, 80)
JOIN_PROTOCOL = 0
"""Takes the place of PROTOCOL in these messages."""

RefusalKind = Literal[
    "secret", "expired", "used", "limited", "protocol", "torch", "numbers", "revoked", "unexpected", "denied"
]


class Enrol(Message, frozen=True, tag=64):
    """Worker to master: the first message."""

    protocol: U32
    version: Name
    name: Name  # the computer's name
    secret: Annotated[str, Meta(max_length=64)]  # of a token; "" for a member
    nonce: Name  # new in each process, so restarts show
    torch: Name  # the release; "" without torch
    numbers: Name  # byte order and float format

    def __repr__(self) -> str:
        return f"Enrol({self.name!r}, version {self.version!r}, a secret that is not shown)"


class Enrolled(Message, frozen=True, tag=65):
    """Master to worker: the worker belongs to `cluster` as `name`."""

    name: Name
    cluster: Name
    protocol: U32
    version: Name


class Refused(Message, frozen=True, tag=66):
    """Master to worker, before the master cuts the connection. `message` is a text for people."""

    kind: RefusalKind
    message: Text


class PairingRequest(Message, frozen=True, tag=67):
    """Worker without a token to master: asks for pairing."""

    protocol: U32
    version: Name
    name: Name
    nonce: Blob


class Challenge(Message, frozen=True, tag=68):
    """Master to worker: the master's key and nonce."""

    master_key: Key
    nonce: Blob


class Reveal(Message, frozen=True, tag=69):
    """Worker to master: `proof` that the worker knows the code."""

    proof: Blob


class PairingResult(Message, frozen=True, tag=70):
    """Master to worker: `proof` that the user typed the code at the master, or else a `message`."""

    proof: Blob
    message: Text
