"""Admits requests and identifies their clients. Only /health, /ready and the page's files are open to all.

Without API keys, everyone who reaches the port may use the model. So the port must be on loopback, unless the user
insists. Web pages of other sites are refused, unless the user allowed them. The headers Origin and Sec-Fetch-Site
reveal such pages. The Host header must be an IP address, localhost or a name of this server. This rule stops a page
whose own name resolves to this machine.

An API key identifies a client. Without keys, an address identifies a client. Behind trusted proxies, the address is the
last one in X-Forwarded-For that is not a proxy's."""

import hashlib
import ipaddress
import re
import secrets
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

from starlette.datastructures import Headers
from starlette.requests import Request

from tpiedge.api.errors import ApiError
from tpiedge.api.keys import AdminKey, ApiKeys
from tpiedge.api.limits import HEADERS_BYTES
from tpiedge.api.page import is_page
from tpiedge.errors import UserError
from tpiedge.host.addresses import own_names
from tpiedge.sanitise import sanitised_line

OPEN_PATHS = frozenset({"/health", "/ready"})
LINK_PATH: Final = "/admin/key"
"""The path at which the code of a link gets the admin key."""
_PUBLIC_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,251}[a-z0-9])?(?::[0-9]{1,5})?")
_ORIGIN: Final = re.compile(r"[a-z][a-z0-9+.-]*://(?:[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?|\*")
#: Beginnings of the headers that proxies add.
_TOLD: Final = ("x-forwarded-", "forwarded", "x-real-ip", "via")
_PORT: Final = re.compile(r"\[([^\]]*)\](?::[0-9]{1,5})?|([0-9.]+):[0-9]{1,5}")
_SCOPE_BYTES: Final = 16

_Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
_Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network


def proxy_networks(named: Iterable[str]) -> list[_Network]:
    """Parses addresses and networks of proxies. Raises UserError."""
    found: list[_Network] = []
    for text in named:
        try:
            found.append(ipaddress.ip_network(text.strip(), strict=False))
        except ValueError:
            wanted = "an address like 127.0.0.1, nor a network like 172.16.0.0/12"
            raise _unlike("--trusted-proxy", text, wanted) from None
    return found


def client_address(headers: Headers, host: str, proxies: Sequence[_Network]) -> str | None:
    """Returns the client's address; None if a proxy hides it. `host`: the peer's address."""
    peer, told = _address(host), headers.getlist("x-forwarded-for")
    if peer is None:
        return None
    if not any(peer in proxy for proxy in proxies):
        return None if any(name.startswith(_TOLD) for name in headers) else str(peer)
    # A Forwarded header may name another client, so named proxies must remove it.
    if "forwarded" in headers:
        return None
    # All headers of that name are one list. If it has named proxies only, the last one is the client, which may have
    # written the others.
    chain = [_address(one.strip()) for one in ",".join(told).split(",")]
    others = (one for one in reversed(chain) if one is None or not any(one in proxy for proxy in proxies))
    address = next(others, chain[-1])
    return None if address is None else str(address)


def _address(text: str) -> _Address | None:
    if found := _PORT.fullmatch(text):
        text = found[1] or found[2]
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def is_loopback(host: str) -> bool:
    """Whether `host`, perhaps with a port, is localhost or a loopback address."""
    address = _address(host)
    return _without_port(host).lower() == "localhost" if address is None else address.is_loopback


def is_admin(path: str) -> bool:
    return path == "/admin" or path.startswith("/admin/")


