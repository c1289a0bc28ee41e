"""Progress of long work: a live line with rate and time left on a terminal, a plain line now and then otherwise.

Everything goes to standard error, so that standard output carries results alone.
"""

import sys
import time

import click

from tpiedge.units import format_bytes, format_seconds

__all__ = ["ByteProgress"]

_LIVE_S = 0.1
_PLAIN_S = 5.0


class ByteProgress:
    """Bytes done of a total. Use as a callback `progress(done, total)`, then `finish()`."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._started = self._shown = time.monotonic()
        self._live = sys.stderr.isatty()
        self._last = ""

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._shown >= (_LIVE_S if self._live else _PLAIN_S):
            self._shown = now
            self._write(self._line(done, total, now - self._started))

    def finish(self, done: int) -> None:
        """Say what was done, if anything was."""
        elapsed = time.monotonic() - self._started
        if self._live and self._last:
            click.echo("\r" + " " * len(self._last) + "\r", nl=False, err=True)
        if done:
            rate = format_bytes(done / max(elapsed, 1e-3))
            click.echo(
                f"{self._label}: {format_bytes(done)} in {format_seconds(elapsed)} ({rate}/s)", err=True
            )

    def _line(self, done: int, total: int, elapsed: float) -> str:
        rate = done / max(elapsed, 1e-3)
        left = format_seconds((total - done) / rate) if rate > 0 else "unknown"
        percent = 100 * done / max(total, 1)
        return f"{self._label}: {percent:.0f}% of {format_bytes(total)}, {format_bytes(rate)}/s, {left} left"

    def _write(self, line: str) -> None:
        if self._live:
            click.echo("\r" + line.ljust(len(self._last)), nl=False, err=True)
            self._last = line
        else:
            click.echo(line, err=True)
