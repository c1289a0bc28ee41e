"""Finds the address of a client whose request a proxy passed on.

Any client can write any header. So X-Forwarded-For counts only where the connection is that of a proxy which the user
named, and of the addresses in it only the last one that is no named proxy's: a named proxy wrote it.
"""

import ipaddress
import re
from collections.abc import Iterable
from typing import Final, TypeAlias

from tpiedge.api.origins import Headers
from tpiedge.errors import UserError
from tpiedge.sanitise import sanitised_line

_Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

#: What proxies add. Those of X-Forwarded-Host and so on begin like the first one.
_TOLD: Final = (b"x-forwarded-", b"forwarded", b"x-real-ip", b"via")
_PORT: Final = re.compile(r"\[([^\]]*)\](?::[0-9]{1,5})?|([0-9.]+):[0-9]{1,5}")


class Proxies:
    """Proxies that the user named, by address or network. Raises UserError for what is neither."""

    def __init__(self, named: Iterable[str] = ()) -> None:
        self._networks = tuple(map(_network, named))

    def address(self, headers: Headers, host: str) -> str | None:
        """Returns the address of the client whose request came from `host`; None where a proxy passed it on and the
        client is not known for sure."""
        peer = _address(host)
        if peer is None:
            return None
        if not self._named(peer):
            return None if _told(headers) else str(peer)
        # Who sends a Forwarded header may mean another client: named proxies remove it.
        if not (chain := _listed(headers)) or any(name == b"forwarded" for name, _ in headers):
            return None
        # Where all are named proxies', the last one asks for itself: what comes before may be its own words.
        others = (one for one in reversed(chain) if one is None or not self._named(one))
        address = next(others, chain[-1])
        return None if address is None else str(address)

    def _named(self, address: _Address) -> bool:
        return any(address in network for network in self._networks)


def _told(headers: Headers) -> bool:
    return any(name.startswith(_TOLD) for name, _ in headers)


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    try:
        return ipaddress.ip_network(text.strip(), strict=False)
    except ValueError:
        raise UserError(
            f"--trusted-proxy {sanitised_line(text, 80)!r} is not an address like 127.0.0.1, nor a network like "
            "172.16.0.0/12"
        ) from None


def _address(text: str) -> _Address | None:
    """Reads an address, with or without a port; returns None for any other text."""
    if found := _PORT.fullmatch(text):
        text = found[1] or found[2]
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _listed(headers: Headers) -> list[_Address | None]:
    """The addresses of X-Forwarded-For, in their order. All headers of that name are one list."""
    value = ",".join(value.decode("latin-1") for name, value in headers if name == b"x-forwarded-for")
    return [_address(one.strip()) for one in value.split(",")] if value else []
