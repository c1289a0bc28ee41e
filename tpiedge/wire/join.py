"""Messages by which a worker joins: read by every version, whatever protocol the rest speaks.

Their fields never change (a change needs a new tag), so that master and worker can tell each other which versions
they are. They carry no epoch: who joins is not part of one yet.
"""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from tpiedge.wire.fields import U32, Blob, Key, MaxLength, Name, Text

JOIN_TAGS = range(64, 80)
JOIN_PROTOCOL = 0
"""Stands in these messages where others have PROTOCOL."""

RefusalKind = Literal[
    "secret", "expired", "used", "limited", "protocol", "torch", "numbers", "revoked", "unexpected", "denied"
]


@dataclass(frozen=True, slots=True)
class Enrol:
    """Worker to master, first of all. `secret` is that of a token; "" for a key that is known already.

    `name`: the computer's, for people. `nonce`: of this process, so that a restart shows. `torch`: the release it
    computes with. `numbers`: the byte order and the format of its floats.
    """

    protocol: U32
    version: Name
    name: Name
    secret: Annotated[str, MaxLength(64)] = field(repr=False)
    nonce: Name
    torch: Name
    numbers: Name


@dataclass(frozen=True, slots=True)
class Enrolled:
    """Master to worker: it belongs to `cluster` now, as `name`."""

    name: Name
    cluster: Name
    protocol: U32
    version: Name


@dataclass(frozen=True, slots=True)
class Refused:
    """Master to worker, before the connection is cut: why, in words for people."""

    kind: RefusalKind
    message: Text


@dataclass(frozen=True, slots=True)
class Knock:
    """Worker to master, without a token: it would like to be paired."""

    protocol: U32
    version: Name
    name: Name
    nonce: Blob


@dataclass(frozen=True, slots=True)
class Challenge:
    """Master to worker: its key and nonce."""

    master_key: Key
    nonce: Blob


@dataclass(frozen=True, slots=True)
class Reveal:
    """Worker to master: that it knows the code which it shows."""

    proof: Blob


@dataclass(frozen=True, slots=True)
class Verdict:
    """Master to worker: that the user typed the code into the master which has the key it said; or why not."""

    proof: Blob
    message: Text
