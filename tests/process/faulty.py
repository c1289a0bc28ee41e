"""`tpiedge` with a fault that begins while it runs: `python -m tests.process.faulty FAULT FILE ARGUMENTS...`.

`slow-disk`: while FILE is there, an fsync does not end, but for as many as FILE says, and, where it names a thread, for
those of other threads; then FILE.stuck is there.
`poison`: its nodes die of a sequence of POISON tokens (`poisoned_node.py`), each leaving a line in FILE; they begin no
step while FILE.gate is there.
`held`: while FILE is there, its nodes begin no step beyond as many tokens of a sequence as FILE says, but are heard
(`held_node.py`); then FILE.stuck is there.
`slow`: while FILE is there, the FFN of each layer takes its nodes SLOWER_S more (`slow_node.py`).
The name of a thread: it fails at what it does next, once FILE is there; the process ends for that once FILE is gone.
"""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import uvicorn

from tests.process.command import wait_for
from tpiedge.cli.main import main
from tpiedge.launch import standby
from tpiedge.supervision import Supervisor
from tpiedge.transport.admission import Gatekeeper
from tpiedge.transport.zeromq_endpoint import ZmqEndpoint

#: For the nodes: the variable with FILE, and of how many tokens they die.
NODE_FAULT_FILE = "TPIEDGE_NODE_FAULT_FILE"
POISON = 333
#: Ten times what the FFN of the demo model's layers takes on a machine that does ten other things, and more on others.
#: An answer of 900 tokens takes longer than anything that a test waits for meanwhile.
SLOWER_S = 0.05
_POLL_S = 0.01
#: Generous: the machine may be doing ten other things.
_MET_S = 90.0


class Fault:
    """Of a process that is started by `program`."""

    def __init__(self, kind: str, path: Path) -> None:
        self.program = (sys.executable, "-m", "tests.process.faulty", kind, path)
        self._path = path

    def begin(self, spared: int = 0, thread: str = "") -> None:
        """`spared`: how many calls (`held`: tokens) go well before the first that does not; `thread`: whose calls, ""
        for any's."""
        _stuck(self._path).unlink(missing_ok=True)
        partial = self._path.with_suffix(".partial")
        partial.write_text(f"{spared} {thread}")
        partial.replace(self._path)

    def end(self) -> None:
        """Idempotent."""
        self._path.unlink(missing_ok=True)

    @property
    def met(self) -> bool:
        """Whether the process is in it."""
        return _stuck(self._path).exists()

    @contextlib.contextmanager
    def holding(self) -> Iterator[None]:
        """The process is in it for the length of the block."""
        self.begin()
        try:
            wait_for(lambda: self.met, _MET_S)
            yield
        finally:
            self.end()


def gate_of(path: Path) -> Path:
    return path.with_suffix(".gate")


def _stuck(path: Path) -> Path:
    return path.with_suffix(".stuck")


def _spared(path: Path) -> int | None:
    """How many; None while there is no fault for this thread."""
    try:
        spared, _, thread = path.read_text().partition(" ")
    except FileNotFoundError:
        return None
    return int(spared) if thread in ("", threading.current_thread().name) else None


def wait_where_held(path: Path, tokens: int) -> None:
    """Until a step with so many of a sequence may begin."""

    def is_held() -> bool:
        spared = _spared(path)
        return spared is not None and tokens > spared

    if is_held():
        _stuck(path).touch()
        while is_held():
            time.sleep(_POLL_S)


def _slow_disk(path: Path) -> None:
    fsync: Callable[[int], None] = os.fsync
    passed = 0

    def is_due() -> bool:
        nonlocal passed
        spared = _spared(path)
        if spared is None:
            return False
        passed += 1
        return passed > spared

    def wait_and_sync(fd: int) -> None:
        if is_due():
            _stuck(path).touch()
            while path.exists():
                time.sleep(_POLL_S)
        fsync(fd)

    os.fsync = wait_and_sync


def _other_nodes(module: str, path: Path) -> None:
    """For the nodes that it starts, which look for modules where they are told to alone."""
    os.environ |= {NODE_FAULT_FILE: str(path), "PYTHONPATH": str(Path(__file__).parents[2])}
    standby.NODE_MODULE = f"tests.process.{module}"


def _failing_thread(name: str, path: Path) -> None:
    """Wraps what the threads of a master call again and again, or when somebody comes."""

    def failing(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: object, **options: object) -> object:
            if threading.current_thread().name == name and path.exists():
                raise ZeroDivisionError("on purpose")
            return function(*arguments, **options)

        return call

    ZmqEndpoint.recv_frame = failing(ZmqEndpoint.recv_frame)
    Gatekeeper._answer = failing(Gatekeeper._answer)
    uvicorn.Server.on_tick = failing(uvicorn.Server.on_tick)
    os.fsync = failing(os.fsync)
    check = Supervisor.check

    def check_later(supervisor: Supervisor) -> None:
        while supervisor.failure is not None and path.exists():
            time.sleep(_POLL_S)
        check(supervisor)

    Supervisor.check = check_later


if __name__ == "__main__":
    kind, file, *arguments = sys.argv[1:]
    if kind == "slow-disk":
        _slow_disk(Path(file))
    elif kind == "poison":
        _other_nodes("poisoned_node", Path(file))
    elif kind == "held":
        _other_nodes("held_node", Path(file))
    elif kind == "slow":
        _other_nodes("slow_node", Path(file))
    else:
        _failing_thread(kind, Path(file))
    sys.argv[1:] = arguments
    main()
