"""Measure what the HTTP API costs a master's process, and how soon it answers while all cores compute.

    .venv/bin/python -m tools.bench_api [MODEL] [--streams 16] [--tokens 400] [--requests 640] [--connections 1000]
        [--looks 500] [--repeats 5]

Printed for a master with one node: memory for idle connections; the master's processor time per streamed token and per
request of one token (median, least and most); and milliseconds of /health (median and 99th percentile of `--looks`)
beside streams and busy cores. A bare server's figures tell the computer's part. Linux.
"""

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Coroutine, Iterator, Sequence
from pathlib import Path

import psutil

from tests.process.serving.serving import HOST, Serving
from tools.figures import show

_LIMIT_S = 300.0
_LOOK_GAP_S = 0.01
_WARM_REQUESTS = 64
_MEGABYTE = 1e6
_END_OF_STREAM = b"data: [DONE]\n\n"
_BARE = """
import asyncio

async def serve(reader, writer):
    while await reader.readuntil(b"\\r\\n\\r\\n"):
        writer.write(b"HTTP/1.1 200 OK\\r\\n\\r\\n{}")

async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()

asyncio.run(main())
"""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--requests", type=int, default=640)
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--looks", type=int, default=500)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true", dest="as_json")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        found = _measured(Path(folder), options)
    show(found, as_json=options.as_json)
    return 0


def _measured(folder: Path, options: argparse.Namespace) -> dict[str, list[float]]:
    context = options.tokens + 64
    rooms = ("--context", context, "--kv-tokens", options.streams * context)
    cluster = Serving(folder / "cluster", "--parallel", options.streams, *rooms, model=options.model)
    try:
        cluster.start_master()
        cluster.wait_ready(1, _LIMIT_S)
        api = _Api(cluster, psutil.Process(cluster.master.pid), options)
        found = {f"MB for {options.connections} connections": [asyncio.run(api.idle_bytes()) / _MEGABYTE]}
        asyncio.run(api.warm())
        for _ in range(options.repeats):
            for name, value in asyncio.run(api.round()).items():
                found.setdefault(name, []).append(value)
        return found
    finally:
        cluster.close()


class _Api:
    """The API of a running cluster, and the process that it runs in."""

    def __init__(self, cluster: Serving, process: psutil.Process, options: argparse.Namespace) -> None:
        self._port = cluster.http_port
        self._model = cluster.model
        self._process = process
        self._options = options

    async def warm(self) -> None:
        await self._requests(_WARM_REQUESTS)
        await self._streams()

    async def round(self) -> dict[str, float]:
        options = self._options
        per_token = await self._cpu_ms(self._streams()) / (options.streams * options.tokens)
        per_request = await self._cpu_ms(self._requests(options.requests)) / options.requests
        with _busy_cores(), _bare_server() as bare:
            stream = asyncio.create_task(self._streams_until_cancelled())
            looks = await self._looks(self._port)
            bare_looks = await self._looks(bare)
            stream.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await stream
        return {
            "ms of processor time per token": per_token,
            "ms of processor time per request": per_request,
            "/health, median ms": statistics.median(looks),
            "/health, 99th percentile ms": _last_percent(looks),
            "the bare server, median ms": statistics.median(bare_looks),
            "the bare server, 99th percentile ms": _last_percent(bare_looks),
        }

    async def _cpu_ms(self, work: Coroutine[None, None, None]) -> float:
        before = self._process.cpu_times()
        await work
        after = self._process.cpu_times()
        return (after.user + after.system - before.user - before.system) * 1000

    async def _streams(self) -> None:
        await asyncio.gather(
            *(self._ask(self._options.tokens, stream=True) for _ in range(self._options.streams))
        )

    async def _streams_until_cancelled(self) -> None:
        while True:
            await self._streams()

    async def _requests(self, count: int) -> None:
        """Sends `count` requests of one token over as many connections as there are streams."""
        left = iter(range(count))

        async def client() -> None:
            for _ in left:
                await self._ask(1, stream=False)

        await asyncio.gather(*(client() for _ in range(self._options.streams)))

    async def _ask(self, tokens: int, *, stream: bool) -> None:
        """Sends a request. Raises RuntimeError without a whole answer."""
        body = json.dumps(
            {
                "model": self._model,
                "prompt": "Once upon a time",
                "max_tokens": tokens,
                "stream": stream,
                "ignore_eos": True,
            }
        ).encode()
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
            f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        async with asyncio.timeout(_LIMIT_S):
            reader, writer = await asyncio.open_connection(HOST, self._port)
            try:
                writer.write(head.encode() + body)
                answer = await reader.read()
            finally:
                writer.close()
        if not answer.startswith(b"HTTP/1.1 200") or (stream and _END_OF_STREAM not in answer):
            raise RuntimeError(f"no answer: {answer[-300:]!r}")

    async def idle_bytes(self) -> int:
        """Returns the growth of memory by open, idle connections."""
        before = self._process.memory_full_info().uss
        writers = []
        try:
            for _ in range(self._options.connections):
                reader, writer = await asyncio.open_connection(HOST, self._port)
                writers.append(writer)
                await _look(reader, writer)
            return self._process.memory_full_info().uss - before
        finally:
            for writer in writers:
                writer.close()

    async def _looks(self, port: int) -> list[float]:
        """Returns the milliseconds of successive looks on one connection."""
        reader, writer = await asyncio.open_connection(HOST, port)
        try:
            return [await _look(reader, writer) for _ in range(self._options.looks)]
        finally:
            writer.close()


async def _look(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> float:
    await asyncio.sleep(_LOOK_GAP_S)
    began = time.perf_counter()
    writer.write(f"GET /health HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
    head = await reader.readuntil(b"\r\n\r\n")
    await reader.readuntil(b"}")
    took_s = time.perf_counter() - began
    if not head.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(f"no answer: {head!r}")
    return took_s * 1000


def _last_percent(values: list[float]) -> float:
    return statistics.quantiles(values, n=100)[98]


@contextlib.contextmanager
def _bare_server() -> Iterator[int]:
    """Yields the port of a server that reads a request up to the end of its head."""
    with subprocess.Popen([sys.executable, "-c", _BARE], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield int(server.stdout.readline())
        finally:
            server.kill()


@contextlib.contextmanager
def _busy_cores() -> Iterator[None]:
    """Keeps a process computing on each core during the block."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in os.sched_getaffinity(0)]
    try:
        yield
    finally:
        for one in loops:
            one.kill()
            one.wait()


if __name__ == "__main__":
    sys.exit(main())