class Guard:
    """Checks the heads of requests. `public_names` are further allowed Host headers. `origins` are web pages that may
    use the API. `share_prefixes` gives all clients one scope. `insecure` lets other machines use the API without keys.
    `scope_key` names clients the same after a restart, so that their context can be kept; None keeps no context. Raises
    UserError."""

    def __init__(
        self,
        host: str,
        keys: ApiKeys,
        admin_secret: str,
        *,
        insecure: bool = False,
        origins: Iterable[str] = (),
        public_names: Iterable[str] = (),
        proxies: Iterable[str] = (),
        share_prefixes: bool = False,
        scope_key: bytes | None = None,
    ) -> None:
        self._origins = frozenset(map(_origin, origins))
        if "*" in self._origins and not keys.needed:
            raise UserError(
                "--cors-origin * lets every web page in: give an --api-key-file, or name the pages that may"
            )
        self._proxies = proxy_networks(proxies)
        self._public = frozenset(map(_public_name, public_names))
        self._names = {"localhost", host.lower(), *map(_without_port, self._public)}
        if not (keys.needed or is_loopback(host)):
            if not insecure:
                raise UserError(
                    f"the API would listen on {host} for everybody: make a key with 'tpiedge keys add NAME', listen on "
                    "127.0.0.1, or say --insecure"
                )
            self._names.update(own_names())
        if not admin_secret or keys.have(admin_secret.encode()):
            raise UserError("the admin secret must not be empty nor one of the API keys")
        self._keys = keys
        self.admin = AdminKey(admin_secret)
        #: Whether requests may leave pages on disk.
        self.keeps_context = scope_key is not None
        if self.keeps_context and not (keys.needed or share_prefixes):
            raise UserError(
                "--keep-context tells clients apart by API keys, because an address may change hands: give "
                "--api-key-file, or --share-prefixes if all clients may share"
            )
        self._scope_key = b"" if share_prefixes else scope_key or secrets.token_bytes(_SCOPE_BYTES)

    def permits(self, headers: Headers) -> bool:
        origin = _only_value(headers, "origin").lower()
        return bool(origin) and not self._origins.isdisjoint((origin, "*"))

    def check_sender(self, path: str, headers: Headers) -> None:
        """Checks the form and size of the headers. Without API keys, also refuses web pages from elsewhere. Raises
        ApiError 400, 403, 431."""
        if "content-length" in headers and "transfer-encoding" in headers:
            # A proxy might believe the other length.
            why = "a body has either a Content-Length or a Transfer-Encoding"
            raise ApiError(400, why, "invalid_http", headers={"Connection": "close"})
        if sum(len(name) + len(value) + 4 for name, value in headers.raw) > HEADERS_BYTES:
            raise ApiError(431, f"the headers have more than {HEADERS_BYTES} bytes", "headers_too_large")
        if not self._keys.needed:
            self._check_not_a_page(headers, nameless=path in OPEN_PATHS)

    def check_key(self, path: str, headers: Headers) -> None:
        """Raises ApiError 401 if the request lacks the key that `path` needs."""
        key, needed = key_of(headers), ""
        if path == LINK_PATH:
            return  # `admin_key` checks the code
        if is_admin(path):
            needed = "" if self.admin.is_key(key) else "the admin key"
        elif self._keys.needed and path not in OPEN_PATHS and not (is_page(path) or self._keys.have(key)):
            needed = "an API key"
        if needed:
            why = f"{needed} is needed: send 'Authorization: Bearer ...' or 'X-Api-Key: ...'"
            raise ApiError(401, why, "invalid_api_key", headers={"WWW-Authenticate": "Bearer"})

    def admin_key(self, request: Request) -> str:
        """Returns the admin key for a link's code. The request must come from this server's page. The browser must run
        on this computer. Raises ApiError 401, 403."""
        headers = request.headers
        self._check_not_a_page(headers, nameless=False)
        host, origins = headers["host"].lower(), headers.getlist("origin")
        own = all(one.lower().partition("://")[2] == host for one in origins)
        peer = client_address(headers, _host(request), ()) or ""
        if not (own and is_loopback(peer) and is_loopback(host)):
            why = "such a link works only in a browser of the master's own computer: elsewhere, type the admin key"
            raise ApiError(403, f"{why} that 'tpiedge nodes key' prints", "not_local")
        if key := self.admin.key_for(key_of(headers)):
            return key
        why = "this link was used, replaced or is older than an hour: 'tpiedge nodes link' prints another"
        raise ApiError(401, why, "invalid_link", headers={"WWW-Authenticate": "Bearer"})

    def key(self, request: Request) -> bytes:
        """Returns the request's API key; b"" if no key is needed."""
        return key_of(request.headers) if self._keys.needed else b""

    def client(self, request: Request) -> str:
        """Returns the SHA-256 of the client's key or, without keys, the client's address."""
        if self._keys.needed:
            return hashlib.sha256(key_of(request.headers)).hexdigest()
        return self._address(request) or _host(request).removeprefix("::ffff:")

    def scope(self, request: Request) -> str:
        """Returns an opaque name of the client for the field `scope` of GenerationRequest."""
        if not self._scope_key:
            return ""
        if not self._keys.needed and self._address(request) is None:
            return secrets.token_hex(_SCOPE_BYTES)
        client = self.client(request).encode()
        return hashlib.blake2b(client, digest_size=_SCOPE_BYTES, key=self._scope_key).hexdigest()

    def _address(self, request: Request) -> str | None:
        return client_address(request.headers, _host(request), self._proxies)

    def sender(self, client: str) -> dict[str, str] | None:
        """Returns a client's kind and name. `client`: a result of `client()`."""
        if not client:
            return None
        if not self._keys.needed:
            return {"kind": "address", "name": client}
        name = self._keys.name_of(bytes.fromhex(client))
        return {"kind": "former key" if name is None else "key", "name": name or ""}

    def _check_not_a_page(self, headers: Headers, *, nameless: bool) -> None:
        """Raises ApiError 403 if a foreign web page may have sent the request. `nameless`: allows a missing Host."""
        hosts = headers.getlist("host") or [""]
        host = hosts[0].lower()
        ours = _without_port(host) in self._names or _address(host) is not None
        if len(hosts) != 1 or not (ours or (nameless and not host)):
            raise ApiError(
                403,
                "the Host header does not name this server: use its IP address or host name, or have it started with "
                "--public-name, or with an API key",
                "host_not_allowed",
            )
        if self.permits(headers):
            return
        # This server's page has one of its own origins. Other pages' requests for images and scripts have no Origin.
        own = {host, *self._public}
        foreign = any(one.lower().partition("://")[2] not in own for one in headers.getlist("origin"))
        sites = {site.lower() for site in headers.getlist("sec-fetch-site")}
        if foreign or not sites.isdisjoint(("cross-site", "same-site")):
            raise ApiError(
                403, "web pages from elsewhere may use this server only with an API key", "origin_not_allowed"
            )


