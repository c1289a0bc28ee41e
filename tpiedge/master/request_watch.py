"""Whether the running requests make progress: a machine without sockets, threads or clock.

Progress is a token, scores or the end of a running request, a node that is further in its step, blocks or weights than
it ever said, and a change in rank 0's counters: a chunk of a long prompt changes nothing else. Rank 0 is stuck once
none of the running requests made progress for the limit. Counters of memory and of received messages do not count:
anyone who reaches rank 0's port could change them, and so keep a stuck request alive for ever.
"""

from collections.abc import Sequence
from typing import Final

from msgspec import structs

from tpiedge.master.epoch import Member
from tpiedge.wire.control import Stats

_NO_PROGRESS: Final = dict.fromkeys(
    ("peak_rss_bytes", "kv_bytes", "kv_pages", "kv_pages_used", "bytes_received", "dropped", "refused"), 0
)


class RequestWatch:
    """Watches all running requests together. Times are seconds on the caller's clock."""

    def __init__(self, limit_s: float) -> None:
        self.running: set[str] = set()
        self._limit_s = limit_s
        self._progress_at = 0.0  # while a request runs
        self._furthest: dict[int, tuple[tuple[int, int], int]] = {}
        self._measured: Stats | None = None  # since the last progress of another kind

    def begin(self, request: str, now: float) -> None:
        """Rank 0 gets the request: no progress where others run, for rank 0 has only been sent it."""
        if not self.running:
            self.advance(now)
        self.running.add(request)

    def advance(self, now: float) -> None:
        """A running request made progress, for example by a token."""
        self._progress_at, self._measured = now, None

    def end(self, request: str, now: float) -> None:
        self.running.remove(request)
        self.advance(now)

    def look(self, members: Sequence[Member], now: float) -> None:
        for member in members:
            at, read = self._furthest.get(member.rank, ((-1, -1), -1))
            reached = (max(at, (member.step, member.block)), max(read, member.bytes_read))
            if reached != (at, read):
                self._furthest[member.rank] = reached
                self.advance(now)

    def measured(self, stats: Stats, now: float) -> None:
        found = structs.replace(stats, **_NO_PROGRESS)
        if self._measured not in (None, found):
            self.advance(now)
        self._measured = found

    def stalled(self, now: float) -> bool:
        """Whether there has been no progress for half the limit, so that a node which waits may have given up."""
        return self._quiet_s(now) > 0.5 * self._limit_s

    def stuck_s(self, now: float) -> float | None:
        """For how long there was no progress, if that is too long; else None."""
        quiet_s = self._quiet_s(now)
        return quiet_s if quiet_s > self._limit_s else None

    def _quiet_s(self, now: float) -> float:
        return now - self._progress_at if self.running else 0.0
