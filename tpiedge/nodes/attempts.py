"""When to try again: a machine without threads or clock.

Laws:
1. After a failure the next attempt waits, the longer the more failures there were in a row.
2. After HOPELESS of them in a row nobody is to wait for the next attempt.
"""

from typing import Final

__all__ = ["BACKOFF_S", "HOPELESS", "Attempts"]

BACKOFF_S: Final = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0)
HOPELESS: Final = 4


class Attempts:
    """Times are seconds on the caller's clock."""

    def __init__(self) -> None:
        self.failures = 0
        #: Failures in a row before anything was ready.
        self.false_starts = 0
        #: Before that no attempt is to be made.
        self.due = 0.0

    @property
    def hopeless(self) -> bool:
        return self.failures >= HOPELESS

    def failed(self, now: float) -> None:
        """The last attempt came to nothing."""
        self.due = now + BACKOFF_S[min(self.failures, len(BACKOFF_S) - 1)]
        self.failures += 1
        self.false_starts += 1

    def started(self) -> None:
        """What was attempted is ready. Whether it lasts remains to be seen."""
        self.false_starts = 0

    def succeeded(self) -> None:
        """The failures before do not count any more."""
        self.failures = 0
