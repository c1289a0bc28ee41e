"""How masters announce themselves in the local network, and how workers look for them: the only place that knows
zeroconf, an extra (`pip install 'tpiedge[mdns]'`). Import it only where it is wanted.

`announced` says what is told, and what of it is believed.
"""

import contextlib
import logging
import queue
import secrets
import time
from collections.abc import Iterator, Sequence
from typing import Final

import zeroconf

from tpiedge.errors import UserError
from tpiedge.host.addresses import Address, own_networks
from tpiedge.joining.announced import SERVICE, AnnouncedMaster, announcement, heard, labels

#: Once one has answered, the others do, too.
_SETTLE_S: Final = 1.5
#: Whoever announces more hides the others, who can still be named by --connect.
_MOST: Final = 32


@contextlib.contextmanager
def announced(host: str, address: Address, protocol: int, cluster: str) -> Iterator[str]:
    """Others in the network of `address` (numeric, IPv4) hear of a master there, as long as the block takes. Gives the
    name that it has for them: `host`, with the beginning of its `cluster` where another one is called so. Raises
    UserError, also where somebody contests both."""
    names = labels(host, cluster)
    with _opened([address.host]) as mdns:
        try:
            given = next(
                (name for name in names if _has(mdns, name, address, announcement(protocol, cluster))), None
            )
        except (OSError, zeroconf.Error) as error:
            raise UserError(f"mDNS at {address.host}: {error or type(error).__name__}") from None
        if given is None:
            raise UserError(f"others in this network claim the names {' and '.join(names)}")
        yield given


def _has(mdns: zeroconf.Zeroconf, name: str, address: Address, said: dict[str, str]) -> bool:
    """Whether the master has that name now, unless somebody says that it is taken."""
    record = zeroconf.ServiceInfo(
        SERVICE,
        f"{name}.{SERVICE}",
        port=address.port,
        properties=said,
        # Two machines may have one name; this one stands for the address.
        server=f"tpiedge-{secrets.token_hex(8)}.local.",
        parsed_addresses=[address.host],
    )
    try:
        mdns.register_service(record)
    except zeroconf.NonUniqueNameException:
        return False
    return True


def masters_nearby(limit_s: float, own: Sequence[str] | None = None) -> tuple[AnnouncedMaster, ...]:
    """Who announces a master in the networks of this machine, or of its `own` addresses, in the order of names. Takes
    at most about `limit_s`. Raises UserError."""
    with _opened(own) as mdns:
        deadline = time.monotonic() + limit_s
        found = {_master(mdns, name, deadline) for name in _names(mdns, deadline)}
    # Strangers may choose one name for several.
    return tuple(
        sorted(
            (one for one in found if one is not None),
            key=lambda one: (one.name, str(one.address), one.protocol),
        )
    )


class _Names(zeroconf.ServiceListener):
    """Hears full names of records, in zeroconf's thread."""

    def __init__(self) -> None:
        self.heard: queue.SimpleQueue[str] = queue.SimpleQueue()

    def add_service(self, _mdns: zeroconf.Zeroconf, _service: str, name: str) -> None:
        self.heard.put(name)

    def update_service(self, _mdns: zeroconf.Zeroconf, _service: str, _name: str) -> None:
        """What it says is read later."""

    def remove_service(self, _mdns: zeroconf.Zeroconf, _service: str, _name: str) -> None:
        """It says no more, and is left out then."""


def _names(mdns: zeroconf.Zeroconf, deadline: float) -> list[str]:
    """Full names of records, at most _MOST."""
    listener = _Names()
    mdns.add_service_listener(SERVICE, listener)
    names: dict[str, None] = {}
    until = deadline
    with contextlib.suppress(queue.Empty):  # nobody else answered in time
        while len(names) < _MOST and (left_s := until - time.monotonic()) > 0:
            names[listener.heard.get(timeout=left_s)] = None
            until = min(until, time.monotonic() + _SETTLE_S)
    mdns.remove_service_listener(listener)
    return list(names)


def _master(mdns: zeroconf.Zeroconf, name: str, deadline: float) -> AnnouncedMaster | None:
    """What its record says, which mostly came with the name."""
    try:
        record = zeroconf.ServiceInfo(SERVICE, name)
    except zeroconf.BadTypeInNameException:  # a stranger's, of another kind of service
        return None
    wait_s = min(1.0, deadline - time.monotonic())
    if not record.load_from_cache(mdns) and (wait_s <= 0 or not record.request(mdns, wait_s * 1000)):
        return None
    addresses = record.parsed_addresses(zeroconf.IPVersion.V4Only)
    return heard(name, addresses, record.port, record.properties, own_networks())


@contextlib.contextmanager
def _opened(own: Sequence[str] | None) -> Iterator[zeroconf.Zeroconf]:
    """At the addresses `own`, or at all of this machine. Raises UserError where there is no network for it."""
    # It warns of every packet that is none, which anybody may send, and shows what is in it.
    logging.getLogger("zeroconf").setLevel(logging.CRITICAL)
    where = zeroconf.InterfaceChoice.All if own is None else list(own)
    try:
        mdns = zeroconf.Zeroconf(where, ip_version=zeroconf.IPVersion.V4Only)
    except (OSError, RuntimeError) as error:
        raise UserError(f"mDNS cannot be used in this network: {error}") from None
    with contextlib.closing(mdns):
        yield mdns
