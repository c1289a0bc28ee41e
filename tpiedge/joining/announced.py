"""Masters as they announce themselves in the local network. Pure: what was heard in, what may be shown and tried out.

Nothing heard is trusted. It is an address to try, on a network that this machine is on, as one that a user types: who
is there is proved when the worker joins, by a code or a key that it knows. A cluster that somebody names says which
known key may be worth a try.
"""

import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from tpiedge.host.addresses import Address
from tpiedge.sanitise import sanitised_name

SERVICE: Final = "_tpiedge._tcp.local."
"""The type of service, as DNS-SD names it (RFC 6763)."""

_PROTOCOL: Final = b"protocol"
_CLUSTER: Final = b"cluster"
_DIGITS: Final = re.compile(rb"[0-9]{1,6}")
_CLUSTER_DIGITS: Final = re.compile(rb"[0-9a-f]{8}")
_LAST_PORT: Final = 65535 - 3


@dataclass(frozen=True)
class AnnouncedMaster:
    """What somebody says to be a master. `protocol`: of its messages; -1 where it does not say. `cluster`: as
    `identity.cluster_name`; empty where it does not say."""

    name: str
    address: Address
    protocol: int
    cluster: str = ""

    def words(self, protocol: int) -> str:
        """One line for a worker that speaks `protocol`."""
        other = "" if self.protocol == protocol else ", which is of another version of tpiedge"
        return f"{self.name} at {self.address}{other}"


def announcement(protocol: int, cluster: str) -> dict[str, str]:
    """What a master says beside its name and its port."""
    return {_PROTOCOL.decode(): str(protocol), _CLUSTER.decode(): cluster}


def labels(host: str, cluster: str) -> tuple[str, str]:
    """A master's name as the first part of a name in DNS, without a dot, which would end it; and another one where
    somebody else has that."""
    name = sanitised_name(host.partition(".")[0])[:48].strip() or "unnamed"
    return name, f"{name}-{cluster[:4]}"


def heard(
    name: str,
    addresses: Iterable[str],
    port: int | None,
    said: Mapping[bytes, bytes | None],
    networks: Iterable[ipaddress.IPv4Network],
) -> AnnouncedMaster | None:
    """A record of SERVICE, whose full name is `name`; None where it names no place to try. `networks`: those that this
    machine is on."""
    if port is None or not 1 <= port <= _LAST_PORT:
        return None
    own = tuple(networks)
    near = [address for address in addresses if _is_near(address, own)]
    if not near:
        return None
    protocol, cluster = said.get(_PROTOCOL) or b"", said.get(_CLUSTER) or b""
    return AnnouncedMaster(
        sanitised_name(name.removesuffix(f".{SERVICE}")),
        Address(min(near), port),
        int(protocol) if _DIGITS.fullmatch(protocol) else -1,
        cluster.decode("ascii") if _CLUSTER_DIGITS.fullmatch(cluster) else "",
    )


def _is_near(text: str, networks: Iterable[ipaddress.IPv4Network]) -> bool:
    """Whether this is the IPv4 address of a machine on one of the networks, loopback apart."""
    try:
        address = ipaddress.IPv4Address(text)
    except ValueError:
        return False
    elsewhere = address.is_loopback or address.is_multicast or address.is_unspecified
    return not elsewhere and any(address in network for network in networks)
