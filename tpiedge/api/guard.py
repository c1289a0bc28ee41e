"""Which requests are let in: default deny, save for /health and /ready, which tell nothing but the state, and for the
files of the page, which ask for a key themselves.

Without API keys everybody who reaches the port may use the model; so the port is then a loopback one unless the user
insists. In either case web pages are turned away, since the browser of whoever looks at one reaches the port: a page
that has its own name resolved to this machine by the Host header, which must be an IP address, localhost or a name of
this machine, and any other by its Origin and by what browsers say of where a request comes from; but for those that the
user named. Programs that ask for the state alone need not send a Host header: browsers always do.

Pages of other servers are what CORS is about. A browser sends whatever a page asks for if it looks like a form, and
lets the page read the answer only if a header says so; for all else it asks first, by a preflight. Pages that the user
did not name are given neither.

The guard also says whose a request is: a client's, by its API key, or by its address where none is needed. Any client
can write any header. So X-Forwarded-For counts only where the connection is that of a proxy which the user named, and
of the addresses in it only the last one that is no named proxy's: a named proxy wrote it.
"""

import hashlib
import hmac
import ipaddress
import re
import secrets
from collections.abc import Iterable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

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
#: What proxies add. Those of X-Forwarded-Host and so on begin like the first one.
_TOLD: Final = (b"x-forwarded-", b"forwarded", b"x-real-ip", b"via")
_PORT: Final = re.compile(r"\[([^\]]*)\](?::[0-9]{1,5})?|([0-9.]+):[0-9]{1,5}")
_SCOPE_BYTES: Final = 16

Headers: TypeAlias = Sequence[tuple[bytes, bytes]]
"""As ASGI has them: names in lower case, values as they came."""
_Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address


class Origins:
    """Web pages of other servers that may use the API from a browser, by the scheme, host and port that they came
    from."""

    def __init__(self, origins: Iterable[str] = ()) -> None:
        """Raises UserError for what is no origin."""
        self._all = {origin.strip().rstrip("/").lower(): origin for origin in origins}
        for found, origin in self._all.items():
            if not _ORIGIN.fullmatch(found):
                raise UserError(
                    f"--cors-origin {sanitised_line(origin, 80)!r} is not an origin like https://chat.example or "
                    "http://localhost:3000, nor *"
                )

    @property
    def any(self) -> bool:
        """Whether all pages may."""
        return "*" in self._all

    def allow(self, headers: Headers) -> bool:
        """Whether the request was sent by a page that may."""
        origin = _only_value(headers, b"origin")
        return bool(origin) and (self.any or origin.decode("latin-1").lower() in self._all)

    def preflight(self, method: str, headers: Headers) -> list[tuple[bytes, bytes]] | None:
        """Returns the headers of the answer, beside what `permitting` adds, where a browser asks what such a page may
        send; None where it does not ask."""
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
        """Returns `send` of the answer to a request with these headers, which lets such a page read it."""
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
    """Proxies that the user named, by address or network."""

    def __init__(self, named: Iterable[str] = ()) -> None:
        """Raises UserError for what is neither."""
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
        """Returns the address of the client whose request came from `host`; None where a proxy passed it on and the
        client is not known for sure."""
        peer = _address(host)
        if peer is None:
            return None
        if not self._named(peer):
            return None if any(name.startswith(_TOLD) for name, _ in headers) else str(peer)
        # All headers of that name are one list. Who sends a Forwarded header may mean another client: named proxies
        # remove it.
        told = b",".join(value for name, value in headers if name == b"x-forwarded-for").decode("latin-1")
        if not told or any(name == b"forwarded" for name, _ in headers):
            return None
        chain = [_address(one.strip()) for one in told.split(",")]
        # Where all are named proxies', the last one asks for itself: what comes before may be its own words.
        others = (one for one in reversed(chain) if one is None or not self._named(one))
        address = next(others, chain[-1])
        return None if address is None else str(address)

    def _named(self, address: _Address) -> bool:
        return any(address in network for network in self._networks)


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


@dataclass(frozen=True, slots=True)
class Sender:
    """Who sent a request, for an administrator's eyes: the `name` of the API key that it came with, empty where that
    has none or counts no longer; or the address that it came from, where no key is needed."""

    kind: Literal["key", "former key", "address"]
    name: str


