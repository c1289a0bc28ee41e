"""Whether the running requests make progress: a machine without sockets, threads or clock.

Laws:
1. Progress is a token, scores or the end of a running request, a node that is further in its step, blocks or weights,
   and a change in rank 0's counters. Rank 0 is stuck once none of the running requests made progress for the limit.
   A request that begins beside others is no progress: rank 0 has only been sent it.
2. A chunk of a long prompt changes nothing but rank 0's counters, so rank 0 is asked for them once the last progress
   gets old.
3. Counters of memory and of received messages do not count: anyone who reaches rank 0's port could change them, and so
   keep a stuck request alive for ever.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from tpiedge.master.membership import Member
from tpiedge.wire.control import Stats

#: The last progress is old after this part of the limit.
OLD: Final = 0.25
#: A node that waits gives up before the limit, and progress is heard of later than it is made.
STALLED: Final = 0.5

#: Counters of memory and of received messages.
_NO_PROGRESS: Final = dict.fromkeys(
    ("peak_rss_bytes", "kv_bytes", "kv_pages", "kv_pages_used", "bytes_received", "dropped", "refused"), 0
)


class RequestWatch:
    """Watches all running requests together. Times are seconds on the caller's clock."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._running: set[str] = set()
        self._progress_at = 0.0  # while a request runs
        #: The furthest that each node has said it is: what goes back and forth is no progress.
        self._furthest: dict[int, tuple[tuple[int, int], int]] = {}
        self._measured: Stats | None = None  # since the last progress of another kind

    def begin(self, request: str, now: float) -> None:
        """Rank 0 gets the request."""
        if not self._running:
            self.advance(now)
        self._running.add(request)

    @property
    def busy(self) -> bool:
        """Whether any request runs."""
        return bool(self._running)

    def watches(self, request: str) -> bool:
        """Whether the request runs."""
        return request in self._running

    def advance(self, now: float) -> None:
        """A running request made progress, for example by a token."""
        self._progress_at, self._measured = now, None

    def end(self, request: str, now: float) -> None:
        """Rank 0 has ended the request."""
        self._running.remove(request)
        self.advance(now)

    def look(self, members: Sequence[Member], now: float) -> None:
        """Takes the nodes' progress from their heartbeats."""
        for member in members:
            at, read = self._furthest.get(member.rank, ((-1, -1), -1))
            reached = (max(at, (member.step, member.block)), max(read, member.bytes_read))
            if reached != (at, read):
                self._furthest[member.rank] = reached
                self.advance(now)

    def measured(self, stats: Stats, now: float) -> None:
        """Takes rank 0's counters."""
        found = replace(stats, **_NO_PROGRESS)
        if self._measured not in (None, found):
            self.advance(now)
        self._measured = found

    def old(self, now: float) -> bool:
        """Whether rank 0 is to be asked for its counters."""
        return self._quiet_s(now) > OLD * self._limit_s

    def stalled(self, now: float) -> bool:
        """Whether there has been no progress for so long that a node which waits for it may give up."""
        return self._quiet_s(now) > STALLED * self._limit_s

    def stuck_s(self, now: float) -> float | None:
        """For how long there was no progress, if that is too long; else None."""
        quiet_s = self._quiet_s(now)
        return quiet_s if quiet_s > self._limit_s else None

    def _quiet_s(self, now: float) -> float:
        return now - self._progress_at if self._running else 0.0
