"""Plans in the order in which disks lack the fewest bytes: one after the other, made ahead, and in a master."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.master.players import FakeAgent
from tests.unit.master.stories import Story
from tests.unit.master.test_placement import MODEL, machine, placement
from tpiedge.master.arranging import Arranger
from tpiedge.master.assignments import Assignment, Assignments, NoPlan
from tpiedge.master.foresight import Foresight, PlaceNodes
from tpiedge.master.roster import Machine
from tpiedge.pack.held import HeldUnits
from tpiedge.planner.needs import layer_bytes
from tpiedge.planner.partition import ShareWeight
from tpiedge.wire.epochs import AskOffer, Held, Leaving, Prepare, Stock

PLACEMENT = placement(min_workers=1)


class Cluster:
    """Machines whose disks keep what plans needed of them, and the master's plans for them."""

    def __init__(self, *, under_way: bool = True) -> None:
        self.machines: dict[str, Machine] = {}
        self.serving: tuple[Assignment, ...] = ()
        self.asked = 0
        arranger = Arranger(PLACEMENT, lambda: [self.serving] if under_way and self.serving else [])
        self.plan: PlaceNodes = arranger.over(self._planned)

    def _planned(self, machines: tuple[Machine, ...], serving: tuple[str, ...]) -> Assignments | NoPlan:
        self.asked += 1
        return PLACEMENT(machines, serving)

    def join(self, name: str, speed: float = 1e9) -> None:
        self.machines[name] = machine(name, speed=speed)

    def planned(self) -> Assignments:
        found = self.plan(tuple(self.machines.values()), ())
        assert isinstance(found, Assignments), found
        return found

    def lacking(self, found: Assignments) -> int:
        """Bytes that the disks lack for it."""
        line = PLACEMENT.arrangement(found, tuple(self.machines.values()))
        return line.lacking(line.own)

    def serve(self) -> tuple[str, ...]:
        """The machines fetch what they lack of the plan, which then serves. The workers by rank."""
        self.serving = self.planned().assignments
        for one in self.serving[1:]:
            self.hold(one.machine, one)
        return names(self.serving)

    def hold(self, name: str, part: Assignment) -> None:
        self.machines[name] = replace(
            self.machines[name], held=self.machines[name].held.with_share(part.share)
        )


def names(plan: Sequence[Assignment]) -> tuple[str, ...]:
    return tuple(one.machine for one in plan[1:])


def test_who_joins_takes_the_place_in_which_the_others_keep_what_they_have() -> None:
    cluster = Cluster()
    cluster.join("ann")
    assert cluster.serve() == ("ann",)
    cluster.join("zoe", speed=2e9)
    assert names(cluster.planned().assignments) == ("zoe", "ann")
    before = cluster.machines["ann"].held
    assert cluster.serve() == ("zoe", "ann")
    assert cluster.machines["ann"].held == before, "it has fetched nothing"


def test_the_planner_is_not_asked_again_for_what_is_on_disks() -> None:
    cluster = Cluster()
    cluster.join("ann")
    cluster.serve()
    asked = cluster.asked
    cluster.planned()
    assert cluster.asked == asked + 1, "as often as without it"
    assert cluster.plan((), ()) == NoPlan("0 of 1 worker here: waiting for 1 more")


def test_what_serves_keeps_its_order_whatever_is_on_disks() -> None:
    cluster = Cluster()
    for name in ("ann", "bob", "cem"):
        cluster.join(name)
    order = cluster.serve()
    parts = dict(zip(order, cluster.serving[1:], strict=True))
    for name, other in (("ann", "bob"), ("bob", "cem"), ("cem", "ann")):
        cluster.machines[name] = replace(
            cluster.machines[name], held=HeldUnits().with_share(parts[other].share)
        )
    assert cluster.planned().assignments == cluster.serving
    cluster.serving = ()
    assert names(cluster.planned().assignments) != order
    assert cluster.lacking(cluster.planned()) == 0


def test_an_order_in_another_is_the_same_plan() -> None:
    """What follows from the place is that of the place: bytes, memory, times."""
    cluster = Cluster()
    for name, speed in (("ann", 1e9), ("bob", 3e9)):
        cluster.join(name, speed)
    machines = tuple(cluster.machines.values())
    own = cluster.planned()
    line = PLACEMENT.arrangement(own, machines)
    assert PLACEMENT.placed(own, machines, line, line.own, line.shares(line.own)) == own
    other = PLACEMENT.placed(own, machines, line, (0, 2, 1), line.shares((0, 2, 1)))
    assert other is not None
    assert names(other.assignments) == ("bob", "ann")
    assert [one.share.ffn.stop for one in other.assignments][-1] == MODEL.shape.ffn_tiles
    assert sorted(one.weight_bytes for one in other.assignments) == sorted(
        one.weight_bytes for one in own.assignments
    )
    line = PLACEMENT.arrangement(other, machines)
    again = PLACEMENT.placed(other, machines, line, (0, 2, 1), line.shares((0, 2, 1)))
    assert again == own
    assert again is not None
    assert [one.ffn_s for one in again.assignments] == pytest.approx([one.ffn_s for one in own.assignments])


def test_shares_stay_with_their_machines() -> None:
    weighted = placement(weights=(ShareWeight(2, 2), ShareWeight(1, 1), ShareWeight(5, 5)))
    ann, zoe = machine("ann"), machine("zoe")
    first = Arranger(weighted, tuple).over(weighted)((ann, zoe), ())
    assert isinstance(first, Assignments)
    amounts = {one.machine: len(one.share.ffn) for one in first.assignments}
    assert amounts == {"": 4, "ann": 2, "zoe": 10}
    held = HeldUnits.of([(6, 8)], [(14, 16)])
    second = Arranger(weighted, tuple).over(weighted)((replace(ann, held=held), zoe), ())
    assert isinstance(second, Assignments)
    assert names(second.assignments) == ("zoe", "ann")
    assert {one.machine: len(one.share.ffn) for one in second.assignments} == amounts


