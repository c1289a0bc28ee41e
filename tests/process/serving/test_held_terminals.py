"""Terminals that are held (Ctrl-S), and pagers that nobody turns: who has something to say there goes on working."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.process.serving.conftest import SLOW
from tests.process.serving.serving import Serving

_PIECE = 1 << 16


class Terminal:
    """Where a process writes its log. It shows what comes, but for the time that it is held."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self._pipe = os.open(path, os.O_RDWR)
        self._writing = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        self.shown = b""
        self._moves, self._closing = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._show, name=f"terminal {path.name}")
        self._moves.set()
        self._thread.start()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Nothing more fits into it for that time."""
        self._moves.clear()
        os.write(self._writing, b"\n")  # the last that is shown
        with contextlib.suppress(BlockingIOError):
            for piece in (_PIECE, 1):
                with contextlib.suppress(BlockingIOError):
                    while True:
                        os.write(self._writing, b"\n" * piece)
        try:
            yield
        finally:
            self._moves.set()

    def close(self) -> None:
        """Once nobody writes to it."""
        self._closing.set()
        self._moves.set()
        os.write(self._writing, b"\n")
        self._thread.join()
        os.close(self._pipe)
        os.close(self._writing)

    def _show(self) -> None:
        while not self._closing.is_set():
            self.shown += os.read(self._pipe, _PIECE)
            self._moves.wait()


class Watched(Serving):
    """A cluster whose master and one of whose workers write to terminals."""

    def __init__(self, folder: Path) -> None:
        # All are so slow, as they say, that one more machine is worth having.
        super().__init__(folder, "--min-workers", 1)
        self.masters, self.anns = (Terminal(folder / f"{name}.log") for name in ("master", "ann"))

    def logs(self) -> str:
        return f"{self.masters.shown.decode()}\n--- ann\n{self.anns.shown.decode()}"

    def close(self) -> None:
        try:
            super().close()
        finally:
            self.masters.close()
            self.anns.close()


def test_masters_and_workers_go_on_beside_terminals_that_are_held(
    tmp_path: Path, exact: Callable[[Serving], None]
) -> None:
    """A worker also joins beside one."""
    with contextlib.closing(Watched(tmp_path)) as watched:
        watched.start_master()
        for name in ("ann", "bob"):
            watched.start_worker(name, bytes_per_s=SLOW)
        watched.wait_ready(3)
        with watched.anns.held():
            os.killpg(watched.workers["ann"].process.pid, signal.SIGKILL)
            watched.wait_ready(2)
            watched.start_worker("ann", bytes_per_s=SLOW)
            watched.wait_ready(3)
            agent = watched.workers["ann"].agent
            with watched.masters.held():
                os.killpg(watched.workers["bob"].process.pid, signal.SIGKILL)
                watched.wait_ready(2)
                exact(watched)
            # What ann's agent says of this finds no room either.
            watched.master.end(signal.SIGKILL)
            watched.start_master()
            watched.wait_ready(2)
            exact(watched)
            assert agent.is_running()
