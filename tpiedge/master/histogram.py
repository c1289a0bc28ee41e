"""How values are distributed: counts between fixed bounds. Pure.

Laws:
1. Memory is bounded by the number of bounds, whatever is observed.
2. An observation costs one binary search and two additions.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

SECONDS: Final = (
    *(round(digit * 10.0**exponent, 9) for exponent in range(-3, 3) for digit in (1, 2, 3, 5)),
    1000.0,
    1800.0,
    3600.0,
)
"""Bounds of times: from a millisecond to an hour."""

LENGTHS: Final = tuple(float(digit * 10**exponent) for exponent in range(6) for digit in (1, 2, 5))
"""Bounds of numbers of tokens."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many values were at most `bounds[i]` and above the bound before; the last of `counts` is of those above all.
    `total`: the sum of the values."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float = 0.0

    @classmethod
    def empty(cls, bounds: tuple[float, ...]) -> "Histogram":
        return cls(bounds, (0,) * (len(bounds) + 1))


class GrowingHistogram:
    """A histogram that grows; not thread-safe. `bounds` ascend."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._total = 0.0

    def observe(self, value: float) -> None:
        """Counts a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def histogram(self) -> Histogram:
        """The values so far."""
        return Histogram(self._bounds, tuple(self._counts), self._total)
