"""The bytes of a request's body: no more are kept than the limit, whatever the client announces or sends, and no longer
waited for."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from tpiedge.api.errors import ApiError
from tpiedge.units import format_bytes

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


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


async def left(receive: Receive) -> None:
    """Returns once the client has gone, or has its whole answer."""
    while (await receive())["type"] != "http.disconnect":
        pass


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
