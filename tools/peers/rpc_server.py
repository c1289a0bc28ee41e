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
from tpiedge.launch.child import Place

from .child import last_words, wait_or_kill

_PORT = 50052
_START_S = 20.0


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
                raise PeerError(f"{program.name} cannot be reached: {last_words(log)}")
            yield f"{place.host}:{_PORT}"
        finally:
            process.terminate()
            wait_or_kill(process)


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
