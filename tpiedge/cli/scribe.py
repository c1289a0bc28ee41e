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

from tpiedge.cli.interrupts import Terminated, interrupt_says
from tpiedge.units import counted

_MOST_WAITING: Final = 1000
_FINISH_S: Final = 1.0
_STANDARD_ERROR: Final = 2


def _write(text: str) -> None:
    """Not by `sys.stderr`, whose lock a thread that waits would hold at the end of the process."""
    data = text.encode("utf-8", "backslashreplace")
    while data:
        data = data[os.write(_STANDARD_ERROR, data) :]


class Scribe(logging.Handler):
    """For any thread; nothing but `finish` waits. What more than _MOST_WAITING lines wait for is left out, and counted
    where it is missing. A line that cannot be written (nobody reads, a full disk) is lost, and no other."""

    def __init__(self, write: Callable[[str], None] = _write) -> None:
        super().__init__()
        self._write = write
        # No Queue: a signal that raises in the main thread may leave its lock taken for ever.
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._left_out = 0
        self._counting = threading.Lock()  # guards `_left_out`, and what is put where
        self._thread = threading.Thread(target=self._run, name="tpiedge-scribe", daemon=True)
        self._thread.start()

    def say(self, line: str) -> None:
        """Write a line soon."""
        with self._counting:
            if self._lines.qsize() >= _MOST_WAITING:
                self._left_out += 1
                return
            self._say_what_is_missing()
            self._lines.put(line)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except Exception:  # as of any handler: a record that is wrong does not end the thread that logs it
            self.handleError(record)
        else:
            self.say(line)

    def finish(self, limit_s: float = _FINISH_S) -> None:
        """Wait until what was said is written, or the time is up. Nothing may be said afterwards."""
        with self._counting:
            self._say_what_is_missing()
            self._lines.put(None)
        self._thread.join(limit_s)

    def _say_what_is_missing(self) -> None:
        if self._left_out:
            self._lines.put(f"({counted(self._left_out, 'line')} left out)")
            self._left_out = 0

    def _run(self) -> None:
        while (line := self._lines.get()) is not None:
            with contextlib.suppress(OSError):
                self._write(f"{line}\n")
            with self._counting:
                if self._lines.empty():
                    self._say_what_is_missing()


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
