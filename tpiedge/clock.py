"""Time as a constructor argument, so that tests move it by hand."""

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds from an arbitrary origin that never run backwards."""

    def now(self) -> float: ...


class MonotonicClock:
    def now(self) -> float:
        return time.monotonic()
