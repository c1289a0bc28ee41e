"""Shows progress on standard error."""

import sys
from collections.abc import Callable

from tpiedge.clock import Clock, MonotonicClock
from tpiedge.units import format_bytes, format_seconds

ProgressCallback = Callable[[int, int], None]
"""Takes (bytes done, bytes in total)."""
Say = Callable[[str], object]
"""Takes a line for people."""


def say(line: str) -> None:
    _write(line + "\n")


class LiveLine:
    """A line of progress, updated in place on a terminal, else printed every 5 s. Call `finish` last."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or MonotonicClock()
        self._shown = self._clock.now()
        self._live = sys.stderr.isatty()
        self._last = ""

    def update(self, how_far: str) -> None:
        now = self._clock.now()
        if now - self._shown < (0.1 if self._live else 5.0):
            return
        self._shown = now
        if self._live:
            _write("\r" + how_far.ljust(len(self._last)))
            self._last = how_far
        else:
            say(how_far)

    def finish(self) -> None:
        """Clears the terminal's line. Idempotent."""
        if self._last:
            _write("\r" + " " * len(self._last) + "\r")
            self._last = ""


class ByteProgress:
    """Shows progress when called with (bytes done, bytes in total). Call `finish` last."""

    def __init__(self, label: str, clock: Clock | None = None) -> None:
        self._label = label
        self._clock = clock or MonotonicClock()
        self._started = self._clock.now()
        self._line = LiveLine(self._clock)

    def __call__(self, done: int, total: int) -> None:
        elapsed, share = self._clock.now() - self._started, done / max(total, 1)
        rate = done / max(elapsed, 1e-3)
        told = f"{self._label}: {100 * share:.0f}% of {format_bytes(total)}, {format_bytes(rate)}/s"
        if elapsed >= 3.0 and share >= 0.05:  # a slow start (cold disk) predicts nothing
            told += f", {format_seconds((total - done) / rate)} left"
        self._line.update(told)

    def finish(self, done: int) -> None:
        elapsed = self._clock.now() - self._started
        self._line.finish()
        if done:
            rate = format_bytes(done / max(elapsed, 1e-3))
            say(f"{self._label}: {format_bytes(done)} in {format_seconds(elapsed)} ({rate}/s)")


def _write(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
