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

__all__ = ["Scribe", "log_by_scribe"]

_MOST_WAITING: Final = 1000
_FINISH_S: Final = 1.0
_STANDARD_ERROR: Final = 2


def _write(text: str) -> None:
    """Not by `sys.stderr`, whose lock a thread that waits would hold at the end of the process."""
    data = text.encode("utf-8", "backslashreplace")
    while data:
        data = data[os.write(_STANDARD_ERROR, data) :]


class Scribe(logging.Handler):
    """For any thread; nothing but `finish` waits. What more than _MOST_WAITING lines wait for is left out, and counted.
    Where nobody can read any more, nothing is written."""

    def __init__(self, write: Callable[[str], None] = _write) -> None:
        super().__init__()
        self._write = write
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._left_out = 0
        self._thread = threading.Thread(target=self._run, name="tpiedge-scribe", daemon=True)
        self._thread.start()

    def say(self, line: str) -> None:
        """Write a line soon."""
        if self._lines.qsize() >= _MOST_WAITING:
            self._left_out += 1
            return
        self._lines.put(line)

    def emit(self, record: logging.LogRecord) -> None:
        self.say(self.format(record))

    def finish(self, limit_s: float = _FINISH_S) -> None:
        """Wait until what was said is written, or the time is up. Nothing may be said afterwards."""
        self._lines.put(None)
        self._thread.join(limit_s)

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while (line := self._lines.get()) is not None:
                left_out, self._left_out = self._left_out, 0
                more = f"({left_out} lines were left out)\n" if left_out else ""
                self._write(f"{line}\n{more}")
            return
        while self._lines.get() is not None:
            pass


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
