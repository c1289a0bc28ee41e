from collections.abc import Callable

import pytest

from tests.unit.master.players import offer
from tpiedge.master.roster import GONE, Roster
from tpiedge.wire.probing import LinkSpeed

LINK = LinkSpeed(0.01, 1e6)


def make() -> Roster:
    return Roster(1.5)


def names(roster: Roster) -> list[str]:
    return [machine.name for machine in roster.present]


def test_a_machine_is_present_from_its_offer_on() -> None:
    roster = make()
    assert not roster.note_alive("w-1", 0.0), "it must make its offer first"
    roster.offered("w-1", offer(), 1.0)
    assert roster.note_alive("w-1", 2.0)
    assert names(roster) == ["w-1"]
    assert roster.silent(3.5) == []
    assert roster.silent(3.6) == [("w-1", "silent for 1.6 s (killed, frozen or cut off)")]
    roster.mark_away("w-1", "silent", 3.6)
    assert roster.silent(9.0) == []
    assert names(roster) == []


def test_roster_keeps_only_latest_absent_machines() -> None:
    """A member may come again and again with another key; each turn of the master looks at all that it remembers."""
    roster = make()
    roster.offered("w-1", offer(), 0.0)
    for number in range(10 * GONE):
        roster.offered(f"x-{number}", offer(), float(number))
        roster.mark_away(f"x-{number}", "its user stopped it", 0.0)
    roster.offered("w-2", offer(), 1.0)
    gone = [machine.name for machine in roster.machines if not machine.present]
    assert gone == [f"x-{number}" for number in range(9 * GONE, 10 * GONE)]
    assert names(roster) == ["w-1", "w-2"]
    roster.offered("x-0", offer(), 1000.0)
    assert names(roster) == ["w-1", "x-0", "w-2"], "it has its old place"


@pytest.mark.parametrize(
    ("event", "changes"),
    [
        (lambda roster: roster.offered("w-1", offer(), 2.0), False),
        (lambda roster: roster.offered("w-1", offer(nonce=2), 2.0), True),
        (lambda roster: roster.offered("w-2", offer(), 2.0), True),
        (lambda roster: roster.note_alive("w-1", 2.0), False),
        (lambda roster: roster.measured("w-1", LINK), True),
        (lambda roster: roster.measured("w-9", LINK), False),
        (lambda roster: roster.mark_away("w-1", "x", 0.0), True),
        (lambda roster: roster.mark_away("w-9", "x", 0.0), False),
        (lambda roster: roster.remove("w-1"), True),
        (lambda roster: roster.remove("w-9"), False),
    ],
)
def test_generation_changes_only_with_planner_inputs(
    event: Callable[[Roster], object], changes: bool
) -> None:
    roster = make()
    roster.offered("w-1", offer(), 1.0)
    before = roster.generation
    event(roster)
    assert (roster.generation != before) == changes


def test_places_follow_admission_order() -> None:
    """Places do not depend on which machine makes its offer first, as after the next start of the master."""
    roster = Roster(1.5, known=("old",))
    for name in ("a", "b"):
        roster.expect(name)
    for name in ("b", "new", "a", "old"):
        roster.offered(name, offer(), 0.0)
    roster.expect("b")
    assert [machine.name for machine in roster.present] == ["old", "a", "b", "new"]
