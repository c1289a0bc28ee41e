"""Predicts a step's time from its number of rows. Pure.

Row counts between the same two powers of two form one kind. Each kind gives a point of a curve: the median time of the
kind's latest `_KEPT` steps.

1. More rows never take less time (isotonic regression).
2. One slow step has no effect on a kind that was measured three times.
3. Beyond the largest measured step, time is proportional to rows. This prediction is usually too long.
4. More rows read more experts. Measured steps show what an expert costs.
"""

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from statistics import median_low
from typing import Final

_KEPT: Final = 7
_ENOUGH: Final = 3
#: After `_STALE` other measurements a kind may be out of date: `_REMEMBERED` of its steps still count.
_STALE: Final = 256
_REMEMBERED: Final = 2
_READING: Final = 4  # rows that an expert multiplies in the time that it takes to be read


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
    """`touched` returns how much of all experts a step of so many rows reads on average, in any unit."""

    def __init__(self, touched: Callable[[float], float] = lambda _: 0.0) -> None:
        self._touched = touched
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
        part = (self._work(rows) - self._work(low)) / (self._work(high) - self._work(low))
        between = self._seconds[above - 1] + part * (self._seconds[above] - self._seconds[above - 1])
        return min(between, self._seconds[above])  # rounding must not make fewer rows take longer

    def hopeful_seconds(self, rows: int) -> float | None:
        """Estimates a step's least time. An unknown kind takes as long as the next smaller known kind and more experts.
        Returns None if no smaller kind is known."""
        wanted = _kind(rows)
        known = [kind for kind in sorted(self._kinds) if kind <= wanted and self._is_known(kind)]
        if not known or known[-1] == wanted:
            return self.seconds(rows) if known else None
        before, last = (median_low(self._kinds[kind].rows) for kind in (known[-2:][0], known[-1]))
        seconds = self.seconds(last) or 0.0
        if self._touched(1) and before < last:
            grown = (self._work(rows) - self._work(last)) / (self._work(last) - self._work(before))
            seconds += grown * (seconds - (self.seconds(before) or 0.0))
        return seconds

    def rows_touching(self, part: float) -> int:
        """Returns how many rows read this part of all experts, on average; 1 without experts."""
        wanted = part * self._touched(math.inf)
        return 1 + bisect_left(range(1, 1 << 16), True, key=lambda rows: self._touched(rows) >= wanted)

    def rows_within(self, seconds: float, most: int) -> int | None:
        """Returns the largest number of rows, up to `most`, that take at most `seconds`. Returns None if every measured
        step took longer."""
        if not self._rows or seconds < self._seconds[0]:
            return None
        return bisect_left(range(1, most + 1), True, key=lambda rows: (self.seconds(rows) or 0.0) > seconds)

    def _work(self, rows: int) -> float:
        """Returns what experts are read and multiplied, in any unit; the rows without experts."""
        return self._touched(rows) + self._touched(1) * rows / _READING or rows

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