def is_admin(path: str) -> bool:
    """Whether the admin secret is needed there."""
    return path == "/admin" or path.startswith("/admin/")


def is_loopback(host: str) -> bool:
    """Whether only this computer reaches `host`."""
    found = _address(host)
    return host.lower() == "localhost" if found is None else found.is_loopback


def check_bind(host: str, keys: ApiKeys, insecure: bool, origins: Origins) -> None:
    """Refuse to serve a network, or the pages of all the world, without a key. Raises UserError."""
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
    """Checks the head of every request before anything else looks at it. Clients without a key may call the machine by
    its own names, where others reach it, and by `public_names`, those that the user added, as `public_name` reads them.
    `origins`: pages that may use what is no administration; `proxies`: whose words count; `share_prefixes`: whether all
    clients have one scope."""

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
        """Before anything is answered. Raises ApiError 400, 431 or 403."""
        if {b"content-length", b"transfer-encoding"} <= {name for name, _ in headers}:
            # Of two lengths, a proxy might believe the other.
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

    def key_needed(self, headers: Headers) -> bytes:
        """The API key of a request that was let in; empty where none is needed."""
        return key_of(headers) if self._keys.needed else b""

    def client(self, headers: Headers, host: str) -> str:
        """Names the client that sent a request from `host` which was let in: by one text for each API key or, where
        none is needed, for each address; by a proxy's own address where its client is not known. It does not tell the
        key."""
        if self._keys.needed:
            return hashlib.sha256(key_of(headers)).hexdigest()
        return self._proxies.address(headers, host) or host.removeprefix("::ffff:")

    def scope(self, headers: Headers, host: str) -> str:
        """Returns the scope of such a request, as GenerationRequest has it: that of its client or, where the client is
        not known, one that no other request has. It tells neither key nor address."""
        if self._share_prefixes:
            return ""
        if not self._keys.needed and self._proxies.address(headers, host) is None:
            return secrets.token_hex(_SCOPE_BYTES)
        client = self.client(headers, host).encode()
        return hashlib.blake2b(client, digest_size=_SCOPE_BYTES, key=self._scope_key).hexdigest()

    def sender(self, client: str) -> Sender | None:
        """Whom `client` means, as the method of that name calls them; None for an empty one."""
        if not client:
            return None
        if not self._keys.needed:
            return Sender("address", client)
        name = self._keys.name_of(bytes.fromhex(client))
        return Sender("former key", "") if name is None else Sender("key", name)

    def _check_not_a_page(self, headers: Headers, *, nameless: bool) -> None:
        """Refuses what a web page of somebody else may have sent; `nameless`: it needs no Host header. Raises ApiError
        403."""
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
        # A page that this server itself gave out would have its own address. Images and scripts of others name no
        # origin.
        own = {host, *self._public}
        foreign = any(origin.partition("://")[2] not in own for origin in _values(headers, b"origin"))
        if foreign or not {"cross-site", "same-site"}.isdisjoint(_values(headers, b"sec-fetch-site")):
            raise ApiError(
                403, "web pages from elsewhere may use this server only with an API key", "origin_not_allowed"
            )


def public_name(name: str) -> str:
    """A name that the user gave this server, with the port where browsers have to write one. Raises UserError."""
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
    """The key that the request was sent with: its bearer, or without one its X-Api-Key, or its Api-Key, as clients of
    Azure call it. Empty where there is none, or a header comes twice."""
    scheme, _, key = _only_value(headers, b"authorization").partition(b" ")
    if scheme.lower() == b"bearer":
        return key.strip()
    return (_only_value(headers, b"x-api-key") or _only_value(headers, b"api-key")).strip()


def _only_value(headers: Headers, wanted: bytes) -> bytes:
    """The value of the header; empty without one, or with more than one."""
    values = [value for name, value in headers if name == wanted]
    return values[0] if len(values) == 1 else b""


def _unknown_key(what: str) -> ApiError:
    return ApiError(
        401,
        f"{what} is needed: send 'Authorization: Bearer ...' or 'X-Api-Key: ...'",
        "invalid_api_key",
        headers={"WWW-Authenticate": "Bearer"},
    )
