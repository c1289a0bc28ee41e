"""The body of a request: bounded in size and time, then strict JSON.

Laws:

1. No more bytes are kept than the limit, whatever the client announces or sends.
2. What is parsed has a bounded number of values, so that a few megabytes of brackets cannot become hundreds.
3. A key stands once in an object; numbers are finite. So the value does not depend on the parser.
"""

import asyncio
import json
import math
import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, NoReturn

from tpiedge.api.errors import ApiError, refused
from tpiedge.units import format_bytes

__all__ = ["Disconnected", "Receive", "parse_object", "read_body"]

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

_MAX_VALUES = 400_000  # a prompt may have 131,072 token ids
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_DIGITS = 400


class Disconnected(Exception):
    """The client has gone: there is nobody to answer."""


async def read_body(
    receive: Receive, announced: str | None, limit: int, limit_s: float, take: Callable[[int], None]
) -> bytes:
    """The whole body, each part of which `take` may refuse.

    Raises ApiError 413 above `limit` bytes and 408 after `limit_s`, and Disconnected."""
    if announced is not None and announced.isascii() and announced.isdigit() and _exceeds(announced, limit):
        raise _too_large(limit)
    body = bytearray()
    try:
        async with asyncio.timeout(limit_s):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Disconnected
                part = message.get("body", b"")
                take(len(part))
                body += part
                if len(body) > limit:
                    raise _too_large(limit)
                if not message.get("more_body", False):
                    return bytes(body)
    except TimeoutError:
        raise ApiError(
            408, f"the body did not arrive within {limit_s:g} s", "timeout", headers={"Connection": "close"}
        ) from None


def parse_object(body: bytes) -> dict[str, object]:
    """The JSON object in `body`. Raises ApiError 400."""
    outside = _STRING.sub(b"", body)
    if sum(map(outside.count, (b",", b"[", b"{"))) > _MAX_VALUES:
        raise refused(f"the body has more than {_MAX_VALUES} values", code="invalid_json")
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


def _exceeds(announced: str, limit: int) -> bool:
    digits = announced.lstrip("0")
    return len(digits) > len(str(limit)) or int(digits or "0") > limit


def _too_large(limit: int) -> ApiError:
    return ApiError(
        413,
        f"the body has more than {format_bytes(limit)}",
        "body_too_large",
        headers={"Connection": "close"},
    )


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
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
