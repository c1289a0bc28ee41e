"""llama.cpp's HTTP server on this computer, for many streams at once."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tpiedge.lab.bench.serve_client import MeasuredServer, ServerAddress
from tpiedge.lab.bench.serve_cluster import await_ready, free_ports, running_process

_HOST = "127.0.0.1"


@contextmanager
def llama_server(
    program: Path, model: Path, threads: int, streams: int, context: int, more: str
) -> Iterator[MeasuredServer]:
    """A server during the block, of `streams` at a time with `context` tokens each. Raises PeerError, ResourceError."""
    port = free_ports(1)
    command = llama_server_command(program, model, threads, streams, context, more)
    with running_process("llama-server", [*command, "--host", _HOST, "--port", str(port)]) as process:
        address = ServerAddress(_HOST, port)
        await_ready(address, "/health", [process])
        yield MeasuredServer.at(address)


def llama_server_command(
    program: Path, model: Path, threads: int, streams: int, context: int, more: str
) -> list[str]:
    """Builds the command without costly extras: saved prompts, slots to look at, the page. Each stream has its own KV
    cache, so that it attends to its own cells only. `more`: flags that come last, and so count."""
    flags = {
        "-m": model,
        "-t": threads,
        "-tb": threads,
        "-np": streams,
        "-c": streams * context,
        "-ngl": 0,
        "--cache-ram": 0,
    }
    switches = ["-cb", "--no-kv-unified", "--no-cache-prompt", "--no-warmup", "--no-webui", "--no-slots"]
    return [
        str(program),
        *(str(word) for pair in flags.items() for word in pair),
        *switches,
        *shlex.split(more),
    ]
