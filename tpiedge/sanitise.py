"""Text of strangers - other machines, the files of a model - made safe to log, to pass on and to show on a terminal;
and warnings that they cause: who repeats one does not fill the disk that the log is on.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

LINES: Final = 5
WINDOW_S: Final = 60.0


def sanitised(text: str, kept: str = "") -> str:
    """`text` with blanks for control characters, which could do anything to a terminal; those in `kept` stay."""
    return "".join(one if one.isprintable() or one in kept else " " for one in text)


def sanitised_line(text: object, limit: int = 1000) -> str:
    """`text` as one printable line without quotes. The usual limit is well below what a message may carry, with room
    for the words around it."""
    line = " ".join(str(text).split())
    line = "".join(mark if mark.isprintable() else ascii(mark)[1:-1] for mark in line[: 2 * limit])
    return line if len(line) <= limit else line[: limit - 3] + "..."


def sanitised_name(name: str) -> str:
    """What a stranger calls itself: short, in ASCII, never empty."""
    clean = "".join(one for one in name if one.isprintable() and one.isascii())
    return clean[:64].strip() or "unnamed"


def quote(value: object, limit: int = 60) -> str:
    """`value` as Python writes it, in ASCII and cut to `limit` characters."""
    text = ascii(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."


class RateLimitedLog:
    """Writes to `log` at most LINES warnings within WINDOW_S; the next one tells how many were left out. For any
    thread. `now` gives seconds that never run backwards."""

    def __init__(self, log: logging.Logger, now: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._now = now
        self._lock = threading.Lock()
        self._since = now()
        self._lines = 0

    def warning(self, message: str, *arguments: object) -> None:
        """As Logger.warning."""
        with self._lock:
            now, left_out = self._now(), 0
            if now - self._since >= WINDOW_S:
                left_out, self._since, self._lines = max(0, self._lines - LINES), now, 0
            self._lines += 1
            if self._lines > LINES:
                return
        if left_out:
            message, arguments = f"{message} (and %d times something like it)", (*arguments, left_out)
        self._log.warning(message, *arguments)
