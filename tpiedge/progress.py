"""Progress of long work: a live line with rate and time left on a terminal, a plain line now and then otherwise.

Everything goes to standard error, so that standard output carries results alone.
"""

import sys
from collections.abc import Callable

from tpiedge.clock import Clock, MonotonicClock
from tpiedge.units import format_bytes, format_seconds

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
        self._started = self._clock.now()
        self._line = _StatusLine(self._clock)

    def __call__(self, done: int, total: int) -> None:
        if self._line.is_due():
            self._line.show(self._told(done, total, self._clock.now() - self._started))

    def finish(self, done: int) -> None:
        """Say what was done, if anything was."""
        elapsed = self._clock.now() - self._started
        self._line.wipe()
        if done:
            rate = format_bytes(done / max(elapsed, 1e-3))
            say(f"{self._label}: {format_bytes(done)} in {format_seconds(elapsed)} ({rate}/s)")

    def _told(self, done: int, total: int, elapsed: float) -> str:
        rate = done / max(elapsed, 1e-3)
        share = done / max(total, 1)
        told = f"{self._label}: {100 * share:.0f}% of {format_bytes(total)}, {format_bytes(rate)}/s"
        if elapsed < _CERTAIN_S or share < _CERTAIN_SHARE:
            return told
        return f"{told}, {format_seconds((total - done) / rate)} left"


class StepProgress:
    """Steps of known number, each of which has a name: `begin(name)` for each, then `finish()`."""

    def __init__(self, label: str, steps: int, clock: Clock | None = None) -> None:
        self._label = label
        self._steps = steps
        self._begun = 0
        self._line = _StatusLine(clock or MonotonicClock())

    def begin(self, name: str) -> None:
        """Tell of the step that begins. On a terminal each is told of, for it may take long."""
        self._begun += 1
        if self._line.live or self._line.is_due():
            self._line.show(f"{self._label} {self._begun} of {self._steps}: {name}")

    def finish(self) -> None:
        """Clear the terminal's line."""
        self._line.wipe()


class WaitProgress:
    """A wait of unknown length: `tell(what)` again and again, then `finish()`."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or MonotonicClock()
        self._started = self._clock.now()
        self._line = _StatusLine(self._clock)

    def tell(self, what: str) -> None:
        """Say what is waited for now, and since when."""
        if self._line.is_due():
            self._line.show(f"{what} ({format_seconds(self._clock.now() - self._started)})")

    def finish(self) -> None:
        """Clear the terminal's line."""
        self._line.wipe()


class LiveProgress:
    """Work of which others say how far it is: `tell(how_far)` again and again, then `finish()`."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._line = _StatusLine(clock or MonotonicClock())

    def tell(self, how_far: str) -> None:
        """Say it."""
        if self._line.is_due():
            self._line.show(how_far)

    def finish(self) -> None:
        """Clear the terminal's line. Idempotent."""
        self._line.wipe()


class _StatusLine:
    """A line that is replaced by the next one where `live`, on a terminal; elsewhere every one stays."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._shown = clock.now()
        self.live = sys.stderr.isatty()
        self._last = ""

    def is_due(self) -> bool:
        """Whether the line before has been there for long enough."""
        return self._clock.now() - self._shown >= (_LIVE_S if self.live else _PLAIN_S)

    def show(self, line: str) -> None:
        self._shown = self._clock.now()
        if self.live:
            _write("\r" + line.ljust(len(self._last)))
            self._last = line
        else:
            say(line)

    def wipe(self) -> None:
        if self._last:
            _write("\r" + " " * len(self._last) + "\r")
            self._last = ""


def _write(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
