import pytest

from tests.unit.master.players import offer
from tests.unit.master.stories import Story, assignments_of, two_machines
from tests.unit.master.test_placement import machine, placement
from tpiedge.master.assignments import Assignments
from tpiedge.master.loss_plans import LossPlans, what_if
from tpiedge.master.roster import Machine
from tpiedge.units import MIB
from tpiedge.wire.epochs import NodeEnded, Prefetch, Prefetched
from tpiedge.wire.fields import ShareRanges
from tpiedge.wire.probing import LinkSpeed


class Ahead:
    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, machines: tuple[Machine, ...], serving: tuple[str, ...]) -> Assignments:
        assert serving == (), "by then nobody serves"
        names = "".join(machine.name for machine in machines)
        self.asked.append(names)
        return Assignments(
            assignments_of(*names) if names else (), reason="" if names else "too little memory"
        )


def machines(names: str) -> list[Machine]:
    return [Machine(name, offer(), 0.0, 0.0) for name in names]


def shares(*places: int) -> tuple[ShareRanges, ...]:
    return tuple(assignments_of(*"abc")[place].share.ranges for place in places)


def plan_all(loss_plans: LossPlans, names: str, serving: str) -> None:
    for _ in range(1 + len(serving)):
        loss_plans.plan_next(machines(names), tuple(serving), 0)


def test_prefetch_orders_are_sent_after_all_loss_plans_are_made() -> None:
    """One call makes one plan, which takes a while."""
    plan = Ahead()
    told: dict[str, Prefetch] = {}
    loss_plans = LossPlans(plan, lambda order, name: told.__setitem__(name, order), "p1", prefetch=True)
    for so_far in (["abc"], ["abc", "bc"]):
        loss_plans.plan_next(machines("abc"), ("a", "b"), 0)
        assert (plan.asked, told) == (so_far, {})
    for _ in range(2):
        loss_plans.plan_next(machines("abc"), ("a", "b"), 0)
        assert plan.asked == ["abc", "bc", "ac"], "the node alone, then the loss of each that serves"
    assert told == {
        "a": Prefetch(0, 1, "p1", shares(1)),
        "b": Prefetch(0, 2, "p1", shares(2, 1)),
        "c": Prefetch(0, 3, "p1", shares(3, 2)),
    }


def test_unchanged_prefetch_orders_are_not_repeated() -> None:
    told: list[str] = []
    loss_plans = LossPlans(Ahead(), lambda _order, name: told.append(name), "p1", prefetch=True)
    plan_all(loss_plans, "ab", "a")
    plan_all(loss_plans, "ab", "a")
    assert told == ["a", "b"]
    loss_plans.note_prefetched("a", Prefetched(0, 1, 5, True, ""))
    plan_all(loss_plans, "ab", "")
    assert told == ["a", "b", "b"], "b needs less now"
    loss_plans.note_prefetched("b", Prefetched(0, 2, 5, True, ""))
    assert set(loss_plans.reports) == {"a"}, "the answer to an earlier order"
    loss_plans.note_prefetched("b", Prefetched(0, 3, 5, True, ""))
    plan_all(loss_plans, "ab", "ab")
    assert told == ["a", "b", "b", "b"], "and more now"
    assert set(loss_plans.reports) == {"a"}


def test_prefetch_orders_are_empty_when_prefetch_is_off() -> None:
    told: dict[str, Prefetch] = {}
    loss_plans = LossPlans(Ahead(), lambda order, name: told.__setitem__(name, order), "p1", prefetch=False)
    plan_all(loss_plans, "ab", "a")
    assert [order.shares for order in told.values()] == [(), ()]
    loss_plans.note_prefetched("a", Prefetched(0, 1, 5, True, ""))
    assert (loss_plans.reports["a"].held_bytes, loss_plans.reports["a"].complete) == (5, False)


def test_serving_master_orders_prefetch_and_shows_its_progress(story: Story) -> None:
    agent = two_machines(story)
    assert agent.count(Prefetch) == 0
    story.wait(6.0)
    (order,) = [message for message in agent.heard if isinstance(message, Prefetch)]
    assert order == Prefetch(0, 1, "pack-1", shares(1))
    assert (story.worker().disk_bytes, story.worker().stocked) == (0, False)
    agent.say(Prefetched(0, 1, 77, False, "the disk is full"))
    story.turn()
    assert (story.worker().disk_bytes, story.worker().not_stocked) == (77, "the disk is full")
    agent.say(Prefetched(0, 1, 99, True, ""))
    story.turn()
    assert (story.worker().disk_bytes, story.worker().stocked, story.worker().not_stocked) == (99, True, "")
    story.wait(60.0)
    assert agent.count(Prefetch) == 1


@pytest.mark.parametrize("leaves", [False, True])
def test_plan_after_a_loss_was_made_in_advance(story: Story, leaves: bool) -> None:
    for name in ("w-1", "w-2"):
        story.join(name)
    story.settle()
    story.wait(6.0)
    assert set(story.planned_for_losses) == {("w-1", "w-2"), ("w-1",), ("w-2",)}
    story.planned.clear()
    if leaves:
        story.agents["w-2"].frozen = True
    else:
        story.agents["w-2"].say(NodeEnded(story.epoch, "its process was killed"))
    story.wait_for(lambda: story.planned != [])
    assert set(story.planned) <= set(story.planned_for_losses)


LINK = LinkSpeed(1e-6, 1e12)
TWO = [machine("w-1", LINK), machine("w-2", LINK)]


def test_what_if_speed_grows_with_the_machines() -> None:
    less, more = what_if(placement(), TWO, "w-2"), what_if(placement(), TWO, "")
    assert less.now_s is not None
    assert less.then_s is not None
    assert more.then_s is not None
    assert more.then_s < less.now_s < less.then_s
    assert (less.machines, less.takes_part, less.why) == (2, True, "")
    assert (more.machines, more.takes_part, more.now_s) == (4, True, less.now_s)


def test_what_if_reports_an_indispensable_worker() -> None:
    found = what_if(placement(min_workers=2), TWO, "w-1")
    assert (found.then_s, found.machines) == (None, 0)
    assert "1 more worker needed" in found.why
    assert found.takes_part


def test_what_if_shows_one_more_machine_enables_a_plan() -> None:
    short = placement(memory_bytes=400 * MIB, min_workers=3)
    found = what_if(short, TWO, "")
    assert found.now_s is None
    assert found.then_s is not None
