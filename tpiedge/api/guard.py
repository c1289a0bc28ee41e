"""Admission of requests, and whose they are. All is denied by default, but for /health, /ready and the page's files.

Without API keys all who reach the port may use the model: it is a loopback port unless the user insists, and web pages
are refused, as browsers reach it. A page whose name resolves to this machine shows in the Host header, which must be an
IP address, localhost or an own name; others show in Origin and Sec-Fetch-Site. Named pages pass, with CORS headers.

A request is its API key's, or its address's without keys. X-Forwarded-For counts only on connections of named proxies,
and of it the last address that is not theirs: a named proxy wrote it.
"""

import hashlib
import hmac
import ipaddress
import re
import secrets
from collections.abc import Iterable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from starlette.requests import Request

from tpiedge.api.body import Send
from tpiedge.api.errors import ApiError
from tpiedge.api.fields import IGNORED
from tpiedge.api.formats import REQUEST_ID, RESUMABLE
from tpiedge.api.keys import ApiKeys
from tpiedge.api.page import is_page
from tpiedge.errors import UserError
from tpiedge.host.addresses import own_names
from tpiedge.sanitise import sanitised_line

OPEN_PATHS = frozenset({"/health", "/ready"})
_PUBLIC_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,251}[a-z0-9])?(?::[0-9]{1,5})?")
_ORIGIN: Final = re.compile(r"[a-z][a-z0-9+.-]*://(?:[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?|\*")
#: Beginnings of the headers that proxies add.
_TOLD: Final = (b"x-forwarded-", b"forwarded", b"x-real-ip", b"via")
_PORT: Final = re.compile(r"\[([^\]]*)\](?::[0-9]{1,5})?|([0-9.]+):[0-9]{1,5}")
_SCOPE_BYTES: Final = 16

Headers: TypeAlias = Sequence[tuple[bytes, bytes]]
"""ASGI's: names in lower case."""
_Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address


class Origins:
    """Origins of other servers' web pages that may use the API. Raises UserError for other text."""

    def __init__(self, origins: Iterable[str] = ()) -> None:
        self._all = {origin.strip().rstrip("/").lower(): origin for origin in origins}
        self.any = "*" in self._all
        for found, origin in self._all.items():
            if not _ORIGIN.fullmatch(found):
                raise UserError(
                    f"--cors-origin {sanitised_line(origin, 80)!r} is not an origin like https://chat.example or "
                    "http://localhost:3000, nor *"
                )

    def allow(self, headers: Headers) -> bool:
        """Whether such a page sent the request."""
        origin = _only_value(headers, b"origin")
        return bool(origin) and (self.any or origin.decode("latin-1").lower() in self._all)

    def preflight(self, method: str, headers: Headers) -> list[tuple[bytes, bytes]] | None:
        """Returns further headers of the answer where a browser asks what such a page may send, else None."""
        asked = dict(headers)
        if method != "OPTIONS" or b"access-control-request-method" not in asked or not self.allow(headers):
            return None
        answer = [
            (b"access-control-allow-methods", b"GET, POST, DELETE"),
            (b"access-control-max-age", b"600"),
        ]
        if wanted := asked.get(b"access-control-request-headers"):
            answer.append((b"access-control-allow-headers", wanted))
        if b"access-control-request-private-network" in asked:
            answer.append((b"access-control-allow-private-network", b"true"))
        return answer

    def permitting(self, headers: Headers, send: Send) -> Send:
        """Returns `send` with headers that let such a page read the answer."""
        if not self.allow(headers):
            return send
        shown = f"{REQUEST_ID}, {RESUMABLE}, {IGNORED}, retry-after".encode()
        added = [
            (b"access-control-allow-origin", _only_value(headers, b"origin")),
            (b"vary", b"Origin"),
            (b"access-control-expose-headers", shown),
        ]

        async def permit(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *added]}
            await send(message)

        return permit


