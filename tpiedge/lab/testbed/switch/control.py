"""What a running switch is asked over its socket: a line of JSON each, answered with a line of JSON."""

import json
import os
import selectors
import socket
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tpiedge.errors import TpiedgeError, UserError

_MAX_LINE_BYTES: Final = 1 << 20
_MAX_CONNECTIONS: Final = 32
_SEND_TIMEOUT_S: Final = 1.0
# After what would fail again at once.
_PAUSE_S: Final = 0.02


class ControlSocket:
    """Listens at `path`, for this user only; `answer` gets each request, and its result is the answer.

    An error of ours is answered as `error`. Whatever arrives, `answer` is called from `serve`, one at a time.
    """

    def __init__(self, path: Path, answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        self._path = path
        self._answer = answer
        self._lines: dict[socket.socket, bytes] = {}
        self._listener = _listen(path)
        self._identity = _identity(path)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)

    def serve(self, wake_fd: int) -> None:
        """Serves until there is something to read from `wake_fd`."""
        self._selector.register(wake_fd, selectors.EVENT_READ)
        while True:
            ready = [key.fileobj for key, _ in self._selector.select()]
            if wake_fd in ready:
                return
            for thing in ready:
                if thing is self._listener:
                    self._accept()
                elif isinstance(thing, socket.socket):
                    self._read(thing)

    def close(self) -> None:
        for connection in tuple(self._lines):
            self._forget(connection)
        self._selector.close()
        self._listener.close()
        if _identity(self._path) == self._identity:  # not another switch's
            self._path.unlink(missing_ok=True)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            # It has gone again, or descriptors are short for a while: the devices need the switch all the same.
            time.sleep(_PAUSE_S)
            return
        if len(self._lines) == _MAX_CONNECTIONS:
            connection.close()
            return
        connection.settimeout(_SEND_TIMEOUT_S)
        self._lines[connection] = b""
        self._selector.register(connection, selectors.EVENT_READ)

    def _read(self, connection: socket.socket) -> None:
        try:
            received = connection.recv(65536)
            *lines, rest = (self._lines[connection] + received).split(b"\n")
            self._lines[connection] = rest
            for line in lines:
                connection.sendall(json.dumps(self._answer_line(line)).encode() + b"\n")
            if not received or len(rest) > _MAX_LINE_BYTES:
                self._forget(connection)
        except OSError:
            self._forget(connection)

    def _answer_line(self, line: bytes) -> dict[str, Any]:
        try:
            request = json.loads(line)
        except (ValueError, RecursionError):
            return {"error": "the request is not a line of JSON"}
        if not isinstance(request, dict):
            return {"error": "the request is not a JSON object"}
        try:
            return self._answer(request)
        except TpiedgeError as error:
            return {"error": str(error)}

    def _forget(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        del self._lines[connection]
        connection.close()


def _listen(path: Path) -> socket.socket:
    _remove_stale(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
        listener.listen()
    except OSError as error:
        listener.close()
        raise UserError(f"the switch cannot listen at {path}: {error}") from None
    finally:
        os.umask(before)
    return listener


def _remove_stale(path: Path) -> None:
    """What a killed switch has left behind."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_SEND_TIMEOUT_S)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            if stat.S_ISSOCK(path.lstat().st_mode):
                path.unlink()
        except OSError:
            return


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
