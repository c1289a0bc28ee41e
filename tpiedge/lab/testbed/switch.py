"""The switch's plan, and both ends of its control socket. Messages are lines of JSON."""

import contextlib
import json
import os
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from tpiedge.errors import ResourceError, TpiedgeError, UserError


@dataclass(frozen=True, slots=True)
class Port:
    """A device's only network interface. `namespace`: the file of the device's network namespace."""

    device: str
    namespace: str
    address: str


@dataclass(frozen=True, slots=True)
class SwitchLink:
    """One direction of a link. `jitter_s`: the most seconds that are added at random to the latency. Packets stay in
    order. `loss`: the fraction of lost packets. `bytes_per_s`: None means no limit. With a limit, at most `queue_bytes`
    wait."""

    name: str
    latency_s: float
    jitter_s: float = 0.0
    loss: float = 0.0
    bytes_per_s: float | None = None
    queue_bytes: int = 1 << 20


@dataclass(frozen=True, slots=True)
class SwitchPlan:
    """A switch's ports and links. `paths[source][target]`: indices of the `links` that a packet passes, in order."""

    ports: tuple[Port, ...]
    links: tuple[SwitchLink, ...]
    paths: Mapping[str, Mapping[str, tuple[int, ...]]]
    seed: int = 1

    def to_json(self) -> str:
        return msgspec.json.encode(self).decode()

    @staticmethod
    def from_json(text: str) -> "SwitchPlan":
        """Parses a result of `to_json`. Raises UserError for other text."""
        try:
            return msgspec.json.decode(text, type=SwitchPlan)
        except ValueError as error:
            raise UserError(f"not a plan of a switch ({error}): 'tpiedge testbed up' makes one") from None


_TIMEOUT_S: Final = 5.0
SwitchAnswer = Callable[[dict[str, Any]], dict[str, Any]]


class SwitchClient:
    """Asks a switch and waits at most 5 s for its answer."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def counters(self) -> dict[str, Any]:
        """Returns the result of NativeSwitch.counters."""
        return self._ask({"do": "counters"})

    def set_links(self, links: Mapping[str, Mapping[str, float | None]]) -> None:
        """Changes fields of SwitchLinks, by link name. Blocks until the changes are in force."""
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
        deadline = time.monotonic() + _TIMEOUT_S
        received = b""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_TIMEOUT_S)
            connection.connect(str(self._path))
            connection.sendall(line)
            while not received.endswith(b"\n"):
                connection.settimeout(max(1e-3, deadline - time.monotonic()))
                more = connection.recv(65536)
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
            with self._one_at_a_time:
                return self._answer(json.loads(line))
        except (TpiedgeError, ValueError, TypeError, KeyError, AttributeError) as error:
            return {"error": str(error) if isinstance(error, TpiedgeError) else f"no request: {error!r}"}


class _SwitchConnection(socketserver.StreamRequestHandler):
    server: _SwitchServer

    def handle(self) -> None:
        with contextlib.suppress(OSError):  # the client left
            while (line := self.rfile.readline(1 << 20)).endswith(b"\n"):
                self.wfile.write(json.dumps(self.server.answer_line(line)).encode() + b"\n")


@contextlib.contextmanager
def listening(path: Path, answer: SwitchAnswer) -> Iterator[None]:
    """Answers this user's requests at `path`. Other threads call `answer`, one request at a time."""
    path.unlink(missing_ok=True)  # left by a killed switch; the caller holds the testbed's lock
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
