"""Clients of HTTP that come in crowds, are slow, leave, or ask for what there is not."""

import asyncio
import contextlib
import json
import random
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping

from tools.abusing.attack import Bout
from tools.abusing.target import Target, anywhere

_CROWD = 2000
_RESET = struct.pack("ii", 1, 0)
_TIMEOUT_S = 30.0
_STREAM = {"prompt": "Once", "stream": True, "ignore_eos": True, "temperature": 0}

_Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def connections(target: Target, bout: Bout) -> None:
    """Two thousand connections at a time: silent, with heads and with bodies that come a byte a second."""
    _crowd(int(_CROWD * bout.size), target, bout, _slow)


def requests(target: Target, bout: Bout) -> None:
    """Requests that are junk, too large, absurd, or without the right key."""
    _crowd(int(20 * bout.size) or 1, target, bout, _absurd)


def full_queue(target: Target, bout: Bout) -> None:
    """More short requests at a time than may wait, each of which is answered or refused in words."""
    _crowd(int(150 * bout.size), target, bout, _short)


def slow_readers(target: Target, bout: Bout) -> None:
    """Streams of which nothing is read."""
    _crowd(int(6 * bout.size) or 1, target, bout, _unread)


def cancelled(target: Target, bout: Bout) -> None:
    """Clients that leave: before, in the queue, in the middle; with FIN, with RST, or in one direction."""
    _crowd(int(8 * bout.size) or 1, target, bout, _leave)


_Client = Callable[[Target, Bout], Awaitable[None]]


def _crowd(count: int, target: Target, bout: Bout, client: _Client) -> None:
    """Keeps `count` clients connected until the time is over."""
    asyncio.run(_all_of(count, target, bout, client))


async def _all_of(count: int, target: Target, bout: Bout, client: _Client) -> None:
    async def place() -> None:
        await asyncio.sleep(bout.rng.random() * min(5.0, bout.left_s / 2))
        while bout.left_s > 0:
            try:
                await client(target, bout)
            except TimeoutError:
                bout.counts["timed out"] += 1
            except (OSError, EOFError):
                bout.counts["cut off"] += 1
                await asyncio.sleep(0.1)

    places = [asyncio.create_task(place()) for _ in range(count)]
    await asyncio.wait(places, timeout=bout.left_s)
    failed = [task.exception() for task in places if task.done()]
    for task in places:
        task.cancel()
    for error in failed:
        if error is not None:
            raise error


async def _open(target: Target, bout: Bout, receive_bytes: int = 0) -> _Streams:
    """A connection. `receive_bytes`: of the kernel's buffer, 0: as usual."""
    link = socket.socket()
    try:
        link.setblocking(False)
        if receive_bytes:
            link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        link.bind((anywhere(bout.rng), 0))
        place = (target.http.host, target.http.port)
        async with asyncio.timeout(_TIMEOUT_S):
            await asyncio.get_running_loop().sock_connect(link, place)
        streams = await asyncio.open_connection(sock=link, limit=1 << 16)
    except BaseException:
        link.close()
        raise
    bout.counts["connections"] += 1
    return streams


def _head(target: Target, length: int, path: str = "/v1/completions", **headers: str) -> bytes:
    found = {
        "Host": str(target.http), "Authorization": f"Bearer {target.api_key}",
        "Content-Type": "application/json", "Content-Length": str(length),
    } | headers  # fmt: skip
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in found.items())
    return f"POST {path} HTTP/1.1\r\n{lines}\r\n".encode()


def _request(target: Target, values: Mapping[str, object]) -> bytes:
    body = json.dumps({"model": target.model, **values}).encode()
    return _head(target, len(body)) + body


async def _slow(target: Target, bout: Bout) -> None:
    reader, writer = await _open(target, bout)
    try:
        kind = bout.rng.random()
        if kind < 0.5:
            data = b""
        elif kind < 0.8:
            data = _head(target, 1000)
        else:
            head = _head(target, 1000)
            writer.write(head)
            data = b"{" * 1000
        ended = asyncio.create_task(reader.read())
        try:
            for byte in data:
                writer.write(bytes([byte]))
                await writer.drain()
                done, _ = await asyncio.wait([ended], timeout=1.0)
                if done:
                    break
            async with asyncio.timeout(2 * _TIMEOUT_S):
                await ended
        finally:
            ended.cancel()
        bout.counts["ended"] += 1
    finally:
        writer.transport.abort()


