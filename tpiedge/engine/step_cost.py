"""Predicts a step's time from its number of rows. Pure.

Row counts between the same two powers of two form one kind. Each kind gives a point of a curve: the median time of the
kind's latest `_KEPT` steps.

1. More rows never take less time (isotonic regression).
2. One slow step has no effect on a kind that was measured three times.
3. Beyond the largest measured step, time is proportional to rows. This prediction is usually too long.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median_low
from typing import Final

_KEPT: Final = 7
_ENOUGH: Final = 3
#: After `_STALE` other measurements a kind may be out of date: `_REMEMBERED` of its steps still count.
_STALE: Final = 256
_REMEMBERED: Final = 2


@dataclass(slots=True)
class _SimilarSteps:
    rows: deque[int] = field(default_factory=lambda: deque(maxlen=_KEPT))
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))
    count: int = 0
    last: int = 0

    def add(self, rows: int, seconds: float, number: int) -> None:
        while number - self.last > _STALE and len(self.rows) > _REMEMBERED:
            self.rows.popleft()
            self.seconds.popleft()
        self.rows.append(rows)
        self.seconds.append(seconds)
        self.count += 1
        self.last = number


@dataclass(slots=True)
class _Level:
    """Adjacent points of equal time. `weight` counts their measurements."""

    rows: list[int]
    seconds: float
    weight: int


class StepCost:
    def __init__(self) -> None:
        self._kinds: dict[int, _SimilarSteps] = {}
        self._count = 0
        self._rows: list[int] = []
        self._seconds: list[float] = []

    def measured(self, rows: int, seconds: float) -> None:
        self._count += 1
        self._kinds.setdefault(_kind(rows), _SimilarSteps()).add(rows, seconds, self._count)
        self._draw()

    def seconds(self, rows: int) -> float | None:
        """Estimates a step's time. Returns None below the curve's first point, or without a curve."""
        if not self._rows or rows < self._rows[0]:
            return None
        above = bisect_left(self._rows, rows)
        if above == 0:
            return self._seconds[0]
        if above == len(self._rows):
            return self._seconds[-1] * rows / self._rows[-1]
        low, high = self._rows[above - 1], self._rows[above]
        part = (rows - low) / (high - low)
        between = self._seconds[above - 1] + part * (self._seconds[above] - self._seconds[above - 1])
        return min(between, self._seconds[above])  # rounding must not make fewer rows take longer

    def hopeful_seconds(self, rows: int) -> float | None:
        """Estimates a step's least time. An unknown kind takes as long as the next smaller known kind. Returns None
        if no smaller kind is known."""
        wanted = _kind(rows)
        known = [kind for kind in self._kinds if kind <= wanted and self._is_known(kind)]
        if not known:
            return None
        best = max(known)
        return self.seconds(rows if best == wanted else min(rows, median_low(self._kinds[best].rows)))

    def rows_within(self, seconds: float, most: int) -> int | None:
        """Returns the largest number of rows, up to `most`, that take at most `seconds`. Returns None if every measured
        step took longer."""
        if not self._rows or seconds < self._seconds[0]:
            return None
        return bisect_left(range(1, most + 1), True, key=lambda rows: (self.seconds(rows) or 0.0) > seconds)

    def _is_known(self, kind: int) -> bool:
        found = self._kinds[kind]
        return found.count >= _ENOUGH and self._count - found.last <= _STALE

    def _draw(self) -> None:
        points = ((median_low(kind.rows), kind) for _, kind in sorted(self._kinds.items()))
        levels = _isotonic(_Level([rows], median_low(kind.seconds), len(kind.rows)) for rows, kind in points)
        self._rows = [rows for level in levels for rows in level.rows]
        self._seconds = [level.seconds for level in levels for _ in level.rows]


def _kind(rows: int) -> int:
    return (rows - 1).bit_length()


def _isotonic(levels: Iterable[_Level]) -> list[_Level]:
    found: list[_Level] = []
    for level in levels:
        found.append(level)
        while len(found) > 1 and found[-2].seconds > found[-1].seconds:
            last, before = found.pop(), found.pop()
            weight = before.weight + last.weight
            seconds = (before.seconds * before.weight + last.seconds * last.weight) / weight
            found.append(_Level(before.rows + last.rows, seconds, weight))
    return found
