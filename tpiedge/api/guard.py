"""Which requests are let in: default deny, save for /health and /ready, which tell nothing but the state.

Without API keys everybody who reaches the port may use the model; so the port is then a loopback one unless the user
insists. In either case web pages are turned away, since the browser of whoever looks at one reaches the port: a page
that has its own name resolved to this machine by the Host header, which must be an IP address, localhost or a name of
this machine, and any other by its Origin.
"""

import hashlib
import hmac
import ipaddress
from collections.abc import Iterable, Sequence

from tpiedge.api.errors import ApiError
from tpiedge.errors import UserError

__all__ = ["OPEN_PATHS", "Guard", "bearer_of", "check_bind", "is_loopback"]

OPEN_PATHS = frozenset({"/health", "/ready"})
_ADMIN = "/admin"
_MAX_KEY = 4096

Headers = Sequence[tuple[bytes, bytes]]


def is_loopback(host: str) -> bool:
    """Whether only this computer reaches `host`."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_bind(host: str, api_keys: Sequence[str], insecure: bool) -> None:
    """Refuse to serve a network without a key. Raises UserError."""
    for key in api_keys:
        if not key.strip() or len(key) > _MAX_KEY or not key.isascii() or not key.isprintable():
            raise UserError(f"an API key must have 1 to {_MAX_KEY} printable ASCII characters")
    if not is_loopback(host) and not api_keys and not insecure:
        raise UserError(
            f"the API would listen on {host} for everybody: set an API key, listen on 127.0.0.1, or say --insecure"
        )


class Guard:
    """Checks the head of every request before anything else looks at it. `names` are those of this machine, in lower
    case, that clients without a key may use."""

    def __init__(
        self,
        host: str,
        api_keys: Iterable[str],
        admin_secret: str,
        headers_bytes: int,
        names: Iterable[str] = (),
    ) -> None:
        keys = tuple(api_keys)
        if not admin_secret or admin_secret in keys:
            raise UserError("the admin secret must not be empty nor one of the API keys")
        self._keys = tuple(map(_digest, keys))
        self._admin = (_digest(admin_secret),)
        self._headers_bytes = headers_bytes
        self._names = {"localhost", host.lower(), *names}

    def check(self, path: str, headers: Headers) -> None:
        """Raises ApiError 431, 403 or 401."""
        if sum(len(name) + len(value) + 4 for name, value in headers) > self._headers_bytes:
            raise ApiError(
                431, f"the headers have more than {self._headers_bytes} bytes", "headers_too_large"
            )
        if not self._keys:
            self._check_not_a_page(headers)
        if path in OPEN_PATHS:
            return
        if path == _ADMIN or path.startswith(f"{_ADMIN}/"):
            _check_bearer(headers, self._admin, "the admin secret")
        elif self._keys:
            _check_bearer(headers, self._keys, "an API key")

    def key_needed(self, headers: Headers) -> bytes:
        """The API key of a request that was let in; empty where none is needed."""
        return bearer_of(headers) if self._keys else b""

    def _check_not_a_page(self, headers: Headers) -> None:
        """Refuses what a web page of somebody else may have sent. Raises ApiError 403."""
        hosts = _values(headers, b"host")
        if len(hosts) != 1 or not self._is_ours(hosts[0]):
            raise ApiError(
                403,
                "the Host header does not name this server: use its IP address or host name, or set an API key",
                "host_not_allowed",
            )
        # A page that this server itself gave out would have its own address.
        if any(origin.partition("://")[2] != hosts[0] for origin in _values(headers, b"origin")):
            raise ApiError(
                403, "web pages from elsewhere may use this server only with an API key", "origin_not_allowed"
            )

    def _is_ours(self, name: str) -> bool:
        """Whether the value of a Host header cannot be another's name."""
        host, _, port = name.rpartition(":")
        if not (port.isascii() and port.isdigit() and host):
            host = name
        return host in self._names or _is_ip_address(host)


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


def bearer_of(headers: Headers) -> bytes:
    """The key that the request was sent with; empty where there is none, or more than one."""
    values = [value for name, value in headers if name == b"authorization"]
    scheme, _, key = values[0].partition(b" ") if len(values) == 1 else (b"", b"", b"")
    return key.strip() if scheme.lower() == b"bearer" else b""


def _check_bearer(headers: Headers, wanted: Sequence[bytes], what: str) -> None:
    digest = hashlib.sha256(bearer_of(headers)).digest()
    # Every key is compared, in constant time: how long it takes says nothing.
    found = [hmac.compare_digest(digest, one) for one in wanted]
    if not any(found):
        raise ApiError(
            401,
            f"{what} is needed: send 'Authorization: Bearer ...'",
            "invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
