"""Whether the request that runs gets on: a machine without sockets, threads or clock.

Laws:
1. News is a token or scores, a node that is further in its step, its blocks or its weights, and work that rank 0 has
   measured anew. Between its start and its end a request is stuck once there was no news for the limit.
2. A chunk of a long prompt changes nothing but what rank 0 measures. So it is asked for that once the news gets old.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from tpiedge.nodes.membership import Member
from tpiedge.wire.control import Stats

__all__ = ["OLD", "RequestWatch"]

#: Of the limit: news that is older than this part of it is old.
OLD: Final = 0.25


class RequestWatch:
    """Times are seconds on the caller's clock."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._news: float | None = None  # None while no request runs
        self._progress: list[tuple[int, int, int]] = []
        self._measured: Stats | None = None  # since the last other news

    def begin(self, now: float) -> None:
        """Rank 0 gets a request."""
        self._news, self._measured = now, None

    def advance(self, now: float) -> None:
        """Rank 0 has sent a part of the answer."""
        if self._news is not None:
            self._news, self._measured = now, None

    def end(self) -> None:
        """Rank 0 has ended the request."""
        self._news = None

    def look(self, members: Sequence[Member], now: float) -> None:
        """How far the nodes are by their heartbeats."""
        progress = [(member.step, member.block, member.bytes_read) for member in members]
        if progress != self._progress:
            self._progress = progress
            self.advance(now)

    def measured(self, stats: Stats, now: float) -> None:
        """What rank 0 has done in all; the memory that it has taken is no progress."""
        found = replace(stats, peak_rss_bytes=0, kv_bytes=0)
        if self._measured not in (None, found):
            self.advance(now)
        self._measured = found

    def old(self, now: float) -> bool:
        """Whether rank 0 is to be asked what it has done."""
        return self._quiet_s(now) > OLD * self._limit_s

    def stuck_s(self, now: float) -> float | None:
        """For how long there was no news, if that is too long."""
        quiet_s = self._quiet_s(now)
        return quiet_s if quiet_s > self._limit_s else None

    def _quiet_s(self, now: float) -> float:
        return 0.0 if self._news is None else now - self._news
