"""When a plan is due, as lists of comings, goings and times."""

import pytest

from tests.unit.master.players import offer
from tpiedge.master.debounce import LONGEST_S, QUIET_S, Debounce
from tpiedge.master.roster import Roster


@pytest.fixture
def roster() -> Roster:
    return Roster(1.5)


@pytest.fixture
def debounce(roster: Roster) -> Debounce:
    found = Debounce(roster)
    found.planned()
    return found


def test_nothing_is_due_while_nothing_changes(debounce: Debounce) -> None:
    assert not debounce.due(0.0)
    assert not debounce.due(100.0)
    debounce.again()
    assert debounce.due(100.0)
    debounce.planned()
    assert not debounce.due(100.0)


def test_who_comes_at_about_the_same_time_is_waited_for(debounce: Debounce, roster: Roster) -> None:
    roster.offered("w-1", offer("w-1"), 10.0)
    assert not debounce.due(10.2)
    roster.offered("w-2", offer("w-2"), 10.2)
    assert not debounce.due(10.2 + QUIET_S - 0.01)
    assert debounce.due(10.2 + QUIET_S)


def test_no_machine_is_waited_for_for_ever(debounce: Debounce, roster: Roster) -> None:
    now = 10.0
    roster.offered("w-1", offer("w-1"), now)
    while not debounce.due(now):
        assert now < 10.0 + LONGEST_S + 0.1
        roster.lose("w-1", "cut off")
        now += 0.1
        roster.offered("w-1", offer("w-1"), now)
    assert now >= 10.0 + LONGEST_S
    debounce.planned()
    roster.lose("w-1", "cut off")
    roster.offered("w-1", offer("w-1"), now)
    assert not debounce.due(now), "the next change has a time of its own"


def test_a_doubted_machine_is_waited_for_until_it_is_heard_or_lost(
    debounce: Debounce, roster: Roster
) -> None:
    roster.offered("w-1", offer("w-1"), 10.0)
    roster.offered("w-2", offer("w-2"), 10.0)
    roster.doubt("w-1")
    roster.doubt("w-2")
    assert not debounce.due(11.0)
    roster.heard("w-1", 11.0)
    assert not debounce.due(11.0)
    roster.lose("w-2", "silent")
    assert debounce.due(11.0)
