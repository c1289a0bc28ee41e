"""Counters as they arrive: by a clock that the test moves."""

import pytest

from tests.unit.api.test_cluster import STATS, after
from tpiedge.master.counters import Counted, CounterLog


def test_before_the_first_ones_nothing_is_known() -> None:
    assert CounterLog().counted(0.0) is None


def test_a_rate_needs_two_arrivals() -> None:
    log = CounterLog()
    log.take(STATS, 5.0)
    assert log.counted(5.0) == Counted(STATS, STATS, 0.0)


def test_the_time_is_that_between_arrivals_of_the_last_seconds() -> None:
    """1 byte per second, heard at uneven times."""
    log = CounterLog()
    for at in (0.0, 0.3, 1.7, 3.0, 6.2, 6.3, 11.9):
        log.take(after(STATS, 1, bytes_sent=10 * at), at)
        counted = log.counted(at)
        assert counted is not None
        assert counted.spent_s <= 6.0
        assert counted.latest.bytes_sent - counted.first.bytes_sent == pytest.approx(10 * counted.spent_s)
    assert (counted.spent_s, counted.first.bytes_sent) == (pytest.approx(5.7), 62.0)


def test_what_came_long_ago_says_nothing() -> None:
    log = CounterLog()
    log.take(STATS, 0.0)
    log.take(after(STATS, 9), 60.0)
    assert log.counted(60.0) == Counted(after(STATS, 9), after(STATS, 9), 0.0)
    log.take(after(STATS, 12), 61.0)
    assert log.counted(62.0) == Counted(after(STATS, 12), after(STATS, 9), 1.0)
    assert log.counted(3600.0) == Counted(after(STATS, 12), after(STATS, 12), 0.0)
