"""Clocks are constructor arguments, so that tests move time by hand."""

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds that never run backwards, from an arbitrary origin."""

    def now(self) -> float: ...


class MonotonicClock:
    def now(self) -> float:
        return time.monotonic()
