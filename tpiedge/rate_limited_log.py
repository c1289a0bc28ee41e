"""Warnings about what others do wrong: who repeats it does not fill the disk that the log is on."""

import logging
import threading
from typing import Final

from tpiedge.clock import Clock, MonotonicClock

LINES: Final = 5
WINDOW_S: Final = 60.0


class RateLimitedLog:
    """Writes to `log` at most LINES warnings within WINDOW_S; the next one tells how many were left out. For any
    thread."""

    def __init__(self, log: logging.Logger, clock: Clock | None = None) -> None:
        self._log = log
        self._clock = clock or MonotonicClock()
        self._lock = threading.Lock()
        self._since = self._clock.now()
        self._lines = 0
        self._left_out = 0

    def warning(self, message: str, *arguments: object) -> None:
        """As Logger.warning."""
        with self._lock:
            now = self._clock.now()
            if now - self._since >= WINDOW_S:
                self._since, self._lines = now, 0
            if self._lines >= LINES:
                self._left_out += 1
                return
            self._lines += 1
            left_out, self._left_out = self._left_out, 0
        if left_out:
            message, arguments = f"{message} (and %d times something like it)", (*arguments, left_out)
        self._log.warning(message, *arguments)
