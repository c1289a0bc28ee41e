"""Who is told why the plan has no part for it: once, and again when that is news."""

from dataclasses import replace

from tests.unit.master.players import offer
from tpiedge.master.notices import Notices
from tpiedge.master.roster import Machine
from tpiedge.planner.reasons import SpareReason

ANN = Machine("ann", offer("ann"), heard=0.0, since=1.0)
BOB = Machine("bob", offer("bob"), heard=0.0, since=2.0)
SLOW = SpareReason("slower", "2 s with it and 1 s without it")
MANY = SpareReason("too many", "there are others")


def test_each_is_told_its_own_reason_once() -> None:
    notices = Notices()
    reasons = {"ann": SLOW, "bob": MANY}
    assert notices.due([ANN, BOB], reasons) == [("ann", SLOW), ("bob", MANY)]
    assert notices.due([ANN, BOB], reasons) == []


def test_other_numbers_are_no_news_and_another_kind_is() -> None:
    notices = Notices()
    notices.due([ANN], {"ann": SLOW})
    assert notices.due([ANN], {"ann": replace(SLOW, why="3 s with it and 1 s without it")}) == []
    assert notices.due([ANN], {"ann": MANY}) == [("ann", MANY)]
    assert notices.due([ANN], {"ann": SLOW}) == [("ann", SLOW)]


def test_who_had_a_part_since_is_told_again() -> None:
    notices = Notices()
    notices.due([ANN], {"ann": SLOW})
    assert notices.due([], {}) == []
    assert notices.due([ANN], {"ann": SLOW}) == [("ann", SLOW)]


def test_who_was_lost_and_came_back_is_told_again() -> None:
    notices = Notices()
    notices.due([ANN], {"ann": SLOW})
    assert notices.due([replace(ANN, since=9.0)], {"ann": SLOW}) == [("ann", SLOW)]


def test_where_no_reason_is_known_nothing_is_told() -> None:
    assert Notices().due([ANN], {"bob": SLOW}) == []