class Proxies:
    """Proxies that the user named, by address or network. Raises UserError for what is neither."""

    def __init__(self, named: Iterable[str] = ()) -> None:
        self._networks = []
        for text in named:
            try:
                self._networks.append(ipaddress.ip_network(text.strip(), strict=False))
            except ValueError:
                raise UserError(
                    f"--trusted-proxy {sanitised_line(text, 80)!r} is not an address like 127.0.0.1, nor a network "
                    "like 172.16.0.0/12"
                ) from None

    def address(self, headers: Headers, host: str) -> str | None:
        """Returns the address of the client whose request came from `host`; None where an unknown client's request
        came through a proxy."""
        peer = _address(host)
        if peer is None:
            return None
        if not self._named(peer):
            return None if any(name.startswith(_TOLD) for name, _ in headers) else str(peer)
        # All headers of that name are one list. A Forwarded header may name another client: named proxies remove it.
        told = b",".join(value for name, value in headers if name == b"x-forwarded-for").decode("latin-1")
        if not told or any(name == b"forwarded" for name, _ in headers):
            return None
        chain = [_address(one.strip()) for one in told.split(",")]
        # Where all are named proxies', the last one is the client: it may have written what comes before.
        others = (one for one in reversed(chain) if one is None or not self._named(one))
        address = next(others, chain[-1])
        return None if address is None else str(address)

    def _named(self, address: _Address) -> bool:
        return any(address in network for network in self._networks)


def _address(text: str) -> _Address | None:
    """Reads an address, with or without a port; None for other text."""
    if found := _PORT.fullmatch(text):
        text = found[1] or found[2]
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


@dataclass(frozen=True, slots=True)
class Sender:
    """Client of a request, as an administrator sees it. `name`: of its API key, or ""; or its address."""

    kind: Literal["key", "former key", "address"]
    name: str


def is_admin(path: str) -> bool:
    return path == "/admin" or path.startswith("/admin/")


def is_loopback(host: str) -> bool:
    found = _address(host)
    return host.lower() == "localhost" if found is None else found.is_loopback


def check_bind(host: str, keys: ApiKeys, insecure: bool, origins: Origins) -> None:
    """Raises UserError where a network, or all web pages, would be served without a key."""
    if origins.any and not keys.needed:
        raise UserError(
            "--cors-origin * lets every web page in: give an --api-key-file, or name the pages that may"
        )
    if not is_loopback(host) and not keys.needed and not insecure:
        raise UserError(
            f"the API would listen on {host} for everybody: give an --api-key-file, listen on 127.0.0.1, or say "
            "--insecure"
        )


