"""When to try again to start a session: a machine without threads or clock.

Laws:
1. After a failure the next attempt waits, longer with each failure in a row (BACKOFF_S), until a machine has come that
   was not there.
2. After HOPELESS failures in a row nothing is about to serve: requests wait for the next attempt as long as they wait
   for machines (`reconciler.py`).
3. So it is after FUTILE attempts in a row that never served, for whatever reason, machines that come and go included:
   otherwise a request could wait for ever.
4. An attempt that is `put off` waits in the same way, and counts as no failure.
5. Whoever looks after the cluster may end such a wait (`hurry`); the next one is as long as it would have been.
"""

import math
from typing import Final

BACKOFF_S: Final = (0.0, 1.0, 2.0, 5.0, 10.0)
HOPELESS: Final = 4
FUTILE: Final = 30


class Retries:
    """Counts attempts and their failures. Times are seconds on the caller's clock."""

    def __init__(self) -> None:
        self.failures = 0
        #: Failures in a row before anything was ready.
        self.false_starts = 0
        #: No attempt with the same machines is made before this time.
        self.due = 0.0
        self._failed = -math.inf  # when the last attempt did
        self._begun = 0  # attempts since requests could last be served

    @property
    def hopeless(self) -> bool:
        """Whether the next attempt is not likely to serve."""
        return self.failures >= HOPELESS or self._begun > FUTILE

    def may_try(self, now: float, newest: float) -> bool:
        """Whether an attempt may be made. `newest`: since when the machine is here that came last."""
        return now >= self.due or newest > self._failed

    def begun(self) -> None:
        """An attempt begins; it replaces the last one."""
        self._begun += 1

    def failed(self, now: float) -> None:
        """The last attempt failed."""
        self._failed = now
        self.due = now + BACKOFF_S[min(self.failures, len(BACKOFF_S) - 1)]
        self.failures += 1
        self.false_starts += 1

    def hurry(self, now: float) -> None:
        """The next attempt waits no longer."""
        self.due = min(self.due, now)

    def put_off(self, now: float, until: float) -> None:
        """The next attempt waits until then."""
        self._failed, self.due = now, until

    def started(self) -> None:
        """The session is ready; the failures before still count until it has `succeeded`."""
        self.false_starts = 0

    def served(self) -> None:
        """Waiting requests can be served now."""
        self._begun = 0

    def succeeded(self) -> None:
        """The session has proven itself: earlier failures no longer count."""
        self.failures = 0
