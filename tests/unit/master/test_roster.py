"""The laws of the roster, as lists of events."""

from collections.abc import Callable

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.unit.master.players import offer
from tpiedge.master.roster import GONE, PLACES, Roster
from tpiedge.master.workers import WorkerEvent
from tpiedge.pack.held import HeldUnits
from tpiedge.wire.probing import LinkSpeed

LINK = LinkSpeed(0.01, 1e6)


def make() -> Roster:
    return Roster(1.5)


def names(roster: Roster) -> list[str]:
    return [machine.name for machine in roster.present]


def test_a_machine_is_present_from_its_offer_on() -> None:
    roster = make()
    assert not roster.heard("w-1", 0.0), "it must make its offer first"
    roster.offered("w-1", offer(), 1.0)
    assert roster.heard("w-1", 2.0)
    assert names(roster) == ["w-1"]
    assert roster.tick(3.5) == ()
    assert roster.tick(3.6) == (("w-1", "silent for 1.6 s (killed, frozen or cut off)"),)
    assert roster.tick(9.0) == ()
    assert names(roster) == []


def test_who_belonged_to_the_cluster_before_the_master_came_has_its_old_place() -> None:
    roster = Roster(1.5, ["w-1", "w-2"])
    for name in ("w-3", "w-2", "w-1"):
        roster.offered(name, offer(), 1.0)
    assert names(roster) == ["w-1", "w-2", "w-3"]


def test_of_many_machines_that_are_gone_the_latest_are_remembered() -> None:
    """A member may come again and again with another key; each turn of the master looks at all that it remembers."""
    roster = make()
    roster.offered("w-1", offer(), 0.0)
    for number in range(10 * GONE):
        roster.offered(f"x-{number}", offer(), float(number))
        roster.lose(f"x-{number}", "it was stopped there", 0.0)
    roster.offered("w-2", offer(), 1.0)
    gone = [machine.name for machine in roster.machines if not machine.present]
    assert gone == [f"x-{number}" for number in range(9 * GONE, 10 * GONE)]
    assert names(roster) == ["w-1", "w-2"]
    roster.offered("x-0", offer(), 1000.0)
    assert names(roster) == ["w-1", "x-0", "w-2"], "it has its old place"


def test_of_still_more_the_latest_keep_their_places() -> None:
    roster = make()
    roster.offered("w-1", offer(), 0.0)
    left = [f"x-{number}" for number in range(GONE + PLACES + 2)]
    for now, name in enumerate(left):
        roster.offered(name, offer(), float(now))
        if now % 2:
            roster.lose(name, "it was stopped there", 0.0)
        else:
            roster.forget(name)
    roster.offered("w-2", offer(), 1e6)
    for name in (left[-1], left[0], left[PLACES]):
        roster.offered(name, offer(), 1e6)
    assert names(roster) == ["w-1", left[PLACES], left[-1], "w-2", left[0]], (
        "the first one comes as a new one"
    )


def test_a_machine_that_is_known_has_its_place_however_many_leave() -> None:
    roster = Roster(1.5, [f"known-{number}" for number in range(PLACES + 5)])
    roster.offered("known-1", offer(), 0.0)
    for number in range(PLACES + GONE):
        roster.offered(f"x-{number}", offer(), float(number))
        assert len(roster._places) <= PLACES + GONE + 2
        roster.lose(f"x-{number}", "it was stopped there", 0.0)
    roster.offered("w-2", offer(), 1e6)
    roster.lose("known-1", "cut off", 0.0)
    roster.offered("known-1", offer(), 1e6)
    roster.offered("known-0", offer(), 1e6)
    assert names(roster) == ["known-1", "w-2", "known-0"], "the one that never came was forgotten"


