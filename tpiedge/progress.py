"""Progress of long work: a live line with rate and time left on a terminal, a plain line now and then otherwise.

Everything goes to standard error, so that standard output carries results alone.
"""

import sys
from collections.abc import Callable

from tpiedge.clock import Clock, MonotonicClock
from tpiedge.units import format_bytes, format_seconds

__all__ = ["ByteProgress", "ProgressCallback", "Say", "say"]

_LIVE_S = 0.1
_PLAIN_S = 5.0
# What was slow at first, a start or a cold disk, says nothing of the rest.
_CERTAIN_S = 3.0
_CERTAIN_SHARE = 0.05

ProgressCallback = Callable[[int, int], None]
"""Takes (bytes done, bytes in all), such as ByteProgress."""
Say = Callable[[str], object]
"""Takes a line for people, such as `say`."""


def say(line: str) -> None:
    """Write a line for people to standard error."""
    _write(line + "\n")


class ByteProgress:
    """Bytes done of a total. Use as a callback `progress(done, total)`, then `finish()`."""

    def __init__(self, label: str, clock: Clock | None = None) -> None:
        self._label = label
        self._clock = clock or MonotonicClock()
        self._started = self._shown = self._clock.now()
        self._live = sys.stderr.isatty()
        self._last = ""

    def __call__(self, done: int, total: int) -> None:
        now = self._clock.now()
        if now - self._shown >= (_LIVE_S if self._live else _PLAIN_S):
            self._shown = now
            self._write(self._line(done, total, now - self._started))

    def finish(self, done: int) -> None:
        """Say what was done, if anything was."""
        elapsed = self._clock.now() - self._started
        if self._live and self._last:
            _write("\r" + " " * len(self._last) + "\r")
        if done:
            rate = format_bytes(done / max(elapsed, 1e-3))
            say(f"{self._label}: {format_bytes(done)} in {format_seconds(elapsed)} ({rate}/s)")

    def _line(self, done: int, total: int, elapsed: float) -> str:
        rate = done / max(elapsed, 1e-3)
        share = done / max(total, 1)
        told = f"{self._label}: {100 * share:.0f}% of {format_bytes(total)}, {format_bytes(rate)}/s"
        if elapsed < _CERTAIN_S or share < _CERTAIN_SHARE:
            return told
        return f"{told}, {format_seconds((total - done) / rate)} left"

    def _write(self, line: str) -> None:
        if self._live:
            _write("\r" + line.ljust(len(self._last)))
            self._last = line
        else:
            say(line)


def _write(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
