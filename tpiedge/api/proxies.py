"""Finds the address of a client whose request a proxy passed on.

Any client can write any header. So X-Forwarded-For and Forwarded count only where the connection is that of a proxy
which the user named, and of the addresses in them only the last one that is no named proxy's: a named proxy wrote it.
"""

import ipaddress
import re
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

from tpiedge.api.origins import Headers
from tpiedge.errors import UserError
from tpiedge.sanitise import sanitised_line

_Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

_LISTED: Final = b"x-forwarded-for"
_FORWARDED: Final = b"forwarded"
#: What proxies add. Those of X-Forwarded-Host and so on begin like the first one.
_TOLD: Final = (b"x-forwarded-", _FORWARDED, b"x-real-ip", b"via")
_PORT: Final = re.compile(r"\[([^\]]*)\](?::[0-9]{1,5})?|([0-9.]+):[0-9]{1,5}")
#: One parameter of RFC 7239, and what is behind it; addresses without quotes are let in, too.
_PARAMETER: Final = re.compile(
    r"\s*([!#$%&'*+.^_`|~0-9A-Za-z-]+)=(?:\"((?:[^\"\\]|\\.)*)\"|([\[\]:!#$%&'*+.^_`|~0-9A-Za-z-]+))\s*([;,]|$)"
)


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
        said = [chain for chain in (_listed(headers), _forwarded(headers)) if chain]
        found = {self._first(chain) for chain in said}
        # A client's own header of the kind that the proxy does not write would say something else.
        address = found.pop() if len(found) == 1 else None
        return None if address is None else str(address)

    def passed_on(self, headers: Headers, host: str) -> bool:
        """Returns whether the connection from `host` is a proxy's: one that the user named, or one that says so."""
        peer = _address(host)
        return _told(headers) or (peer is not None and self._named(peer))

    def _named(self, address: _Address) -> bool:
        return any(address in network for network in self._networks)

    def _first(self, chain: Sequence[_Address | None]) -> _Address | None:
        """The last address that is no named proxy's. Where all are, the last one asks for itself: what comes before
        may be its own words."""
        others = (one for one in reversed(chain) if one is None or not self._named(one))
        return next(others, chain[-1])


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
    """The addresses of X-Forwarded-For, in their order."""
    value = _joined(headers, _LISTED)
    return [_address(one.strip()) for one in value.split(",")] if value else []


def _forwarded(headers: Headers) -> list[_Address | None]:
    """The addresses of Forwarded, in their order. A header that RFC 7239 does not allow has none: the part that a
    client wrote could change what the proxy's part means."""
    value, at = _joined(headers, _FORWARDED), 0
    chain: list[_Address | None] = []
    own: list[str] = []
    while at < len(value):
        found = _PARAMETER.match(value, at)
        if found is None:
            return [None]
        if found[1].lower() == "for":
            own.append(found[3] or found[2] or "")
        if found[4] != ";":
            chain.append(_address(own[0]) if len(own) == 1 else None)
            own = []
        elif found.end() == len(value):
            return [None]
        at = found.end()
    return chain


def _joined(headers: Headers, wanted: bytes) -> str:
    """Joins all headers of that name, which are one list."""
    return ",".join(value.decode("latin-1") for name, value in headers if name == wanted)