def test_after_a_restart_the_oldest_members_keep_their_places_longest() -> None:
    roster = Roster(1.5, [f"known-{number}" for number in range(PLACES + 1)])
    for name in ("w-1", f"known-{PLACES}", f"known-{PLACES - 1}", "known-0"):
        roster.offered(name, offer(), 1.0)
    assert names(roster) == ["known-0", f"known-{PLACES - 1}", "w-1", f"known-{PLACES}"]


def test_a_lost_machine_is_present_again_with_its_next_offer_and_only_then() -> None:
    roster = make()
    roster.offered("w-1", offer(), 1.0)
    roster.measured("w-1", LINK)
    assert roster.lose("w-1", "cut off", 0.0)
    assert not roster.lose("w-1", "cut off", 0.0), "it was gone already"
    assert not roster.heard("w-1", 2.0)
    roster.offered("w-1", offer(), 3.0)
    machine = roster.get("w-1")
    assert machine is not None
    assert (machine.since, machine.link, machine.cause) == (3.0, None, "cut off")


def test_an_offer_again_changes_neither_the_age_nor_the_link() -> None:
    roster = make()
    roster.offered("w-1", offer(), 1.0)
    roster.measured("w-1", LINK)
    roster.offered("w-1", offer(memory_bytes=1), 5.0)
    machine = roster.get("w-1")
    assert machine is not None
    assert (machine.since, machine.heard, machine.link, machine.offer.memory_bytes) == (1.0, 5.0, LINK, 1)


def test_the_age_of_an_offer_is_that_of_its_words() -> None:
    roster = make()
    ages = []
    for now, made in (
        (1.0, offer()),
        (2.0, offer()),
        (3.0, offer(memory_bytes=1)),
        (4.0, offer(memory_bytes=1)),
    ):
        roster.offered("w-1", made, now)
        ages.append(roster.present[0].offered)
    roster.lose("w-1", "cut off", 0.0)
    roster.offered("w-1", offer(memory_bytes=1), 5.0)
    assert [*ages, roster.present[0].offered] == [1.0, 1.0, 3.0, 3.0, 5.0]


def test_the_order_is_that_of_the_first_coming() -> None:
    roster = make()
    for name in ("w-2", "w-1"):
        roster.offered(name, offer(name), 0.0)
    roster.lose("w-2", "x", 0.0)
    roster.offered("w-2", offer("w-2"), 1.0)
    assert names(roster) == ["w-2", "w-1"]


@pytest.mark.parametrize(
    ("event", "changes"),
    [
        (lambda roster: roster.offered("w-1", offer(), 2.0), False),
        (lambda roster: roster.offered("w-1", offer(nonce=2), 2.0), True),
        (lambda roster: roster.offered("w-2", offer("w-2"), 2.0), True),
        (lambda roster: roster.heard("w-1", 2.0), False),
        (lambda roster: roster.measured("w-1", LINK), True),
        (lambda roster: roster.measured("w-9", LINK), False),
        (lambda roster: roster.lose("w-1", "x", 0.0), True),
        (lambda roster: roster.lose("w-9", "x", 0.0), False),
        (lambda roster: roster.forget("w-1"), True),
        (lambda roster: roster.forget("w-9"), False),
        (lambda roster: roster.tick(2.0), False),
        (lambda roster: roster.tick(99.0), True),
    ],
)
def test_the_generation_tells_of_what_plans_depend_on(
    event: Callable[[Roster], object], changes: bool
) -> None:
    roster = make()
    roster.offered("w-1", offer(), 1.0)
    before = roster.generation
    event(roster)
    assert (roster.generation != before) == changes


