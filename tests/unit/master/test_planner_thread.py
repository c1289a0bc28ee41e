"""Plans that take long: the master is heard meanwhile, and what was planned counts."""

import threading
from collections.abc import Iterable
from dataclasses import replace

import pytest

from tests.unit.master.players import offer
from tests.unit.master.stories import Story, two_machines
from tpiedge.master.assignments import Assignments, NoPlan
from tpiedge.master.planner_thread import _FAILED_S, PlannerThread
from tpiedge.master.planning import StillPlanning
from tpiedge.master.roster import Machine
from tpiedge.testing.clock import ManualClock
from tpiedge.wire.epochs import MasterPulse
from tpiedge.wire.probing import LinkSpeed

_WAIT_S = 10.0
_AT_ONCE_S = 0.001


def machine(name: str, heard: float = 0.0, threads: int = 1) -> Machine:
    return Machine(name, offer(name, threads=threads), heard, 0.0)


class Planner:
    """Plans for so long as it is told to."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []
        self.goes_on, self.told = threading.Event(), threading.Event()
        self.error: Exception | None = None

    def __call__(self, machines: tuple[Machine, ...], _serving: tuple[str, ...]) -> Assignments | NoPlan:
        self.asked.append(tuple(one.name for one in machines))
        assert self.goes_on.wait(_WAIT_S)
        if self.error is not None:
            raise self.error
        return NoPlan(f"asked {len(self.asked)} times")


def answer_to(
    plan: PlannerThread, planner: Planner, question: tuple[tuple[Machine, ...], tuple[str, ...]]
) -> Assignments | NoPlan:
    """As soon as it is there."""
    while True:
        planner.told.clear()
        try:
            return plan(*question)
        except StillPlanning:
            assert planner.told.wait(_WAIT_S)


def test_what_is_planned_ahead_is_never_waited_for_and_is_there_when_it_is_needed() -> None:
    planner = Planner()
    plan = PlannerThread(planner, planner.told.set, 60.0)
    question = ((machine("w-1"),), ())
    with pytest.raises(StillPlanning):
        plan.ahead(*question)
    planner.goes_on.set()
    assert planner.told.wait(_WAIT_S)
    assert plan.ahead(*question) == plan(*question) == NoPlan("asked 1 times")


def test_a_plan_made_ahead_that_fails_says_so() -> None:
    planner = Planner()
    planner.error = OverflowError("too large")
    planner.goes_on.set()
    plan = PlannerThread(planner, planner.told.set, _WAIT_S)
    with pytest.raises(StillPlanning):
        plan.ahead((), ())
    assert planner.told.wait(_WAIT_S)
    with pytest.raises(OverflowError):
        plan.ahead((), ())


def test_a_plan_that_takes_no_time_is_there_at_once() -> None:
    planner = Planner()
    planner.goes_on.set()
    plan = PlannerThread(planner, planner.told.set, _WAIT_S)
    assert plan((machine("w-1"),), ()) == NoPlan("asked 1 times")
    assert planner.told.is_set()


def test_who_asks_for_a_long_plan_goes_on_and_asks_again() -> None:
    planner = Planner()
    plan = PlannerThread(planner, planner.told.set, _AT_ONCE_S)
    for heard in (1.0, 2.0):  # which changes nothing of the plan
        with pytest.raises(StillPlanning):
            plan((machine("w-1", heard),), ())
    planner.goes_on.set()
    assert planner.told.wait(_WAIT_S)
    assert plan((machine("w-1", 3.0),), ()) == NoPlan("asked 1 times")
    assert planner.asked == [("w-1",)]


@pytest.mark.parametrize(
    "other",
    [
        ((machine("w-1", threads=7),), ()),
        ((replace(machine("w-1"), link=LinkSpeed(0.1, 1e6)),), ()),
        ((machine("w-1"),), ("w-1",)),
        ((machine("w-1"), machine("w-2")), ()),
    ],
    ids=["offer", "link", "serving", "machines"],
)
def test_another_question_gets_its_own_answer(other: tuple[tuple[Machine, ...], tuple[str, ...]]) -> None:
    planner = Planner()
    plan = PlannerThread(planner, planner.told.set, _AT_ONCE_S)
    with pytest.raises(StillPlanning):
        plan((machine("w-1"),), ())
    with pytest.raises(StillPlanning):
        plan(*other)
    assert len(planner.asked) == 1, "one plan at a time"
    planner.goes_on.set()
    assert planner.told.wait(_WAIT_S)
    assert answer_to(plan, planner, other) == NoPlan("asked 2 times")


def test_a_planner_that_fails_fails_in_the_thread_that_asks() -> None:
    planner = Planner()
    planner.goes_on.set()
    planner.error = OverflowError("inf")
    plan = PlannerThread(planner, planner.told.set, _WAIT_S)
    for _ in range(2):
        with pytest.raises(OverflowError, match="inf"):
            plan((machine("w-1"),), ())
    assert len(planner.asked) == 1


def test_a_failure_that_nobody_asked_for_meanwhile_is_forgotten() -> None:
    """It may have been for want of memory; who seemed to be to blame was left out meanwhile."""
    planner, clock = Planner(), ManualClock()
    planner.goes_on.set()
    planner.error = MemoryError()
    plan = PlannerThread(planner, planner.told.set, _WAIT_S, clock)
    for _ in range(3):  # those that ask for it keep it
        with pytest.raises(MemoryError):
            plan((machine("w-1"),), ())
        clock.advance(0.9 * _FAILED_S)
    assert len(planner.asked) == 1
    clock.advance(0.2 * _FAILED_S)
    planner.error = None
    assert plan((machine("w-1"),), ()) == NoPlan("asked 2 times")
    clock.advance(2 * _FAILED_S)
    assert plan((machine("w-1"),), ()) == NoPlan("asked 2 times"), "plans are kept"


def test_a_failure_keeps_nothing_of_the_plan_that_was_tried() -> None:
    planner = Planner()
    planner.goes_on.set()
    planner.error = error = OverflowError("inf")
    with pytest.raises(StillPlanning):
        PlannerThread(planner, planner.told.set).ahead((), ())
    assert planner.told.wait(_WAIT_S)
    assert error.__traceback__ is None


def test_where_the_system_gives_no_thread_the_plan_is_made_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    planner = Planner()
    planner.goes_on.set()
    plan = PlannerThread(planner, planner.told.set)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        assert plan((machine("w-1"),), ()) == NoPlan("asked 1 times")
    assert answer_to(plan, planner, ((machine("w-2"),), ())) == NoPlan("asked 2 times")


def asks(plan: PlannerThread, names: Iterable[str]) -> None:
    for name in names:
        plan((machine(name),), ())


def test_the_answers_that_were_asked_for_last_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tpiedge.master.planner_thread._MOST_ANSWERS", 3)
    planner = Planner()
    planner.goes_on.set()
    plan = PlannerThread(planner, planner.told.set, _WAIT_S)
    asks(plan, "abc")
    asks(plan, "ad")
    assert planner.asked == [(name,) for name in "abcd"]
    asks(plan, "acd")
    assert len(planner.asked) == 4
    asks(plan, "b")
    assert planner.asked[4:] == [("b",)]


def foresee(plan: PlannerThread, planner: Planner, names: Iterable[str]) -> None:
    for name in names:
        planner.told.clear()
        try:
            plan.ahead((machine(name),), ())
        except StillPlanning:
            assert planner.told.wait(_WAIT_S)
            plan.ahead((machine(name),), ())


@pytest.mark.parametrize("known", ["", "a"])
def test_no_other_question_takes_the_place_of_an_answer_that_was_made_ahead(
    monkeypatch: pytest.MonkeyPatch, known: str
) -> None:
    """Nor where somebody else had asked for it before."""
    monkeypatch.setattr("tpiedge.master.planner_thread._MOST_ANSWERS", 2)
    planner = Planner()
    planner.goes_on.set()
    plan = PlannerThread(planner, planner.told.set, _WAIT_S)
    asks(plan, known)
    foresee(plan, planner, "ab")
    asks(plan, "pqrs")
    asks(plan, "ab")
    assert planner.asked == [(name,) for name in "abpqrs"]


def test_a_plan_that_failed_for_somebody_else_is_made_ahead_again_once_it_is_forgotten() -> None:
    planner, clock = Planner(), ManualClock()
    planner.goes_on.set()
    planner.error = MemoryError()
    plan = PlannerThread(planner, planner.told.set, _WAIT_S, clock)
    with pytest.raises(MemoryError):
        asks(plan, "a")
    planner.error = None
    clock.advance(2 * _FAILED_S)
    foresee(plan, planner, "a")
    asks(plan, "a")
    assert planner.asked == [("a",), ("a",)]


def test_the_master_is_heard_and_serves_while_it_plans(story: Story) -> None:
    agent = two_machines(story)
    planner, epoch = story.plan, story.epoch

    def never_there(_machines: tuple[Machine, ...]) -> str:
        raise StillPlanning

    story.plan = never_there
    story.join("w-2")
    told = agent.count(MasterPulse)
    story.wait(10.0)
    assert agent.count(MasterPulse) - told > 20
    assert (story.epoch, story.members()) == (epoch, ("master", "w-1"))
    story.answer()
    story.plan = planner
    story.settle()
    assert story.members() == ("master", "w-1", "w-2")
