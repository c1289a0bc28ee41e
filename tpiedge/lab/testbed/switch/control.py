"""What a running switch is asked over its socket: a line of JSON each, answered with a line of JSON. Both ends."""

import contextlib
import json
import os
import socket
import socketserver
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tpiedge.errors import ResourceError, TpiedgeError, UserError

_MAX_LINE_BYTES: Final = 1 << 20
_TIMEOUT_S: Final = 5.0
_RECEIVE_BYTES: Final = 65536

SwitchAnswer = Callable[[dict[str, Any]], dict[str, Any]]


class SwitchClient:
    """Each call is a connection of its own and takes at most `timeout_s`.

    Raises UserError for what the switch refuses, ResourceError where no switch answers.
    """

    def __init__(self, path: Path, timeout_s: float = _TIMEOUT_S) -> None:
        self._path = path
        self._timeout_s = timeout_s

    def counters(self) -> dict[str, Any]:
        """`links`: of each link by name LINK_COUNTERS; `totals`: TOTALS, both as in library.py."""
        return self._ask({"do": "counters"})

    def set_links(self, links: Mapping[str, Mapping[str, float | None]]) -> None:
        """Changes links: by name what changes, as in SwitchLink. In force on return, all of it or nothing."""
        self._ask({"do": "set", "links": {name: dict(changes) for name, changes in links.items()}})

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            answer = json.loads(self._exchange(json.dumps(request).encode() + b"\n"))
        except (OSError, ValueError) as error:
            raise ResourceError(
                f"the switch at {self._path} does not answer ({error or type(error).__name__}): "
                "'tpiedge testbed status' says whether it runs"
            ) from None
        if "error" in answer:
            raise UserError(str(answer["error"]))
        return dict(answer)

    def _exchange(self, line: bytes) -> bytes:
        deadline = time.monotonic() + self._timeout_s
        received = b""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(self._timeout_s)
            connection.connect(str(self._path))
            connection.sendall(line)
            while not received.endswith(b"\n"):
                connection.settimeout(max(1e-3, deadline - time.monotonic()))
                more = connection.recv(_RECEIVE_BYTES)
                if not more:
                    raise OSError("it broke off")
                received += more
        return received


class _SwitchServer(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    request_queue_size = 32

    def __init__(self, path: Path, answer: SwitchAnswer) -> None:
        super().__init__(str(path), _SwitchConnection)
        self._answer = answer
        self._one_at_a_time = threading.Lock()

    def answer_line(self, line: bytes) -> dict[str, Any]:
        try:
            request = json.loads(line)
        except (ValueError, RecursionError):
            return {"error": "the request is not a line of JSON"}
        if not isinstance(request, dict):
            return {"error": "the request is not a JSON object"}
        try:
            with self._one_at_a_time:
                return self._answer(request)
        except TpiedgeError as error:
            return {"error": str(error)}


class _SwitchConnection(socketserver.StreamRequestHandler):
    server: _SwitchServer

    def handle(self) -> None:
        with contextlib.suppress(OSError):  # the client left
            while (line := self.rfile.readline(_MAX_LINE_BYTES)).endswith(b"\n"):
                self.wfile.write(json.dumps(self.server.answer_line(line)).encode() + b"\n")


@contextlib.contextmanager
def listening(path: Path, answer: SwitchAnswer) -> Iterator[None]:
    """Listens at `path` during the block, for this user only; `answer` gets one request at a time, on other threads.

    An error of ours is answered as `error`. Raises UserError where another switch listens there.
    """
    _remove_stale(path)
    before = os.umask(0o177)
    try:
        server = _SwitchServer(path, answer)
    except OSError as error:
        raise UserError(f"the switch cannot listen at {path}: {error}") from None
    finally:
        os.umask(before)
    thread = threading.Thread(target=server.serve_forever, name="control")
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        path.unlink(missing_ok=True)


def _remove_stale(path: Path) -> None:
    """What a killed switch has left behind."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_TIMEOUT_S)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            if stat.S_ISSOCK(path.lstat().st_mode):
                path.unlink()
        except OSError:
            return