def test_what_is_on_a_disk_is_known_until_the_machine_is_lost_and_changes_no_plan() -> None:
    roster, held = make(), HeldUnits(0b11, 0b1)
    roster.holds("w-1", held)
    roster.offered("w-1", offer(), 1.0)
    before = roster.generation, [machine.planned_by for machine in roster.present]
    roster.holds("w-1", held)
    assert (roster.generation, [machine.planned_by for machine in roster.present]) == before
    assert [machine.held for machine in roster.present] == [held]
    roster.offered("w-1", offer(memory_bytes=1 << 31), 2.0)
    assert [machine.held for machine in roster.present] == [held], "the same agent, with more memory"
    roster.lose("w-1", "cut", 0.0)
    roster.holds("w-1", held)
    roster.offered("w-1", offer(), 3.0)
    assert [machine.held for machine in roster.present] == [HeldUnits()], "it says it again"


NAMES = st.sampled_from(["w-1", "w-2", "w-3"])


class Rosters(RuleBasedStateMachine):
    """Any order of events: a machine is reported as lost once per presence; nothing changes unseen."""

    def __init__(self) -> None:
        super().__init__()
        self.roster = make()
        self.now = 0.0
        self.there: set[str] = set()
        self.drained: dict[str, int] = {}  # the nonce of its agent
        self.seen = self._view()
        self.generation = self.roster.generation

    def _view(self) -> dict[str, object]:
        return {
            machine.name: (machine.offer, machine.link, machine.drained) for machine in self.roster.present
        }

    @rule(name=NAMES, nonce=st.integers(1, 2))
    def offered(self, name: str, nonce: int) -> None:
        known = self.roster.get(name)
        if known is not None and known.offer.nonce != nonce:
            self.roster.lose(name, "its agent was started anew", self.now)
        self.roster.offered(name, offer(name, nonce), self.now)
        self.there.add(name)
        if self.drained.get(name) != nonce:
            self.drained.pop(name, None)

    @rule(name=NAMES, drained=st.booleans())
    def drain(self, name: str, drained: bool) -> None:
        self.roster.step(name, WorkerEvent.DRAINED if drained else WorkerEvent.UNDRAINED, 0.0)
        self.drained.pop(name, None)
        machine = self.roster.get(name)
        if machine is not None and drained:
            self.drained[name] = machine.offer.nonce

    @rule(name=NAMES)
    def heard(self, name: str) -> None:
        assert self.roster.heard(name, self.now) == (name in self.there)

    @rule(name=NAMES, trip_s=st.sampled_from([0.1, 0.2]))
    def measured(self, name: str, trip_s: float) -> None:
        self.roster.measured(name, LinkSpeed(trip_s, 1.0))

    @rule(name=NAMES)
    def lose(self, name: str) -> None:
        assert self.roster.lose(name, "cut", self.now) == (name in self.there)
        self.there.discard(name)

    @rule(name=NAMES)
    def forget(self, name: str) -> None:
        self.roster.forget(name)
        self.there.discard(name)
        self.drained.pop(name, None)
        assert self.roster.get(name) is None

    @rule(seconds=st.floats(0.0, 2.0))
    def tick(self, seconds: float) -> None:
        self.now += seconds
        for name, _ in self.roster.tick(self.now):
            self.there.remove(name)

    @invariant()
    def laws(self) -> None:
        assert {machine.name for machine in self.roster.present} == self.there
        assert {machine.name for machine in self.roster.machines if machine.drained} == self.drained.keys()
        assert all(machine.since <= machine.heard <= self.now for machine in self.roster.present)
        view = self._view()
        if view != self.seen:
            assert self.roster.generation > self.generation
        self.seen, self.generation = view, self.roster.generation


@pytest.mark.fault("P21", "every machine has one state, as last heard of")
class TestRosters(Rosters.TestCase):
    """Random orders."""


def test_places_are_in_the_order_in_which_machines_were_let_in() -> None:
    """Whoever makes its offer first: as after the next start of the master."""
    roster = Roster(1.5, known=("old",))
    for name in ("a", "b"):
        roster.expect(name)
    for name in ("b", "new", "a", "old"):
        roster.offered(name, offer(name), 0.0)
    roster.expect("b")
    assert [machine.name for machine in roster.present] == ["old", "a", "b", "new"]
