"""What nodes say of themselves: rates, the steps that all recorded, and who is slower than the plan expects."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from tests.unit.api.test_cluster import STATS, after
from tests.unit.master.players import offer
from tests.unit.master.stories import Story, assignments_of, two_machines
from tpiedge.master.assignments import Assignment
from tpiedge.master.counters import (
    AGREEING,
    STEPS,
    WINDOW_S,
    Counted,
    CounterLog,
    Pace,
    note_speeds,
)
from tpiedge.master.roster import Machine, Roster
from tpiedge.wire.control import AskStats, Stats


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


_NOTHING = Stats(1, 0, *([0] * 6), *([0.0] * 6), 0, 0, 0, 0, 0, 0.0, *([0] * 8))


class Nodes:
    """Take steps: `paces` is the FFN of one, in seconds, by rank."""

    def __init__(self, expected: Sequence[float]) -> None:
        self.pace = Pace(expected)
        self.now = 5.0
        self.believed: dict[int, float] = {}
        self.counters = {rank: structs.replace(_NOTHING, rank=rank) for rank in range(len(expected))}
        assert self.pace.off(self.counters, self.believed, self.now) == {}

    def window(
        self, paces: Sequence[float], steps: int = STEPS, tokens: int = 1, seconds: float = WINDOW_S
    ) -> dict[int, float]:
        return self.window_of(dict(enumerate(paces)), steps, tokens, seconds)

    def window_of(
        self, paces: Mapping[int, float], steps: int = STEPS, tokens: int = 1, seconds: float = WINDOW_S
    ) -> dict[int, float]:
        """Of those ranks."""
        self.now += seconds
        for rank, pace in paces.items():
            before = self.counters[rank]
            self.counters[rank] = structs.replace(
                before,
                steps=before.steps + steps,
                tokens=before.tokens + steps * tokens,
                ffn_s=before.ffn_s + steps * pace,
            )
        return dict(self.pace.off(self.counters, self.believed, self.now))


@pytest.mark.parametrize(
    ("expected", "paces", "off"),
    [
        ((1.0, 1.0), (0.1, 0.1), {}),
        ((1.0, 1.0), (0.1, 0.19), {}),
        ((1.0, 1.0), (0.1, 0.3), {1: 3.0}),
        ((1.0, 2.0), (0.1, 0.2), {}),
        ((1.0, 1.0), (0.4, 0.1), {1: 0.25}),
        ((1.0, 1.0, 1.0), (0.1, 0.1, 0.5), {2: 5.0}),
        ((1.0, 1.0, 1.0), (0.5, 0.1, 0.1), {1: 0.2, 2: 0.2}),
        ((0.0, 1.0, 1.0), (0.0, 0.1, 0.9), {}),
        ((1.0, 0.0), (0.1, 0.9), {}),
        ((1.0, 1.0), (0.0, 0.9), {}),
    ],
    ids=str,
)
def test_who_is_off_by_twice_or_more_in_all_of_the_windows(
    expected: tuple[float, ...], paces: tuple[float, ...], off: dict[int, float]
) -> None:
    nodes = Nodes(expected)
    for _ in range(AGREEING - 1):
        assert nodes.window(paces) == {}
    assert nodes.window(paces) == pytest.approx(off)
    for _ in range(AGREEING - 1):
        assert nodes.window(paces) == {}, "it is said once"


def test_what_is_believed_is_not_said_again_and_the_end_of_it_is() -> None:
    nodes = Nodes((1.0, 1.0))
    nodes.believed = {1: 4.0}
    assert [nodes.window((0.1, 0.4)) for _ in range(2 * AGREEING)] == [{}] * 2 * AGREEING
    assert [nodes.window((0.1, 0.1)) for _ in range(AGREEING)] == [{}] * (AGREEING - 1) + [
        {1: pytest.approx(1.0)}
    ]


@pytest.mark.parametrize("between", [{"steps": STEPS - 1}, {"tokens": 9}, {"seconds": WINDOW_S / 2}], ids=str)
def test_windows_that_do_not_count_change_nothing(between: dict) -> None:
    """Too few steps, many tokens in each, too short."""
    nodes = Nodes((1.0, 1.0))
    for _ in range(AGREEING - 1):
        assert nodes.window((0.1, 0.4)) == {}
    assert nodes.window((0.1, 0.1) if "tokens" in between else (0.1, 0.4), **between) == {}
    assert nodes.window((0.1, 0.4)) == {1: pytest.approx(4.0)}


@given(st.lists(st.tuples(st.floats(0, 1e9), st.integers(0, 2**32)), min_size=2, max_size=12))
def test_whatever_a_worker_says_its_slowdown_is_a_positive_number(said: list[tuple[float, int]]) -> None:
    nodes = Nodes((1.0, 1.0))
    for ffn_s, steps in said:
        nodes.counters[1] = structs.replace(nodes.counters[1], ffn_s=ffn_s, steps=steps, tokens=steps)
        assert all(off > 0 for off in nodes.window_of({0: 0.1}).values())


# --- in a master


class Plans:
    """Of everybody, as equals; notes how slow the machines are thought to be."""

    def __init__(self) -> None:
        self.slowdowns: list[float] = []

    def __call__(self, machines: tuple[Machine, ...]) -> tuple[Assignment, ...]:
        if machines:  # the plan for its loss is made, too
            self.slowdowns = [machine.slowdown for machine in machines]
        return tuple(replace(one, ffn_s=1.0) for one in assignments_of(*(one.name for one in machines)))


@pytest.fixture
def plans(story: Story) -> Plans:
    """The master and a worker answer a request."""
    story.plan = plans = Plans()
    two_machines(story)
    story.submit()
    story.turn()
    return plans


def run(story: Story, windows: int, pace: float) -> None:
    """Steps whose arithmetic takes the worker `pace` times as long as the master."""
    for _ in range(round(windows * WINDOW_S)):
        for rank, seconds in enumerate((0.01, 0.01 * pace)[: len(story.members())]):
            node = story.node(rank, story.epoch)
            node.steps += 8
            node.ffn_s += 8 * seconds
        if story.root.asked:
            story.root.token()
        story.wait(1.0)


def test_a_worker_that_got_slow_is_planned_with_the_speed_that_it_has(story: Story, plans: Plans) -> None:
    run(story, 2, pace=1.0)
    asked, speed = story.root.count(AskStats), story.worker().speed
    run(story, AGREEING + 2, pace=4.0)
    assert story.root.count(AskStats) - asked <= 3 * (AGREEING + 2), "counters cost something"
    assert plans.slowdowns == [pytest.approx(4.0, rel=0.01)]
    assert "its arithmetic takes 4.0 times as long as it measured" in story.worker().why
    assert story.worker().speed == pytest.approx(speed / 4, rel=0.01)


class Shown:
    """A session whose only worker shows this slowdown, whatever is believed; none once it has no part."""

    def __init__(self, slowdown: float) -> None:
        self.slowdown = slowdown
        self.machines = ("w-1",)

    def slowdowns(self, believed: dict[str, float]) -> dict[str, float]:
        assert set(believed) == {"w-1"}
        return dict.fromkeys(self.machines, self.slowdown)


def roster() -> Roster:
    found = Roster(1.5)
    found.offered("w-1", offer("w-1"), 0.0)
    return found


def known(found: Roster) -> Machine:
    (machine,) = found.present
    return machine


@given(st.floats(1e-300, 1e300))
def test_no_slowdown_is_beyond_sixteen_and_what_hardly_differs_is_the_same(slowdown: float) -> None:
    found = roster()
    found.slowed("w-1", slowdown, 1.0)
    assert 1 / 16 <= known(found).slowdown <= 16
    assert abs(2 * math.log2(known(found).slowdown) - round(2 * math.log2(known(found).slowdown))) < 1e-9
    generation = found.generation
    found.slowed("w-1", known(found).slowdown * 1.1, 2.0)
    assert found.generation == generation


def test_who_is_slow_now_and_then_is_so_for_longer_each_time() -> None:
    found, changed = roster(), []
    for second in range(4000):
        before = known(found).slowdown
        shown = Shown(4.0 if second // 40 % 2 else 1.0)
        note_speeds(found, shown.machines, shown.slowdowns, float(second))
        if known(found).slowdown != before:
            changed.append(second)
    assert len(changed) <= 12, "not with each of the hundred changes"
    assert changed[0] <= 80
