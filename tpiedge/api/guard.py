"""Which requests are let in: default deny, save for /health and /ready, which tell nothing but the state, and for the
files of the page, which ask for a key themselves.

Without API keys everybody who reaches the port may use the model; so the port is then a loopback one unless the user
insists. In either case web pages are turned away, since the browser of whoever looks at one reaches the port: a page
that has its own name resolved to this machine by the Host header, which must be an IP address, localhost or a name of
this machine, and any other by its Origin and by what browsers say of where a request comes from; but for those that the
user named. Programs that ask for the state alone need not send a Host header: browsers always do.

The guard also says whose a request is: a client's, by its API key, or by its address where none is needed.
"""

import hashlib
import hmac
import ipaddress
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from tpiedge.api.errors import ApiError
from tpiedge.api.keys import ApiKeys
from tpiedge.api.origins import Headers, Origins, only_value
from tpiedge.api.page import is_page
from tpiedge.api.proxies import Proxies
from tpiedge.errors import UserError
from tpiedge.sanitise import sanitised_line

OPEN_PATHS = frozenset({"/health", "/ready"})
_ADMIN = "/admin"
_PUBLIC_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,251}[a-z0-9])?(?::[0-9]{1,5})?")
_SCOPE_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Sender:
    """Who sent a request, for an administrator's eyes: the `name` of the API key that it came with, empty where that
    has none or counts no longer; or the address that it came from, where no key is needed."""

    kind: Literal["key", "former key", "address"]
    name: str


def is_admin(path: str) -> bool:
    """Whether the admin secret is needed there."""
    return path == _ADMIN or path.startswith(f"{_ADMIN}/")


def is_loopback(host: str) -> bool:
    """Whether only this computer reaches `host`."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


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
    """Checks the head of every request before anything else looks at it. `names` are those of this machine, in lower
    case, that clients without a key may use; `public_names` those that the user added, as `public_name` reads them.
    `proxies`: whose words count; `share_prefixes`: whether all clients have one scope."""

    def __init__(
        self,
        host: str,
        keys: ApiKeys,
        admin_secret: str,
        headers_bytes: int,
        names: Iterable[str] = (),
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
        self._names = {"localhost", host.lower(), *names, *map(_without_port, self._public)}
        self._origins = origins or Origins()
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
        if len(hosts) != 1 or not (self._is_ours(hosts[0]) or (nameless and not hosts[0])):
            raise ApiError(
                403,
                "the Host header does not name this server: use its IP address or host name, or have it started with "
                "--public-name, or with an API key",
                "host_not_allowed",
            )
        if self._origins.allow(headers):
            return
        # A page that this server itself gave out would have its own address. Images and scripts of others name no
        # origin.
        ours = {hosts[0], *self._public}
        if any(origin.partition("://")[2] not in ours for origin in _values(headers, b"origin")) or any(
            site in ("cross-site", "same-site") for site in _values(headers, b"sec-fetch-site")
        ):
            raise ApiError(
                403, "web pages from elsewhere may use this server only with an API key", "origin_not_allowed"
            )

    def _is_ours(self, name: str) -> bool:
        """Whether the value of a Host header cannot be another's name."""
        host = _without_port(name)
        return host in self._names or _is_ip_address(host)


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


def _is_ip_address(host: str) -> bool:
    """Whether `host` is an IPv4 address, or an IPv6 address in brackets."""
    try:
        if host.startswith("[") and host.endswith("]"):
            ipaddress.IPv6Address(host[1:-1])
        else:
            ipaddress.IPv4Address(host)
    except ValueError:
        return False
    return True


def key_of(headers: Headers) -> bytes:
    """The key that the request was sent with: its bearer, or without one its X-Api-Key, or its Api-Key, as clients of
    Azure call it. Empty where there is none, or a header comes twice."""
    scheme, _, key = only_value(headers, b"authorization").partition(b" ")
    if scheme.lower() == b"bearer":
        return key.strip()
    return (only_value(headers, b"x-api-key") or only_value(headers, b"api-key")).strip()


def _unknown_key(what: str) -> ApiError:
    return ApiError(
        401,
        f"{what} is needed: send 'Authorization: Bearer ...' or 'X-Api-Key: ...'",
        "invalid_api_key",
        headers={"WWW-Authenticate": "Bearer"},
    )
