"""Makes foreign text safe for logs and terminals. Limits the number of warnings."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

LINES: Final = 5
WINDOW_S: Final = 60.0


def sanitised(text: str, kept: str = "") -> str:
    """Replaces unprintable characters by blanks, except the characters in `kept`."""
    return "".join(one if one.isprintable() or one in kept else " " for one in text)


def sanitised_line(text: object, limit: int = 1000) -> str:
    """Returns `text` as one printable line of at most `limit` characters."""
    line = " ".join(str(text).split())
    line = "".join(mark if mark.isprintable() else ascii(mark)[1:-1] for mark in line[: 2 * limit])
    return line if len(line) <= limit else line[: limit - 3] + "..."


def sanitised_name(name: str) -> str:
    """Cuts a peer's own name to 64 printable ASCII characters. Returns "unnamed" if none are left."""
    clean = "".join(one for one in name if one.isprintable() and one.isascii())
    return clean[:64].strip() or "unnamed"


def quote(value: object, limit: int = 60) -> str:
    """Returns `ascii(value)`, cut to `limit` characters."""
    text = ascii(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."


class RateLimitedLog:
    """Logs at most LINES warnings in WINDOW_S seconds, and counts the others. Thread-safe."""

    def __init__(self, log: logging.Logger, now: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._now = now
        self._lock = threading.Lock()
        self._since = now()
        self._lines = 0

    def warning(self, message: str, *arguments: object) -> None:
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
