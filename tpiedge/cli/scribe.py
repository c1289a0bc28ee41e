"""What a service says on standard error beside its work, written by a thread of its own.

A terminal that is held (Ctrl-S), or a pager that nobody turns, holds up whoever writes to it. A master or an agent that
waits there is silent, and the others take it for lost.
"""

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
    """Not by `sys.stderr`, whose lock a thread that waits would hold at the end of the process."""
    data = text.encode("utf-8", "backslashreplace")
    while data:
        data = data[os.write(2, data) :]


class Scribe(logging.Handler):
    """For any thread; nothing but `finish` waits. What more than _MOST_WAITING lines wait for is left out, and counted.
    A line that cannot be written (nobody reads, a full disk) is lost, and no other."""

    def __init__(self, write: Callable[[str], None] = _write) -> None:
        super().__init__()
        self._write = write
        # No Queue: a signal that raises in the main thread may leave its lock taken for ever.
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._left_out = 0
        self._thread = threading.Thread(target=self._run, name="tpiedge-scribe", daemon=True)
        self._thread.start()

    def say(self, line: str) -> None:
        """Write a line soon."""
        if self._lines.qsize() < _MOST_WAITING:
            self._lines.put(line)
        else:
            self._left_out += 1

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except Exception:  # as of any handler: a record that is wrong does not end the thread that logs it
            self.handleError(record)
        else:
            self.say(line)

    def finish(self, limit_s: float = 1.0) -> None:
        """Wait until what was said is written, or the time is up. Nothing may be said afterwards."""
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
def log_by_scribe() -> Iterator[Scribe]:
    """Log records go by a scribe, as long as the block takes."""
    root = logging.getLogger()
    before = root.handlers
    usual = before[0] if before else logging.lastResort
    scribe = Scribe()
    if usual is not None:
        scribe.setLevel(usual.level)
        scribe.setFormatter(usual.formatter)
    root.handlers = [scribe]
    try:
        yield scribe
    finally:
        root.handlers = before
        scribe.finish()


@contextlib.contextmanager
def serving_until_stopped(next_time: str) -> Iterator[Scribe]:
    """A service: one that a polite kill stops has done its work. Ctrl-C says what is so the `next_time`. What is logged
    meanwhile holds no thread up; nor does what is said by the scribe."""
    try:
        with interrupt_says(f"stopped; {next_time}"), log_by_scribe() as scribe:
            yield scribe
    except Terminated:
        pass