def _host(request: Request) -> str:
    return "" if request.client is None else request.client.host


def _unlike(flag: str, given: str, wanted: str) -> UserError:
    return UserError(f"{flag} {sanitised_line(given, 80)!r} is not {wanted}")


def _origin(origin: str) -> str:
    found = origin.strip().rstrip("/").lower()
    if not _ORIGIN.fullmatch(found):
        wanted = "an origin like https://chat.example or http://localhost:3000, nor *"
        raise _unlike("--cors-origin", origin, wanted)
    return found


def _public_name(name: str) -> str:
    found = name.strip().rstrip(".").lower()
    if not _PUBLIC_NAME.fullmatch(found):
        wanted = "a name like ai.example.org, nor one with a port like ai.example.org:8443"
        raise _unlike("--public-name", name, wanted)
    return found


def _without_port(name: str) -> str:
    host, _, port = name.rpartition(":")
    return host if port.isascii() and port.isdigit() and host else name


def key_of(headers: Headers) -> bytes:
    """Returns the bearer token, else X-Api-Key, else Azure's Api-Key, else b""."""
    scheme, _, key = _only_value(headers, "authorization").partition(" ")
    if scheme.lower() != "bearer":
        key = _only_value(headers, "x-api-key") or _only_value(headers, "api-key")
    return key.encode("latin-1").strip()


def _only_value(headers: Headers, wanted: str) -> str:
    values = headers.getlist(wanted)
    return values[0] if len(values) == 1 else ""
