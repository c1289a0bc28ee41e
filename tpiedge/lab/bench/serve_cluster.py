"""Starts `tpiedge master` and `tpiedge worker` with temporary state, locally or on a testbed."""

import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tpiedge.errors import PeerError, ResourceError
from tpiedge.host.addresses import PURPOSES, port_state
from tpiedge.lab.bench.serve_client import MeasuredServer, ServerAddress
from tpiedge.launch.child import Place
from tpiedge.progress import say
from tpiedge.sanitise import sanitised_line

_LOOPBACK = "127.0.0.1"
_ALONE_S = 180.0
"""Limit for a server without workers."""
_WITH_WORKERS_S = 900.0
"""Limit for a server with workers, which fetch their shares."""
_END_S = 30.0
_KILLED_S = 30.0
_POLL_S = 0.1
_PORTS = len(PURPOSES) + 1  # and HTTP
_RANGE = (20_000, 30_000)  # below the ports that the kernel gives to outgoing connections
_TRIES = 100
_LINE = 300
_NOT_READY = "not ready"
"""The beginning of a waiting master's messages."""
_TAIL_BYTES = 4096
_ENTRY = """
import os, signal, sys
from tpiedge.lifeline import guard
guard(lambda: os.kill(os.getpid(), signal.SIGTERM), signal.SIGTERM)
from tpiedge.cli.entry import main
sys.argv[0] = "tpiedge"
main()
"""


@dataclass(frozen=True)
class ClusterWish:
    """Options of the master and of each worker. A process without a place runs on this computer itself."""

    options: tuple[str, ...]
    workers: int
    worker_options: tuple[str, ...]
    places: tuple[Place, ...] = ()

    def place(self, machine: int) -> Place:
        return self.places[machine] if machine < len(self.places) else Place()


@dataclass(frozen=True)
class ClusterHome:
    """The states and caches of a cluster that runs more than once. Its addresses stay the same."""

    folder: Path
    first_port: int

    @property
    def state(self) -> Path:
        """The master's --state."""
        return self.folder / "master"


@contextmanager
def cluster_home(host: str = _LOOPBACK) -> Iterator[ClusterHome]:
    """Makes a temporary home for a master that listens on `host`. Raises ResourceError."""
    with tempfile.TemporaryDirectory(prefix="tpiedge-bench-") as folder:
        yield ClusterHome(Path(folder), free_ports(_PORTS, host))


@contextmanager
def own_cluster(wish: ClusterWish) -> Iterator[MeasuredServer]:
    """Runs a cluster in a home of its own for the block. The caller must be in the network of the master's place,
    `wish.place(0)`. Raises PeerError, ResourceError."""
    with cluster_home(wish.place(0).host) as home, cluster_at(home, wish) as server:
        yield server


@contextmanager
def cluster_at(home: ClusterHome, wish: ClusterWish) -> Iterator[MeasuredServer]:
    """Runs a cluster for the block, all of its processes new. See `own_cluster`."""
    with ExitStack() as stack:
        token, address = home.folder / "token", f"{wish.place(0).host}:{home.first_port}"
        http = ServerAddress(_LOOPBACK, home.first_port + _PORTS - 1)
        listen = ["--listen", address, "--http", f"{http.host}:{http.port}", "--token-file", str(token)]
        members = ["--min-workers", str(wish.workers), "--state", str(home.state)]
        master = [*_tpiedge(wish.place(0)), "master", *listen, *members, *wish.options]
        processes = [stack.enter_context(running_process("the master", master))]
        for number in range(1, wish.workers + 1):
            own = home.folder / f"worker-{number}"
            folders = ["--state", str(own / "state"), "--cache", str(own / "cache"), "--name", own.name]
            join = ["--token-file", str(token), "--wait", f"{_WITH_WORKERS_S:.0f}"]
            worker = [*_tpiedge(wish.place(number)), "worker", *join, *folders, *wish.worker_options]
            processes.append(stack.enter_context(running_process(own.name, worker)))
        await_ready(http, "/ready", processes, _WITH_WORKERS_S if wish.workers else _ALONE_S)
        yield MeasuredServer.at(http)


class RunningProcess:
    def __init__(self, name: str, process: "subprocess.Popen[bytes]", log: IO[bytes]) -> None:
        self._name = name
        self._process = process
        self._log = log

    def check(self) -> None:
        """Raises PeerError, with the last line of the log, if the process has ended."""
        status = self._process.poll()
        if status is not None:
            raise PeerError(f"{self._name} ended with status {status}: {self.last_words()}")

    def last_words(self) -> str:
        self._log.seek(max(0, self._log.seek(0, 2) - _TAIL_BYTES))
        lines = self._log.read().decode(errors="replace").strip().splitlines() or ["it said nothing"]
        return sanitised_line(lines[-1], _LINE)


@contextmanager
def running_process(name: str, command: Sequence[str]) -> Iterator[RunningProcess]:
    """Runs a process during the block and keeps its standard input open. Raises ResourceError."""
    with tempfile.TemporaryFile() as log:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for this process, which then ends the other
            )
        except OSError as error:
            raise ResourceError(f"cannot start {name}: {error.strerror}") from None
        try:
            yield RunningProcess(name, process, log)
        finally:
            _end(process)


def _end(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(_KILLED_S)
    if process.stdin is not None:
        process.stdin.close()


def _tpiedge(place: Place) -> list[str]:
    # -P: a folder named numpy in the user's working directory must not be imported.
    return [*place.prefix, sys.executable, "-P", "-c", _ENTRY]


def await_ready(
    server: ServerAddress, path: str, processes: Sequence[RunningProcess], limit_s: float = _ALONE_S
) -> None:
    """Blocks until `server` answers 200 at `path`. Raises PeerError."""
    deadline = time.monotonic() + limit_s
    said = ""
    while True:
        for process in processes:
            process.check()
        if _is_ready(server, path):
            return
        words = processes[0].last_words()
        if words.startswith(_NOT_READY) and words != said:
            said = words
            say(words)
        if time.monotonic() >= deadline:
            raise PeerError(f"the server is not ready after {limit_s:.0f} s: {words}")
        time.sleep(_POLL_S)


def _is_ready(server: ServerAddress, path: str) -> bool:
    try:
        status, _ = server.get(path)
    except PeerError:
        return False
    return status == 200


def free_ports(count: int, host: str = _LOOPBACK) -> int:
    """Returns the first of `count` adjacent free ports. Raises ResourceError."""
    for _ in range(_TRIES):
        first = random.randrange(*_RANGE)
        wanted = range(first, first + count)
        if all(port_state(port, at) == "free" for port in wanted for at in (host, _LOOPBACK)):
            return first
    raise ResourceError("there are no free ports on this computer")
