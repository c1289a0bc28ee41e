"""Web pages of other servers that may use the API from a browser: the requests that CORS is about.

A browser sends whatever a page asks for if it looks like a form, and lets the page read the answer only if a header
says so; for all else it asks first, by a preflight. Pages that are not named here are given neither.
"""

import re
from collections.abc import Iterable, MutableMapping, Sequence
from typing import Any, Final

from tpiedge.api.body import Send
from tpiedge.api.fields import IGNORED
from tpiedge.api.formats import REQUEST_ID, RESUMABLE
from tpiedge.errors import UserError
from tpiedge.sanitise import sanitised_line

_ANY: Final = "*"
_ORIGIN: Final = re.compile(r"[a-z][a-z0-9+.-]*://(?:[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?")

#: As ASGI has them: names in lower case, values as they came.
Headers = Sequence[tuple[bytes, bytes]]


class Origins:
    """Which pages, by the scheme, host and port that they came from. Raises UserError for what is no origin."""

    def __init__(self, origins: Iterable[str] = ()) -> None:
        self._all = frozenset(map(_checked, origins))

    @property
    def any(self) -> bool:
        """Whether all pages may."""
        return _ANY in self._all

    def allow(self, headers: Headers) -> bool:
        """Whether the request was sent by a page that may."""
        origin = only_value(headers, b"origin")
        return bool(origin) and (self.any or origin.decode("latin-1").lower() in self._all)

    def preflight(self, method: str, headers: Headers) -> list[tuple[bytes, bytes]] | None:
        """What the answer says, beside what `permitting` adds, where a browser asks what such a page may send; None
        where it does not ask."""
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
        """`send` of the answer to a request with these headers, which lets such a page read it."""
        if not self.allow(headers):
            return send
        shown = f"{REQUEST_ID}, {RESUMABLE}, {IGNORED}, retry-after".encode()
        added = [
            (b"access-control-allow-origin", only_value(headers, b"origin")),
            (b"vary", b"Origin"),
            (b"access-control-expose-headers", shown),
        ]

        async def permit(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *added]}
            await send(message)

        return permit


def only_value(headers: Headers, wanted: bytes) -> bytes:
    """The value of the header; empty without one, or with more than one."""
    values = [value for name, value in headers if name == wanted]
    return values[0] if len(values) == 1 else b""


def _checked(origin: str) -> str:
    found = origin.strip().rstrip("/").lower()
    if found != _ANY and not _ORIGIN.fullmatch(found):
        raise UserError(
            f"--cors-origin {sanitised_line(origin, 80)!r} is not an origin like https://chat.example or "
            "http://localhost:3000, nor *"
        )
    return found
