"""Stretches of time as pairs (start, end): pure functions. A union is sorted, and its stretches do not touch."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from typing import TypeAlias

Interval: TypeAlias = tuple[float, float]


def union(intervals: Iterable[Interval], gap: float = 0.0) -> list[Interval]:
    """What is covered by any of them; stretches that are `gap` apart or less become one."""
    found: list[Interval] = []
    for start, end in sorted(intervals):
        if found and start - found[-1][1] <= gap:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        elif end > start:
            found.append((start, end))
    return found


def total(intervals: Iterable[Interval]) -> float:
    """Length of a union."""
    return sum(end - start for start, end in intervals)


def overlap(one: Sequence[Interval], other: Sequence[Interval]) -> list[Interval]:
    """What two unions have in common, as a union."""
    return [common for stretch in one for common in _within(stretch, other)]


def without(stretch: Interval, holes: Sequence[Interval]) -> list[Interval]:
    """What is left of `stretch` outside a union."""
    left, start = [], stretch[0]
    for hole_start, hole_end in _within(stretch, holes):
        left.append((start, hole_start))
        start = hole_end
    left.append((start, stretch[1]))
    return [(start, end) for start, end in left if end > start]


def clip(intervals: Iterable[Interval], start: float, end: float) -> Iterator[Interval]:
    """What of them lies between `start` and `end`."""
    for first, last in intervals:
        if first < end and last > start:
            yield max(first, start), min(last, end)


def rows(intervals: Iterable[Interval]) -> Iterator[int]:
    """For each stretch, in the order of their starts, the first row in which nothing else goes on at that time."""
    busy_until: list[float] = []
    for start, end in intervals:
        row = next((row for row, until in enumerate(busy_until) if until <= start), len(busy_until))
        busy_until[row : row + 1] = [end]
        yield row


def _within(stretch: Interval, others: Sequence[Interval]) -> Iterator[Interval]:
    """What of a union lies in `stretch`."""
    first = bisect_right(others, stretch[0], key=itemgetter(1))
    last = bisect_left(others, stretch[1], key=itemgetter(0))
    return clip(others[first:last], *stretch)
