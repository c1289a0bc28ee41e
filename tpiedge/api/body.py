"""Reads a request's body and its JSON. Size, time, depth and the number of values are limited. Keys must be unique
within an object. Numbers must be finite."""

import asyncio
import contextlib
import json
import math
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final, NoReturn

from tpiedge.api.errors import ApiError, refused
from tpiedge.units import format_bytes

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

MAX_DEPTH: Final = 128
_TOO_DEEP: Final = f"is nested too deeply: at most {MAX_DEPTH} arrays and objects may be within each other"


class Disconnected(Exception):
    """Raised if the client has left or must reconnect. The response stays unfinished."""


async def read_body(
    receive: Receive, announced: str | None, limit: int, limit_s: float, reserve: Callable[[int], None]
) -> bytearray:
    """Returns the body. `announced` is the length in the header. `reserve` gets the size of each part, and may raise.
    Raises Disconnected, ApiError 408 (too slow) or 413 (too large)."""
    if announced is not None and int(announced) > limit:  # h11 has checked that it is a number
        raise _too_large(f"{announced[:20]} bytes", limit)
    body = bytearray()
    try:
        async with asyncio.timeout(limit_s):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Disconnected
                part = message.get("body", b"")
                reserve(len(part))
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
    """Reads and drops the body, for at most `limit_s`. Closing a connection with unread bytes would reset it."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            while (message := await receive())["type"] == "http.request" and message.get("more_body", False):
                pass


async def left(receive: Receive) -> None:
    """Returns once the client has disconnected or has its whole response."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _too_large(size: str, limit: int) -> ApiError:
    return ApiError(
        413,
        f"the body has {size}; {format_bytes(limit)} are read, which is more than a prompt that fits the model needs",
        "body_too_large",
        headers={"Connection": "close"},
    )


class Excessive(Exception):
    """JSON has too many values or too much depth."""


def parse_object(body: bytes | bytearray, max_values: int) -> dict[str, object]:
    """Parses a JSON object. Raises ApiError 400."""
    try:
        value, _ = parse(
            body,
            max_values,
            object_pairs_hook=_unique_keys,
            parse_constant=_no_constant,
            parse_float=_finite,
            parse_int=_bounded,
        )
    except UnicodeDecodeError as error:
        raise refused(f"the body is not UTF-8 at byte {error.start}", code="invalid_json") from None
    except Excessive as error:
        raise refused(f"the body {error}", code="invalid_json") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise refused(f"the body is not JSON: {error.msg} ({where})", code="invalid_json") from None
    if not isinstance(value, dict):
        raise refused("the body is not a JSON object", code="invalid_json")
    return value


def parse(
    data: bytes | bytearray, most: int, before: int = 0, errors: str = "strict", **hooks: Any
) -> tuple[Any, int]:
    """Returns (value, count). The value is the parsed JSON. The count is `before` plus about one per value. `errors`
    goes to decode(), `hooks` go to json.loads(). Raises ValueError. Raises Excessive beyond the count `most` or the
    depth MAX_DEPTH."""
    count = before + sum(map(data.count, (b",", b"[", b"{")))
    if count > most:
        raise Excessive(f"has more than {most} values")
    try:
        value = json.loads(data.decode("utf-8", errors), **hooks)
    except RecursionError:
        raise Excessive(_TOO_DEEP) from None
    # Nearly all bodies have too few brackets to be too deep.
    if data.count(b"[") + data.count(b"{") > MAX_DEPTH and is_deeper(value, MAX_DEPTH):
        raise Excessive(_TOO_DEEP)
    return value, count


def is_deeper(value: object, limit: int) -> bool:
    """Whether arrays and objects are nested more than `limit` deep."""
    level: list[Any] = [value]
    for _ in range(limit + 1):
        level = [one for one in level if isinstance(one, dict | list)]
        if not level:
            return False
        level = [inner for one in level for inner in (one.values() if isinstance(one, dict) else one)]
    return True


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
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
    if len(text) > 400:
        raise refused("a number of the body has too many digits", code="invalid_json")
    return int(text)
