"""How far the reading of one prompt is: a machine without clock or threads."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reading:
    """`done_tokens` of the `of_tokens` are computed that have to be before the next token of the answer; the rest takes
    `left_s` at the rate of late, None where that is not known yet (`tokens_per_s` 0)."""

    done_tokens: int
    of_tokens: int
    tokens_per_s: float
    left_s: float | None


class ReadingProgress:
    """Of one request in one epoch. Times are seconds on the caller's clock. What is there at the first report may have
    been cached: it says nothing of the rate."""

    def __init__(self) -> None:
        self._done = 0
        self._first: tuple[float, int] | None = None
        self._last = 0.0

    def take(self, done_tokens: int, now: float) -> bool:
        """So many are computed; returns whether they are more than at the report before, if there was one."""
        if self._first is None:
            self._first, self._done, self._last = (now, done_tokens), done_tokens, now
            return False
        if done_tokens <= self._done:
            return False
        self._done, self._last = done_tokens, now
        return True

    def reading(self, of_tokens: int) -> Reading | None:
        """None before the first report."""
        if self._first is None:
            return None
        begun, before = self._first
        done, spent_s = min(self._done, of_tokens), self._last - begun
        rate = (self._done - before) / spent_s if spent_s > 0 else 0.0
        return Reading(done, of_tokens, rate, (of_tokens - done) / rate if rate > 0 else None)
