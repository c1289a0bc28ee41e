"""Single machines of a cluster of real processes: a command and its log, a worker and its folders."""

import contextlib
import signal
import subprocess
from pathlib import Path

import psutil

from tests.process.command import COMMAND
from tpiedge.host.addresses import Address
from tpiedge.kernels.shared_library import NO_ISA, kernel_library
from tpiedge.launch.bootstrap import NodeReport
from tpiedge.launch.offer import Measurements
from tpiedge.wire.epochs import Capacity

END_S = 60.0
THREADS = 1
SPEED = 1e10
#: The master's machine counts as fast as its workers, and no measured speed is compared with its own: tests suspend
#: nodes or run beside other tests, so the time of an FFN has nothing to do with the speeds that tests make up.
UNMEASURED = 0.0
#: Quantised weights go at another speed.
PANELS_SLOWER = 4


def measured(folder: Path, bytes_per_s: float = SPEED) -> None:
    """Stores a measured speed, so that shares are the same each time."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    of_panels = bytes_per_s / PANELS_SLOWER
    library = kernel_library()
    isa = library.isa if library else NO_ISA
    report = NodeReport(isa, Capacity(bytes_per_s, of_panels))
    Measurements(folder, THREADS).keep(report)


class Process:
    """`tpiedge ARGUMENTS...`, or another `program`, in a session of its own, writing to `log`.

    `descriptors`: its soft and its hard limit at the start, where they are not those of the tests.
    """

    def __init__(
        self,
        log: Path,
        *arguments: object,
        program: tuple[object, ...] = (COMMAND,),
        descriptors: tuple[int, int] | None = None,
    ) -> None:
        self.path = log
        limited = []
        if descriptors is not None:
            soft, hard = descriptors
            limited = ["sh", "-c", f'ulimit -Sn {soft} && ulimit -Hn {hard} && exec "$0" "$@"']
        with log.open("ab") as stream:
            self.popen = subprocess.Popen(
                [str(word) for word in (*limited, *program, *arguments)],
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self.popen.pid

    @property
    def log(self) -> str:
        return self.path.read_text(errors="replace")

    def children(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self.pid).children(recursive=True)
        return []

    def wait(self, limit_s: float = END_S) -> int:
        return self.popen.wait(limit_s)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ask it to end (also if it is frozen) and wait for that."""
        family = self.children()
        if self.popen.poll() is None:
            self.popen.send_signal(number)
            self.popen.send_signal(signal.SIGCONT)
        for child in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.resume()
        return self.wait()


class Worker:
    """One machine: its folders stay when its process ends."""

    def __init__(
        self,
        folder: Path,
        name: str,
        address: Address,
        options: tuple[object, ...],
        bytes_per_s: float,
        program: tuple[object, ...] = (COMMAND,),
    ) -> None:
        """`program`: what the agent is, instead of `tpiedge`."""
        self.name = name
        self.program = program
        self.state, self.cache = folder / f"{name}-state", folder / f"{name}-cache"
        self.address = address
        self.options = options
        self._process: Process | None = None
        self._log = folder / f"{name}.log"
        measured(self.state / "worker", bytes_per_s)

    @property
    def arguments(self) -> list[object]:
        folders = ["--state", self.state, "--cache", self.cache]
        who = ["--name", self.name, "--threads", THREADS]
        return ["worker", "--connect", self.address, *folders, *who, *self.options]

    def start(self, token: str | None = None) -> None:
        self._process = Process(
            self._log, *self.arguments, *(["--token", token] if token else []), program=self.program
        )

    @property
    def process(self) -> Process:
        assert self._process is not None, f"{self.name} was never started"
        return self._process

    @property
    def agent(self) -> psutil.Process:
        return psutil.Process(self.process.pid)

    @property
    def node(self) -> psutil.Process:
        (server,) = self.agent.children()
        return max(server.children(), key=lambda child: child.create_time())

    @property
    def log(self) -> str:
        return self.process.log

    def weights(self) -> dict[str, tuple[int, int, int]]:
        """Returns size, time of writing and allocated bytes of each file of weights in its shard store."""
        found = (self.cache / "shards" / "blobs").iterdir()
        whole = {path.name: path.stat() for path in found if not path.name.startswith(".")}
        return {name: (one.st_size, one.st_mtime_ns, one.st_blocks) for name, one in whole.items()}

    def fetched_again(self, before: dict[str, tuple[int, int, int]]) -> list[str]:
        """Returns files that were written since `before` without growing. (On a busy machine the next plan may have
        other parts, of which a worker fetches the rest.)"""
        now = self.weights()
        blobs = {name: was for name, was in before.items() if "." not in name}
        return [
            name
            for name, was in blobs.items()
            if name not in now or (now[name] != was and now[name][2] <= was[2])
        ]
