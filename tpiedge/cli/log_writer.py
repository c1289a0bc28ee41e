"""Writes a service's log in a thread, because writing to a stopped terminal (Ctrl-S) blocks."""

import contextlib
import logging
import os
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Final

from tpiedge.cli.entry import Terminated, interrupt_says
from tpiedge.units import counted

_MOST_WAITING: Final = 1000


def _write(text: str) -> None:
    """Writes without `sys.stderr`, whose lock a blocked thread may hold."""
    data = text.encode("utf-8", "backslashreplace")
    while data:
        data = data[os.write(2, data) :]


class LogWriter(logging.Handler):
    """A log handler that blocks only in `finish`. Drops lines beyond _MOST_WAITING."""

    def __init__(self, write: Callable[[str], None] = _write) -> None:
        super().__init__()
        self._write = write
        # No Queue: a signal that raises in the main thread may leave its lock taken.
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._left_out = 0
        self._thread = threading.Thread(target=self._run, name="tpiedge-log", daemon=True)
        self._thread.start()

    def say(self, line: str) -> None:
        if self._lines.qsize() < _MOST_WAITING:
            self._lines.put(line)
        else:
            self._left_out += 1

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except Exception:  # like any handler: a bad record does not end its thread
            self.handleError(record)
        else:
            self.say(line)

    def finish(self, limit_s: float = 1.0) -> None:
        """Waits until all lines are written, at most `limit_s`. Call it last."""
        self._lines.put(None)
        self._thread.join(limit_s)

    def _run(self) -> None:
        while (line := self._lines.get()) is not None:
            with contextlib.suppress(OSError):
                self._write(f"{line}\n")
                if self._left_out and self._lines.empty():
                    left_out, self._left_out = self._left_out, 0
                    self._write(f"({counted(left_out, 'line')} left out)\n")


@contextlib.contextmanager
def log_in_thread() -> Iterator[LogWriter]:
    root = logging.getLogger()
    before = root.handlers
    usual = before[0] if before else logging.lastResort
    writer = LogWriter()
    if usual is not None:
        writer.setLevel(usual.level)
        writer.setFormatter(usual.formatter)
    root.handlers = [writer]
    try:
        yield writer
    finally:
        root.handlers = before
        writer.finish()


@contextlib.contextmanager
def serving_until_stopped(next_time: str) -> Iterator[LogWriter]:
    """Yields a service's log. SIGTERM ends the block with success; Ctrl-C prints `next_time`."""
    stopped = interrupt_says(f"stopped; {next_time}")
    with contextlib.suppress(Terminated), stopped, log_in_thread() as writer:
        yield writer
