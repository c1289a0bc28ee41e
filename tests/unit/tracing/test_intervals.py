from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tpiedge.lab.traces import overlap, total
from tpiedge.tracing.collection import rows
from tpiedge.tracing.tracer import Interval, union, without

TICKS = 30
stretch = st.tuples(st.integers(0, TICKS), st.integers(0, 8)).map(lambda pair: (pair[0], pair[0] + pair[1]))
stretches = st.lists(stretch, max_size=12)


def ticks(intervals: list[Interval]) -> set[int]:
    return {tick for start, end in intervals for tick in range(int(start), int(end))}


def is_union(intervals: list[Interval]) -> bool:
    bounds = [bound for interval in intervals for bound in interval]
    return all(one < other for one, other in pairwise(bounds))


@given(stretches)
def test_union_covers_every_tick_once(intervals: list[Interval]) -> None:
    found = union(intervals)
    assert is_union(found)
    assert ticks(found) == ticks(intervals)
    assert total(found) == len(ticks(intervals))


@given(stretches, stretches)
def test_overlap_is_the_intersection(one: list[Interval], other: list[Interval]) -> None:
    found = overlap(union(one), union(other))
    assert is_union(found)
    assert ticks(found) == ticks(one) & ticks(other)
    assert found == overlap(union(other), union(one))


@given(stretch, stretches)
def test_without_removes_the_holes(whole: Interval, holes: list[Interval]) -> None:
    found = without(whole, union(holes))
    assert all(start < end for start, end in found)
    assert ticks(found) == ticks([whole]) - ticks(holes)


@given(stretches)
def test_rows_hold_no_overlaps_and_are_minimal(intervals: list[Interval]) -> None:
    intervals = sorted(item for item in intervals if item[0] < item[1])
    placed = list(zip(intervals, rows(intervals), strict=True))
    by_row: dict[int, list[Interval]] = {}
    for interval, row in placed:
        by_row.setdefault(row, []).append(interval)
    for found in by_row.values():
        assert all(one[1] <= other[0] for one, other in pairwise(found))
    at_once = (sum(start <= tick < end for start, end in intervals) for tick in range(2 * TICKS))
    assert len(by_row) == max(at_once)


def test_union_joins_close_intervals() -> None:
    assert union([(0, 1), (1.5, 2), (4, 5)], 0.5) == [(0, 2), (4, 5)]
