"""`tpiedge` with a fault that begins while it runs: `python -m tests.process.faulty FAULT FILE ARGUMENTS...`.

`held`: while FILE is there, its nodes begin no step, but are heard (`held_node.py`); then FILE.stuck is there.
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
from tpiedge.launch import slot
from tpiedge.supervision import Supervisor
from tpiedge.transport.admission import ZmqContext
from tpiedge.transport.zeromq_endpoint import ZmqEndpoint

#: For the nodes: the variable with FILE.
NODE_FAULT_FILE = "TPIEDGE_NODE_FAULT_FILE"
#: Ten times what the FFN of the demo model's layers takes on a machine that does ten other things, and more on others.
#: An answer of 900 tokens takes longer than anything that a test waits for meanwhile.
SLOWER_S = 0.05
_POLL_S = 0.01
#: Generous: the machine may be doing ten other things.
_MET_S = 90.0


class Fault:
    """A fault of a process that is started by `program`."""

    def __init__(self, kind: str, path: Path) -> None:
        self.program = (sys.executable, "-m", "tests.process.faulty", kind, path)
        self._path = path

    def begin(self) -> None:
        _stuck(self._path).unlink(missing_ok=True)
        self._path.touch()

    def end(self) -> None:
        """Idempotent."""
        self._path.unlink(missing_ok=True)

    @property
    def met(self) -> bool:
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


def _stuck(path: Path) -> Path:
    return path.with_suffix(".stuck")


def wait_where_held(path: Path) -> None:
    if path.exists():
        _stuck(path).touch()
        while path.exists():
            time.sleep(_POLL_S)


def _other_nodes(module: str, path: Path) -> None:
    """Passes the fault on to nodes, which import modules only from the paths that they get."""
    os.environ |= {NODE_FAULT_FILE: str(path), "PYTHONPATH": str(Path(__file__).parents[2])}
    slot.FORK_SERVER_MODULE = f"tests.process.{module}"


def _failing_thread(name: str, path: Path) -> None:
    """Wraps what the threads of a master call again and again, or when somebody comes."""

    def failing(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: object, **options: object) -> object:
            if threading.current_thread().name == name and path.exists():
                raise ZeroDivisionError("on purpose")
            return function(*arguments, **options)

        return call

    ZmqEndpoint.recv_frame = failing(ZmqEndpoint.recv_frame)
    ZmqContext._answer = failing(ZmqContext._answer)
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
    if kind == "held":
        _other_nodes("held_node", Path(file))
    elif kind == "slow":
        _other_nodes("slow_node", Path(file))
    else:
        _failing_thread(kind, Path(file))
    sys.argv[1:] = arguments
    main()
