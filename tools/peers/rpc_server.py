"""llama.cpp's server for a part of a model's layers, at a place of a testbed."""

import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tpiedge.errors import PeerError
from tpiedge.nodes.cluster import Place

__all__ = ["rpc_server"]

_PORT = 50052
_START_S = 20.0
_END_S = 5.0
_KILLED_S = 30.0
_TAIL_BYTES = 300


@contextmanager
def rpc_server(program: Path, place: Place, threads: int, cache: Path) -> Iterator[str]:
    """The address of a server that runs during the block; it keeps in `cache` the weights that were sent to it.

    Raises PeerError where it cannot be reached from here, or something else is there.
    """
    if _answers(place.host):
        raise PeerError(f"something listens at {place.host}:{_PORT} already: end it")
    command = [*place.prefix, str(program), "-H", place.host, "-p", str(_PORT), "-t", str(threads), "-c"]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=os.environ | {"LLAMA_CACHE": str(cache)},
        )
        try:
            if not _is_reached(process, place.host):
                log.seek(max(0, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
                words = " ".join(log.read().decode(errors="replace").split())
                raise PeerError(f"{program.name} cannot be reached: {words or 'it said nothing'}")
            yield f"{place.host}:{_PORT}"
        finally:
            process.terminate()
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(_KILLED_S)


def _is_reached(process: "subprocess.Popen[bytes]", host: str) -> bool:
    deadline = time.monotonic() + _START_S
    while process.poll() is None and time.monotonic() < deadline:
        if _answers(host):
            return True
        time.sleep(0.1)
    return False


def _answers(host: str) -> bool:
    try:
        socket.create_connection((host, _PORT), timeout=1.0).close()
    except OSError:
        return False
    return True
