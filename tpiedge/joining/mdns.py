"""Announces and finds masters in the local network.

A found address is not trusted. A worker that joins checks the master by a code or a known key.
"""

import contextlib
import ipaddress
import logging
import queue
import re
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import zeroconf

from tpiedge.errors import UserError
from tpiedge.host.addresses import PURPOSES, Address, own_networks
from tpiedge.sanitise import sanitised_name

SERVICE: Final = "_tpiedge._tcp.local."

# Time for the other answers, after the first one.
_SETTLE_S: Final = 1.5
# Further masters are ignored, but --connect can still name them.
_MOST: Final = 32


@dataclass(frozen=True)
class AnnouncedMaster:
    """An announced master, not verified."""

    name: str
    address: Address
    protocol: int  # -1 if missing
    cluster: str = ""  # an `identity.cluster_name`, or ""

    def words(self, protocol: int) -> str:
        other = "" if self.protocol == protocol else ", which is of another version of tpiedge"
        return f"{self.name} at {self.address}{other}"


def labels(host: str, cluster: str) -> tuple[str, str]:
    """Returns a master's DNS label, and another in case the first is taken."""
    name = sanitised_name(host.partition(".")[0])[:48].strip() or "unnamed"
    return name, f"{name}-{cluster[:4]}"


def read_record(
    name: str,
    addresses: Iterable[str],
    port: int | None,
    said: Mapping[bytes, bytes | None],
    networks: Iterable[ipaddress.IPv4Network],
) -> AnnouncedMaster | None:
    """Reads a record. Returns None if it lacks a valid port or an address in `networks`."""
    own, near = tuple(networks), []
    for text in addresses:
        with contextlib.suppress(ValueError):  # it is not an IPv4 address
            address = ipaddress.IPv4Address(text)
            elsewhere = address.is_loopback or address.is_multicast or address.is_unspecified
            if not elsewhere and any(address in network for network in own):
                near.append(text)
    if port is None or not 1 <= port <= 65535 - max(PURPOSES) or not near:
        return None
    protocol, cluster = said.get(b"protocol") or b"", said.get(b"cluster") or b""
    return AnnouncedMaster(
        sanitised_name(name.removesuffix(f".{SERVICE}")),
        Address(min(near), port),
        int(protocol) if re.fullmatch(rb"[0-9]{1,6}", protocol) else -1,
        cluster.decode("ascii") if re.fullmatch(rb"[0-9a-f]{8}", cluster) else "",
    )


@contextlib.contextmanager
def announced(host: str, address: Address, protocol: int, cluster: str) -> Iterator[str]:
    """Announces a master at `address` (numeric, IPv4) during a `with` statement. Yields the announced name. Raises
    UserError."""
    names, said = labels(host, cluster), {"protocol": str(protocol), "cluster": cluster}
    with _opened([address.host]) as mdns:
        try:
            given = next((name for name in names if _has(mdns, name, address, said)), None)
        except (OSError, zeroconf.Error) as error:
            raise UserError(f"mDNS at {address.host}: {error or type(error).__name__}") from None
        if given is None:
            raise UserError(f"others in this network claim the names {' and '.join(names)}")
        yield given


def _has(mdns: zeroconf.Zeroconf, name: str, address: Address, said: dict[str, str]) -> bool:
    record = zeroconf.ServiceInfo(
        SERVICE,
        f"{name}.{SERVICE}",
        port=address.port,
        properties=said,
        # Two machines may have one name; this random one stands for the address.
        server=f"tpiedge-{secrets.token_hex(8)}.local.",
        parsed_addresses=[address.host],
    )
    try:
        mdns.register_service(record)
    except zeroconf.NonUniqueNameException:
        return False
    return True


def masters_nearby(limit_s: float) -> tuple[AnnouncedMaster, ...]:
    """Returns the masters that are announced in this machine's networks. Takes about `limit_s`. Raises UserError."""
    names: dict[str, None] = {}
    changed: queue.SimpleQueue[str] = queue.SimpleQueue()  # filled by zeroconf's thread
    with _opened(zeroconf.InterfaceChoice.All) as mdns:
        browser = zeroconf.ServiceBrowser(
            mdns, SERVICE, handlers=[lambda **event: changed.put(event["name"])]
        )
        until = deadline = time.monotonic() + limit_s
        with contextlib.suppress(queue.Empty):  # no other answered in time
            while len(names) < _MOST and (left_s := until - time.monotonic()) > 0:
                names[changed.get(timeout=left_s)] = None
                until = min(until, time.monotonic() + _SETTLE_S)
        browser.cancel()
        found = {_master(mdns, name, deadline) for name in names}
    # Several masters may claim one name.
    return tuple(sorted(filter(None, found), key=lambda one: (one.name, str(one.address), one.protocol)))


def _master(mdns: zeroconf.Zeroconf, name: str, deadline: float) -> AnnouncedMaster | None:
    try:
        record = zeroconf.ServiceInfo(SERVICE, name)
    except zeroconf.BadTypeInNameException:  # anyone may send records of other services
        return None
    wait_s = min(1.0, deadline - time.monotonic())
    if not record.load_from_cache(mdns) and (wait_s <= 0 or not record.request(mdns, wait_s * 1000)):
        return None
    addresses = record.parsed_addresses(zeroconf.IPVersion.V4Only)
    return read_record(name, addresses, record.port, record.properties, own_networks())


@contextlib.contextmanager
def _opened(where: list[str] | zeroconf.InterfaceChoice) -> Iterator[zeroconf.Zeroconf]:
    # zeroconf warns of every malformed packet, which anyone may send, and shows its content.
    logging.getLogger("zeroconf").setLevel(logging.CRITICAL)
    try:
        mdns = zeroconf.Zeroconf(where, ip_version=zeroconf.IPVersion.V4Only)
    except (OSError, RuntimeError) as error:
        raise UserError(f"mDNS cannot be used in this network: {error}") from None
    with contextlib.closing(mdns):
        yield mdns
