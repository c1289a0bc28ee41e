"""Clocks are constructor arguments, so that tests can set the time."""

import time
from typing import Protocol


class Clock(Protocol):
    """A monotonic clock in seconds, with an arbitrary origin."""

    def now(self) -> float: ...


class MonotonicClock:
    def now(self) -> float:
        return time.monotonic()
