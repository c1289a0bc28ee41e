"""Messages by which a worker joins: read by every version, whatever protocol the rest speaks.

Their fields never change (a change needs a new tag), so that master and worker can tell each other which versions
they are. They carry no epoch: who joins is not part of one yet.
"""

from typing import Annotated, Literal

from msgspec import Meta

from tpiedge.wire.fields import U32, Blob, Key, Message, Name, Text

JOIN_TAGS = range(64, 80)
JOIN_PROTOCOL = 0
"""Stands in these messages where others have PROTOCOL."""

RefusalKind = Literal[
    "secret", "expired", "used", "limited", "protocol", "torch", "numbers", "revoked", "unexpected", "denied"
]


class Enrol(Message, frozen=True):
    """Worker to master, first of all. `secret` is that of a token; "" for a key that is known already.

    `name`: the computer's, for people. `nonce`: of this process, so that a restart shows. `torch`: the release it
    computes with. `numbers`: the byte order and the format of its floats.
    """

    protocol: U32
    version: Name
    name: Name
    secret: Annotated[str, Meta(max_length=64)]
    nonce: Name
    torch: Name
    numbers: Name

    def __repr__(self) -> str:
        return f"Enrol({self.name!r}, version {self.version!r}, a secret that is not shown)"


class Enrolled(Message, frozen=True):
    """Master to worker: it belongs to `cluster` now, as `name`."""

    name: Name
    cluster: Name
    protocol: U32
    version: Name


class Refused(Message, frozen=True):
    """Master to worker, before the connection is cut: why, in words for people."""

    kind: RefusalKind
    message: Text


class Knock(Message, frozen=True):
    """Worker to master, without a token: it would like to be paired."""

    protocol: U32
    version: Name
    name: Name
    nonce: Blob


class Challenge(Message, frozen=True):
    """Master to worker: its key and nonce."""

    master_key: Key
    nonce: Blob


class Reveal(Message, frozen=True):
    """Worker to master: that it knows the code which it shows."""

    proof: Blob


class Verdict(Message, frozen=True):
    """Master to worker: that the user typed the code into the master which has the key it said; or why not."""

    proof: Blob
    message: Text