async def _status(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Returns status and head. Raises EOFError without them."""
    async with asyncio.timeout(2 * _TIMEOUT_S):
        head = await reader.readuntil(b"\r\n\r\n")
    return int(head.split(b" ", 2)[1]), head


async def _absurd(target: Target, bout: Bout) -> None:
    reader, writer = await _open(target, bout)
    try:
        for _ in range(bout.rng.randint(1, 5)):
            writer.write(_absurdity(target, bout.rng))
            await writer.drain()
            status, head = await _status(reader)
            bout.counts[f"status {status}"] += 1
            if status >= 500 and b"retry-after" not in head.lower():
                bout.fault(f"an absurd request is answered by {head.splitlines()[0].decode()}")
            if status < 300:
                bout.fault("an absurd request is answered as if it were none")
            if b"close" in head.lower() or status in (400, 413):
                return
            length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
            await reader.readexactly(int(length.partition(b":")[2]))
    finally:
        writer.transport.abort()


_VALUES: tuple[Mapping[str, object], ...] = (
    {"prompt": "a", "n": 10**6},
    {"prompt": "a", "max_tokens": -2},
    {"prompt": "a", "temperature": 1e300},
    {"prompt": "a", "stop": ["x"] * 1000},
    {"prompt": "a", "logit_bias": {str(token): 1 for token in range(5000)}},
    {"prompt": [10**9] * 100},
    {"prompt": "a " * 50_000},
    {"prompt": {"a": 1}},
    {"messages": [{"role": "user"}]},
    {"prompt": "a", "top_p": "much"},
    {},
)


def _absurdity(target: Target, rng: random.Random) -> bytes:
    kind = rng.randrange(9)
    short = json.dumps({"model": target.model, "prompt": "a"}).encode()
    match kind:
        case 0:
            return rng.randbytes(300) + b"\r\n\r\n"
        case 1:
            return _head(target, len(short), Authorization=f"Bearer {rng.randbytes(12).hex()}") + short
        case 2:
            return (
                _head(target, 2, f"/admin/nodes/{rng.choice(['approve', 'revoke', 'drain', 'undrain'])}")
                + b"{}"
            )
        case 3:
            return _head(target, 0, X_Long="x" * 40_000)
        case 4:
            return _head(target, 1 << 40)
        case 5:
            return _head(target, 40_000) + b"[" * 40_000
        case 6:
            return _head(target, 9) + b'{"a": NaN'
        case 7:
            return _head(target, 2, f"/{rng.randbytes(9).hex()}/../..") + b"{}"
    return _request(target, rng.choice(_VALUES))


async def _short(target: Target, bout: Bout) -> None:
    reader, writer = await _open(target, bout)
    try:
        writer.write(_request(target, {"prompt": "Once", "max_tokens": 2, "temperature": 0}))
        await writer.drain()
        status, head = await _status(reader)
        bout.counts[f"status {status}"] += 1
        if status not in (200, 429, 503) or (status != 200 and b"retry-after" not in head.lower()):
            bout.fault(f"a short request is answered by {head.splitlines()[0].decode()}")
        if status != 200:
            await asyncio.sleep(0.2)
    finally:
        writer.transport.abort()


async def _unread(target: Target, bout: Bout) -> None:
    _, writer = await _open(target, bout, receive_bytes=4096)
    try:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(_request(target, {**_STREAM, "max_tokens": bout.rng.choice([20, 200, 800])}))
        await asyncio.sleep(bout.rng.choice([1.0, 10.0, 90.0]))
    finally:
        writer.transport.abort()


async def _leave(target: Target, bout: Bout) -> None:
    reader, writer = await _open(target, bout)
    stream = bout.rng.random() < 0.7
    request = _request(target, {**_STREAM, "stream": stream, "max_tokens": 300})
    whole = bout.rng.random() < 0.9
    writer.write(request if whole else request[: bout.rng.randrange(len(request))])
    link = writer.transport.get_extra_info("socket")
    way = bout.rng.choice(["rst", "fin", "half"])
    bout.counts[way] += 1
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(bout.rng.random() ** 3 * 2):
            await reader.readexactly(bout.rng.choice([1, 1000, 100_000]))
    if way == "half":
        writer.write_eof()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await reader.read()
    elif way == "rst":
        link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()
