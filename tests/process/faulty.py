"""`tpiedge` with a fault that begins while it runs: `python -m tests.process.faulty FAULT FILE ARGUMENTS...`.

`slow-disk`: while FILE is there, an fsync does not end, but for as many as FILE says, and, where it names a thread, for
those of other threads; then FILE.stuck is there.
`poison`: its nodes die of a sequence of POISON tokens (`poisoned_node.py`), each leaving a line in FILE; they begin no
step while FILE.gate is there.
`held`: its nodes compute no sequence of POISON tokens (`held_node.py`) while FILE is there.
`slow-steps`: each step of its nodes takes at least STEP_S (`slow_node.py`) while FILE is there.
The name of a thread: it fails at what it does next, once FILE is there; the process ends for that once FILE is gone.
"""

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvicorn

from tpiedge.cli.main import main
from tpiedge.launch import standby
from tpiedge.supervision import Supervisor
from tpiedge.transport.admission import Gatekeeper
from tpiedge.transport.zeromq_endpoint import ZmqEndpoint

__all__ = ["POISON", "POISON_FILE", "STEP_S", "Fault", "gate_of"]

#: For the nodes: of how many tokens they die, and the variable with FILE.
POISON = 333
POISON_FILE = "POISONED_NODE_FILE"
#: Of slow nodes: the steps of an answer of 900 tokens take longer than anything that a test waits for meanwhile.
STEP_S = 0.3
_POLL_S = 0.01


class Fault:
    """Of a process that is started by `program`."""

    def __init__(self, kind: str, path: Path) -> None:
        self.program = (sys.executable, "-m", "tests.process.faulty", kind, path)
        self._path = path

    def begin(self, spared: int = 0, thread: str = "") -> None:
        """`spared`: how many calls go well before the first that does not; `thread`: whose calls, "" for any's."""
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


def gate_of(path: Path) -> Path:
    return path.with_suffix(".gate")


def _stuck(path: Path) -> Path:
    return path.with_suffix(".stuck")


def _slow_disk(path: Path) -> None:
    fsync: Callable[[int], None] = os.fsync
    passed = 0

    def is_due() -> bool:
        nonlocal passed
        try:
            spared, _, thread = path.read_text().partition(" ")
        except FileNotFoundError:
            return False
        if thread not in ("", threading.current_thread().name):
            return False
        passed += 1
        return passed > int(spared)

    def wait_and_sync(fd: int) -> None:
        if is_due():
            _stuck(path).touch()
            while path.exists():
                time.sleep(_POLL_S)
        fsync(fd)

    os.fsync = wait_and_sync


def _other_nodes(module: str, path: Path) -> None:
    """For the nodes that it starts, which look for modules where they are told to alone."""
    os.environ |= {POISON_FILE: str(path), "PYTHONPATH": str(Path(__file__).parents[2])}
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
    elif kind == "slow-steps":
        _other_nodes("slow_node", Path(file))
    else:
        _failing_thread(kind, Path(file))
    sys.argv[1:] = arguments
    main()
