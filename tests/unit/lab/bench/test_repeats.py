"""Repeats by a manual clock: three at least, five at most, and in between as many as the time allows."""

import math

from tpiedge.lab.bench.figures import Repeats
from tpiedge.testing.clock import ManualClock


def repeated(repeats: Repeats, clock: ManualClock, repeat_s: float) -> int:
    """How often the next case, each repeat of which takes so long, is measured."""
    count = 0
    for number in repeats.of_next_case():
        assert number == count
        clock.advance(repeat_s)
        count += 1
    return count


def budget(cases: int, seconds: float) -> tuple[Repeats, ManualClock]:
    clock = ManualClock()
    clock.advance(100.0)
    return Repeats(cases, seconds, clock, least=3, most=5), clock


def test_where_time_allows_there_are_as_many_as_may_be() -> None:
    repeats, clock = budget(1, 5.0)
    assert repeated(repeats, clock, 1.0) == 5


def test_a_repeat_that_would_end_too_late_does_not_begin() -> None:
    repeats, clock = budget(1, 4.9)
    assert repeated(repeats, clock, 1.0) == 4
    repeats, clock = budget(1, 4.0)
    assert repeated(repeats, clock, 1.0) == 4
    repeats, clock = budget(1, 3.9)
    assert repeated(repeats, clock, 1.0) == 3


def test_the_least_number_counts_more_than_the_time() -> None:
    repeats, clock = budget(2, 1.0)
    assert repeated(repeats, clock, 60.0) == 3
    assert repeated(repeats, clock, 60.0) == 3, "the time is over, and more"


def test_what_a_case_leaves_is_for_those_after_it() -> None:
    repeats, clock = budget(3, 9.0)
    assert repeated(repeats, clock, 0.1) == 5
    assert repeated(repeats, clock, 1.0) == 4  # of 8.5 s for two
    assert repeated(repeats, clock, 1.0) == 4  # of 4.5 s


def test_time_spent_between_cases_counts() -> None:
    repeats, clock = budget(2, 10.0)
    clock.advance(2.0)  # operands are made
    assert repeated(repeats, clock, 1.0) == 4
    clock.advance(0.5)
    assert repeated(repeats, clock, 1.0) == 3


def test_many_cases_end_in_time_where_their_least_does() -> None:
    repeats, clock = budget(266, 45.0)
    counts = [repeated(repeats, clock, 0.04) for _ in range(266)]
    assert clock.now() - 100.0 <= 45.0
    assert set(counts) <= {3, 4, 5}
    assert sum(counts) > 4 * 266, "and the time is used"


def test_a_number_that_was_asked_for_is_kept_to() -> None:
    clock = ManualClock()
    repeats = Repeats(2, math.inf, clock, least=1, most=1)
    assert [repeated(repeats, clock, 1e6) for _ in range(2)] == [1, 1]


def test_a_clock_that_stands_still_is_no_division_by_nothing() -> None:
    repeats, clock = budget(1, 0.0)
    assert repeated(repeats, clock, 0.0) == 5