SPEEDS = st.sampled_from([0.4e9, 1e9, 1.7e9, 4e9])


@given(st.lists(SPEEDS, min_size=2, max_size=5), st.data())
def test_what_was_stocked_for_a_loss_is_what_the_loss_needs(speeds: list[float], data: st.DataObject) -> None:
    """Whatever machines came before, once all that foresight asks for is there, no loss of one makes anybody fetch."""
    cluster = Cluster()
    for number, speed in enumerate(speeds):
        cluster.join(f"w-{number}", speed)
        if data.draw(st.booleans()):
            cluster.serve()
    cluster.serve()
    told: dict[str, Stock] = {}
    foresight = Foresight(cluster.plan, lambda stock, name: told.__setitem__(name, stock), "p1", stock=True)
    workers = names(cluster.serving)
    while not told:
        foresight.look(tuple(cluster.machines.values()), workers)
    for name, stock in told.items():
        held = cluster.machines[name].held
        more = HeldUnits.of([one for one, _ in stock.shares], [one for _, one in stock.shares])
        cluster.machines[name] = replace(
            cluster.machines[name], held=HeldUnits(held.attention | more.attention, held.ffn | more.ffn)
        )
    lost = data.draw(st.sampled_from(workers))
    del cluster.machines[lost]
    cluster.serving = ()
    if cluster.machines:
        assert cluster.lacking(cluster.planned()) == 0


@given(st.lists(st.tuples(SPEEDS, st.integers(0, 255), st.integers(0, 65535)), min_size=2, max_size=4))
def test_what_serves_keeps_its_borders_whatever_is_on_disks(
    machines: list[tuple[float, int, int]],
) -> None:
    cluster = Cluster()
    for number, (speed, heads, tiles) in enumerate(machines):
        cluster.join(f"w-{number}", speed)
        cluster.machines[f"w-{number}"] = replace(
            cluster.machines[f"w-{number}"], held=HeldUnits(heads, tiles)
        )
    cluster.serve()
    for name, one in cluster.machines.items():
        cluster.machines[name] = replace(one, held=HeldUnits())
    assert cluster.planned().assignments == cluster.serving
    parts = [layer_bytes(MODEL, one.share) for one in cluster.serving]
    for one, part in zip(cluster.serving, parts, strict=True):
        assert f"{part / sum(parts):.0%} of the cluster" in one.why


@given(st.lists(st.tuples(st.sampled_from("abcde"), SPEEDS, st.booleans()), max_size=12))
def test_it_never_lacks_more_than_the_planners_own_order(events: list[tuple[str, float, bool]]) -> None:
    """Machines come, leave and change their speed; some fetch."""
    cluster = Cluster(under_way=False)
    cluster.join("z")
    for name, speed, leaves in events:
        held = cluster.machines[name].held if name in cluster.machines else HeldUnits()
        cluster.join(name, speed)
        cluster.machines[name] = replace(cluster.machines[name], held=held)
        if leaves:
            del cluster.machines[name]
        own = PLACEMENT(tuple(cluster.machines.values()), ())
        assert isinstance(own, Assignments)
        found = cluster.planned()
        assert cluster.lacking(found) <= cluster.lacking(own)
        assert found.step_s <= 1.05 * own.step_s
        assert cluster.planned() == found
        cluster.serve()


# --- in a master


@pytest.fixture
def story() -> Story:
    """Plans by a real placement, with everybody."""
    made = Story(arranges=PLACEMENT)
    made.plan = lambda machines: _assignments(placement(min_workers=len(machines))(machines, ()))
    return made


def _assignments(found: Assignments | NoPlan) -> tuple[Assignment, ...] | str:
    return found.reason if isinstance(found, NoPlan) else found.assignments


def _join(story: Story, name: str) -> FakeAgent:
    """It has room for a share."""
    agent = story.join(name)
    agent.say(machine(name).offer)
    story.settle()
    return agent


def _held(agent: FakeAgent, pack: str = "pack-1") -> Held:
    """What it was last asked to prepare is on its disk."""
    order = [message for message in agent.heard if isinstance(message, Prepare)][-1]
    return Held(0, pack, (order.attention,), (order.ffn,))


@pytest.mark.parametrize(("pack", "order"), [("pack-1", ("w-2", "w-1")), ("pack-2", ("w-1", "w-2"))])
def test_a_master_hears_what_is_on_disks(story: Story, pack: str, order: tuple[str, ...]) -> None:
    first = _join(story, "w-1")
    first.say(_held(first, pack))
    story.turn()
    epoch = story.epoch
    story.wait(10.0)
    assert story.epoch == epoch, "it makes no other plan for that"
    _join(story, "w-2")
    assert story.members() == ("master", *order)


def test_a_master_that_is_told_nonsense_of_a_disk_serves_on(story: Story) -> None:
    first = _join(story, "w-1")
    first.say(Held(0, "pack-1", ((5, 2), (0, 2**32 - 1)), ((2**32 - 1, 2**32 - 1),)))
    _join(story, "w-2")
    assert story.ready
    assert len(story.members()) == 3


def test_who_has_made_no_offer_is_asked_for_one(story: Story) -> None:
    agent = _join(story, "w-1")
    agent.say(Leaving(0))
    agent.say(Held(0, "pack-1", (), ()))
    story.turn()
    assert agent.count(AskOffer) == 1
