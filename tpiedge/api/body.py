"""The body of a request: bounded in size and time, then strict JSON.

Laws:

1. No more bytes are kept than the limit, whatever the client announces or sends.
2. What is parsed has a bounded number of values, so that a few megabytes of brackets cannot become hundreds.
3. A key stands once in an object; numbers are finite. So the value does not depend on the parser.
"""

import asyncio
import contextlib
import json
import math
import re
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, NoReturn

from tpiedge.api.errors import ApiError, refused
from tpiedge.units import format_bytes

__all__ = ["Disconnected", "Receive", "discard", "parse_object", "read_body"]

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

_SEPARATORS = (b",", b"[", b"{")
# An unfinished one reaches to the end, and nothing is tried twice: so the time is linear, whatever the body.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_DIGITS = 400


class Disconnected(Exception):
    """The client has gone: an answer would reach no one."""


async def read_body(
    receive: Receive, announced: str | None, limit: int, limit_s: float, take: Callable[[int], None]
) -> bytearray:
    """The whole body, each part of which `take` may refuse.

    Raises ApiError 413 above `limit` bytes (before it reads any, where so many are announced) and 408 after `limit_s`,
    and Disconnected."""
    if announced is not None and announced.isascii() and announced.isdigit() and _exceeds(announced, limit):
        raise _too_large(f"{announced[:20]} bytes", limit)
    body = bytearray()
    try:
        async with asyncio.timeout(limit_s):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Disconnected
                part = message.get("body", b"")
                take(len(part))
                if len(body) + len(part) > limit:
                    raise _too_large(f"more than {limit} bytes", limit)
                body += part
                if not message.get("more_body", False):
                    return body
    except TimeoutError:
        raise ApiError(
            408, f"the body did not arrive within {limit_s:g} s", "timeout", headers={"Connection": "close"}
        ) from None


async def discard(receive: Receive, limit_s: float) -> None:
    """Read what still comes, for a while, and forget it: a connection that ends with unread bytes is reset, and a
    client that is still sending might not see the answer that it has been given."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            while (message := await receive())["type"] == "http.request" and message.get("more_body", False):
                pass


def parse_object(body: bytes | bytearray, max_values: int) -> dict[str, object]:
    """The JSON object in `body`. Raises ApiError 400."""
    if _has_more_values(body, max_values):
        raise refused(f"the body has more than {max_values} values", code="invalid_json")
    try:
        value = json.loads(
            body.decode("utf-8"),
            object_pairs_hook=_once,
            parse_constant=_no_constant,
            parse_float=_finite,
            parse_int=_bounded,
        )
    except UnicodeDecodeError as error:
        raise refused(f"the body is not UTF-8 at byte {error.start}", code="invalid_json") from None
    except RecursionError:
        raise refused("the body is nested too deeply", code="invalid_json") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise refused(f"the body is not JSON: {error.msg} ({where})", code="invalid_json") from None
    if not isinstance(value, dict):
        raise refused("the body is not a JSON object", code="invalid_json")
    return value


def _has_more_values(body: bytes | bytearray, limit: int) -> bool:
    """Counted without a copy of the body, by what stands before each value."""
    count = _separators(body, 0, len(body))
    if count <= limit:
        return False
    for number, text in enumerate(_STRING.finditer(body)):
        count -= _separators(body, *text.span())
        if number > 2 * limit:  # an object has as many keys
            return True
    return count > limit


def _separators(body: bytes | bytearray, start: int, stop: int) -> int:
    return sum(body.count(mark, start, stop) for mark in _SEPARATORS)


def _exceeds(announced: str, limit: int) -> bool:
    digits = announced.lstrip("0")
    return len(digits) > len(str(limit)) or int(digits or "0") > limit


def _too_large(size: str, limit: int) -> ApiError:
    return ApiError(
        413,
        f"the body has {size}; {format_bytes(limit)} are read, which is more than a prompt that fits the model needs",
        "body_too_large",
        headers={"Connection": "close"},
    )


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        ((twice, _),) = Counter(key for key, _ in pairs).most_common(1)
        raise refused(f"the key {twice[:64]!r} stands twice in one object", twice[:64], "duplicate_key")
    return found


def _no_constant(name: str) -> NoReturn:
    raise refused(f"{name} is not JSON", code="invalid_json")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise refused("a number of the body is too large", code="invalid_json")
    return value


def _bounded(text: str) -> int:
    if len(text) > _DIGITS:
        raise refused("a number of the body has too many digits", code="invalid_json")
    return int(text)
