"""When a plan is due, as lists of comings, goings and times."""

import pytest

from tests.unit.nodes.players import offer
from tpiedge.nodes.roster import Roster
from tpiedge.nodes.settling import LONGEST_S, SETTLE_S, Settling


@pytest.fixture
def roster() -> Roster:
    return Roster(1.5)


@pytest.fixture
def settling(roster: Roster) -> Settling:
    found = Settling(roster)
    found.planned()
    return found


def test_nothing_is_due_while_nothing_changes(settling: Settling) -> None:
    assert not settling.ripe(0.0)
    assert not settling.ripe(100.0)
    settling.again()
    assert settling.ripe(100.0)
    settling.planned()
    assert not settling.ripe(100.0)


def test_who_comes_at_about_the_same_time_is_waited_for(settling: Settling, roster: Roster) -> None:
    roster.offered("w-1", offer("w-1"), 10.0)
    assert not settling.ripe(10.2)
    roster.offered("w-2", offer("w-2"), 10.2)
    assert not settling.ripe(10.2 + SETTLE_S - 0.01)
    assert settling.ripe(10.2 + SETTLE_S)


def test_nobody_is_waited_for_for_ever(settling: Settling, roster: Roster) -> None:
    now = 10.0
    roster.offered("w-1", offer("w-1"), now)
    while not settling.ripe(now):
        assert now < 10.0 + LONGEST_S + 0.1
        roster.lose("w-1", "cut off")
        now += 0.1
        roster.offered("w-1", offer("w-1"), now)
    assert now >= 10.0 + LONGEST_S
    settling.planned()
    roster.lose("w-1", "cut off")
    roster.offered("w-1", offer("w-1"), now)
    assert not settling.ripe(now), "the next change has a time of its own"


def test_a_doubted_machine_is_waited_for_until_it_is_heard_or_lost(
    settling: Settling, roster: Roster
) -> None:
    roster.offered("w-1", offer("w-1"), 10.0)
    roster.offered("w-2", offer("w-2"), 10.0)
    roster.doubt("w-1")
    roster.doubt("w-2")
    assert not settling.ripe(11.0)
    roster.heard("w-1", 11.0)
    assert not settling.ripe(11.0)
    roster.lose("w-2", "silent")
    assert settling.ripe(11.0)