class Guard:
    """Checks the head of every request before all else. Without keys, Host headers may have the machine's own names,
    where others reach it, and `public_names`, read by `public_name`. `origins` counts outside of administration.
    `share_prefixes`: all clients have one scope. Raises UserError for an empty secret, or one that is an API key."""

    def __init__(
        self,
        host: str,
        keys: ApiKeys,
        admin_secret: str,
        headers_bytes: int,
        origins: Origins | None = None,
        *,
        public_names: Iterable[str] = (),
        proxies: Proxies | None = None,
        share_prefixes: bool = False,
    ) -> None:
        if not admin_secret or keys.have(admin_secret.encode()):
            raise UserError("the admin secret must not be empty nor one of the API keys")
        self._keys = keys
        self._admin = admin_secret.encode()
        self._headers_bytes = headers_bytes
        self._public = frozenset(public_names)
        self._names = {"localhost", host.lower(), *map(_without_port, self._public)}
        if not (keys.needed or is_loopback(host)):
            self._names.update(own_names())
        self.origins = origins or Origins()
        self._proxies = proxies or Proxies()
        self._share_prefixes = share_prefixes
        self._scope_key = secrets.token_bytes(_SCOPE_BYTES)

    def check_sender(self, path: str, headers: Headers) -> None:
        """Raises ApiError 400, 431 or 403."""
        if {b"content-length", b"transfer-encoding"} <= {name for name, _ in headers}:
            # A proxy might believe the other length.
            why = "a body has either a Content-Length or a Transfer-Encoding"
            raise ApiError(400, why, "invalid_http", headers={"Connection": "close"})
        if sum(len(name) + len(value) + 4 for name, value in headers) > self._headers_bytes:
            raise ApiError(
                431, f"the headers have more than {self._headers_bytes} bytes", "headers_too_large"
            )
        if not self._keys.needed:
            self._check_not_a_page(headers, nameless=path in OPEN_PATHS)

    def check_key(self, path: str, headers: Headers) -> None:
        """Raises ApiError 401."""
        if path in OPEN_PATHS or is_page(path):
            return
        if is_admin(path):
            if not hmac.compare_digest(key_of(headers), self._admin):
                raise _unknown_key("the admin secret")
        elif self._keys.needed and not self._keys.have(key_of(headers)):
            raise _unknown_key("an API key")

    # Of requests that were let in.

    def key(self, request: Request) -> bytes:
        """The API key; empty where none is needed."""
        return key_of(request.headers.raw) if self._keys.needed else b""

    def client(self, request: Request) -> str:
        """Names the client: by the digest of its API key or, where none is needed, by its address, or by that of a
        proxy whose client is not known."""
        if self._keys.needed:
            return hashlib.sha256(key_of(request.headers.raw)).hexdigest()
        return self._address(request) or _host(request).removeprefix("::ffff:")

    def scope(self, request: Request) -> str:
        """Returns the scope of GenerationRequest, which tells neither key nor address: one for each client, and a new
        one where the client is not known."""
        if self._share_prefixes:
            return ""
        if not self._keys.needed and self._address(request) is None:
            return secrets.token_hex(_SCOPE_BYTES)
        client = self.client(request).encode()
        return hashlib.blake2b(client, digest_size=_SCOPE_BYTES, key=self._scope_key).hexdigest()

    def _address(self, request: Request) -> str | None:
        return self._proxies.address(request.headers.raw, _host(request))

    def sender(self, client: str) -> Sender | None:
        """Describes what `client` named; None for an empty one."""
        if not client:
            return None
        if not self._keys.needed:
            return Sender("address", client)
        name = self._keys.name_of(bytes.fromhex(client))
        return Sender("former key", "") if name is None else Sender("key", name)

    def _check_not_a_page(self, headers: Headers, *, nameless: bool) -> None:
        """Refuses requests that a web page may have sent. `nameless`: needs no Host header, which browsers always send.
        Raises ApiError 403."""
        hosts = _values(headers, b"host") or [""]
        host = hosts[0]
        ours = _without_port(host) in self._names or _address(host) is not None
        if len(hosts) != 1 or not (ours or (nameless and not host)):
            raise ApiError(
                403,
                "the Host header does not name this server: use its IP address or host name, or have it started with "
                "--public-name, or with an API key",
                "host_not_allowed",
            )
        if self.origins.allow(headers):
            return
        # This server's own page has its own origin. Requests for images and scripts of other pages name none.
        own = {host, *self._public}
        foreign = any(origin.partition("://")[2] not in own for origin in _values(headers, b"origin"))
        if foreign or not {"cross-site", "same-site"}.isdisjoint(_values(headers, b"sec-fetch-site")):
            raise ApiError(
                403, "web pages from elsewhere may use this server only with an API key", "origin_not_allowed"
            )


def _host(request: Request) -> str:
    return "" if request.client is None else request.client.host


def public_name(name: str) -> str:
    """Reads a name that the user gave this server, perhaps with a port. Raises UserError."""
    found = name.strip().rstrip(".").lower()
    if not _PUBLIC_NAME.fullmatch(found):
        raise UserError(
            f"--public-name {sanitised_line(name, 80)!r} is not a name like ai.example.org, nor one with a port like "
            "ai.example.org:8443"
        )
    return found


def _without_port(name: str) -> str:
    host, _, port = name.rpartition(":")
    return host if port.isascii() and port.isdigit() and host else name


def _values(headers: Headers, wanted: bytes) -> list[str]:
    return [value.decode("latin-1").lower() for name, value in headers if name == wanted]


def key_of(headers: Headers) -> bytes:
    """Returns the bearer, else X-Api-Key, else Azure's Api-Key; empty without one, or where the header comes twice."""
    scheme, _, key = _only_value(headers, b"authorization").partition(b" ")
    if scheme.lower() == b"bearer":
        return key.strip()
    return (_only_value(headers, b"x-api-key") or _only_value(headers, b"api-key")).strip()


def _only_value(headers: Headers, wanted: bytes) -> bytes:
    """Returns the header's value; empty without one, or with several."""
    values = [value for name, value in headers if name == wanted]
    return values[0] if len(values) == 1 else b""


def _unknown_key(what: str) -> ApiError:
    return ApiError(
        401,
        f"{what} is needed: send 'Authorization: Bearer ...' or 'X-Api-Key: ...'",
        "invalid_api_key",
        headers={"WWW-Authenticate": "Bearer"},
    )
