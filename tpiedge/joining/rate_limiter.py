"""How often something may happen, per source and altogether: a sliding window without a clock of its own."""

from collections import deque


class Limiter:
    """At most `each` events of one source and `total` of all within `window_s`. Times are the caller's seconds."""

    def __init__(self, each: int, total: int, window_s: float) -> None:
        self._each = each
        self._total = total
        self._window_s = window_s
        self._events: deque[tuple[float, str]] = deque()

    def is_full(self, source: str, now: float) -> bool:
        """Whether one more event of `source` would be too many."""
        while self._events and self._events[0][0] <= now - self._window_s:
            self._events.popleft()
        return len(self._events) >= self._total or sum(who == source for _, who in self._events) >= self._each

    def count(self, source: str, now: float) -> None:
        """An event happened. Call `is_full` first: memory is bounded by `total` then."""
        self._events.append((now, source))
