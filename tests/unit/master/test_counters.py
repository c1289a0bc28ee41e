import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from tests.unit.api.test_cluster import STATS, after
from tests.unit.master.players import offer
from tests.unit.master.stories import Story, assignments_of, two_machines
from tpiedge.master.assignments import Assignment
from tpiedge.master.counters import STEPS, WINDOW_S, WINDOWS, Counted, CounterLog, Speeds
from tpiedge.master.roster import SLOWED_S, Machine, Roster
from tpiedge.wire.control import AskStats, Stats


def test_counter_interval_covers_only_the_last_seconds() -> None:
    log = CounterLog()
    for at in (0.0, 0.3, 1.7, 3.0, 6.2, 6.3, 11.9):
        log.add(after(STATS, 1, bytes_sent=10 * at), at)
        counted = log.counted(at)
        assert counted is not None
        assert counted.spent_s <= 6.0
        assert counted.latest.bytes_sent - counted.first.bytes_sent == pytest.approx(10 * counted.spent_s)
    assert (counted.spent_s, counted.first.bytes_sent) == (pytest.approx(5.7), 62.0)


def test_old_counters_are_not_used_for_rates() -> None:
    log = CounterLog()
    log.add(STATS, 0.0)
    log.add(after(STATS, 9), 60.0)
    assert log.counted(60.0) == Counted(after(STATS, 9), after(STATS, 9), 0.0)
    log.add(after(STATS, 12), 61.0)
    assert log.counted(62.0) == Counted(after(STATS, 12), after(STATS, 9), 1.0)
    assert log.counted(3600.0) == Counted(after(STATS, 12), after(STATS, 12), 0.0)


_NOTHING = Stats(1, 0, *([0] * 6), *([0.0] * 6), 0, 0, 0, 0, 0, 0.0, *([0] * 15))


class Nodes:
    def __init__(self, expected: Sequence[float]) -> None:
        self.speeds = Speeds(expected)
        self.now = 5.0
        self.counters = {rank: structs.replace(_NOTHING, rank=rank) for rank in range(len(expected))}
        self.speeds.update(dict(self.counters), self.now)

    def window(
        self, step_ffn_s: Sequence[float], steps: int = STEPS, tokens: int = 1, seconds: float = WINDOW_S
    ) -> dict[int, list[float]]:
        self.now += seconds
        for rank, ffn_s in enumerate(step_ffn_s):
            before = self.counters[rank]
            self.counters[rank] = structs.replace(
                before,
                steps=before.steps + steps,
                tokens=before.tokens + steps * tokens,
                ffn_s=before.ffn_s + steps * ffn_s,
            )
        self.speeds.update(dict(self.counters), self.now)
        return {rank: list(found) for rank, found in enumerate(self.speeds.slowdowns) if found}


@pytest.mark.parametrize(
    ("expected", "step_ffn_s", "off"),
    [
        ((1.0, 1.0), (0.1, 0.1), {1: 1.0}),
        ((1.0, 1.0), (0.1, 0.3), {1: 3.0}),
        ((1.0, 2.0), (0.1, 0.2), {1: 1.0}),
        ((1.0, 1.0), (0.4, 0.1), {1: 0.25}),
        ((1.0, 1.0, 1.0), (0.1, 0.1, 0.5), {1: 1.0, 2: 5.0}),
        ((0.0, 1.0, 1.0), (0.0, 0.1, 0.9), {}),
        ((1.0, 0.0), (0.1, 0.9), {}),
        ((1.0, 1.0), (0.0, 0.9), {}),
        ((1.0, 1.0), (0.1, 0.0), {}),
    ],
    ids=str,
)
def test_slowdown_is_measured_against_the_expected_time(
    expected: tuple[float, ...], step_ffn_s: tuple[float, ...], off: dict[int, float]
) -> None:
    nodes = Nodes(expected)
    for count in range(1, WINDOWS + 2):
        windows = min(count, WINDOWS)
        assert nodes.window(step_ffn_s) == {rank: pytest.approx([one] * windows) for rank, one in off.items()}


@pytest.mark.parametrize("between", [{"steps": STEPS - 1}, {"tokens": 9}, {"seconds": WINDOW_S / 2}], ids=str)
def test_unsuitable_windows_do_not_change_the_slowdown(between: dict) -> None:
    nodes = Nodes((1.0, 1.0))
    assert nodes.window((0.1, 0.4)) == {1: pytest.approx([4.0])}
    assert nodes.window((0.1, 0.1), **between) == {1: pytest.approx([4.0])}


@given(st.lists(st.tuples(st.floats(0, 1e9), st.integers(0, 2**32)), min_size=2, max_size=12))
def test_slowdown_is_positive_for_any_reported_counters(said: list[tuple[float, int]]) -> None:
    nodes = Nodes((1.0, 1.0))
    for ffn_s, steps in said:
        nodes.counters[1] = structs.replace(nodes.counters[1], ffn_s=ffn_s, steps=steps, tokens=steps)
        assert all(one > 0 for found in nodes.window((0.1,)).values() for one in found)


class Plans:
    def __init__(self) -> None:
        self.slowdowns: list[float] = []

    def __call__(self, machines: tuple[Machine, ...]) -> tuple[Assignment, ...]:
        if machines:  # the plan for its loss is made, too
            self.slowdowns = [machine.slowdown for machine in machines]
        return tuple(replace(one, ffn_s=1.0) for one in assignments_of(*(one.name for one in machines)))


@pytest.fixture
def plans(story: Story) -> Plans:
    story.plan = plans = Plans()
    two_machines(story)
    story.asked()
    return plans


def run(story: Story, windows: int, slowdown: float) -> None:
    for _ in range(round(windows * WINDOW_S)):
        for rank, seconds in enumerate((0.01, 0.01 * slowdown)[: len(story.members())]):
            node = story.node(rank, story.epoch)
            node.steps += 8
            node.ffn_s += 8 * seconds
        if story.root.asked:
            story.root.token()
        story.wait(1.0)


@pytest.mark.fault(
    "P17", "one that stays slow is planned with that speed during an answer, and the status says so"
)
def test_slowed_worker_is_planned_with_its_current_speed(story: Story, plans: Plans) -> None:
    run(story, 2, slowdown=1.0)
    asked, speed = story.root.count(AskStats), story.worker().speed
    run(story, WINDOWS + 2, slowdown=4.0)
    assert story.root.count(AskStats) - asked <= 3 * (WINDOWS + 2), "counters cost something"
    assert plans.slowdowns == [pytest.approx(4.0, rel=0.01)]
    assert "its arithmetic takes 4.0 times as long as it measured" in story.worker().why
    assert story.worker().speed == pytest.approx(speed / 4, rel=0.01)


def roster() -> Roster:
    found = Roster(1.5)
    found.offered("w-1", offer(), 0.0)
    return found


def machine(found: Roster) -> Machine:
    (only,) = found.present
    return only


@pytest.mark.parametrize(
    ("known", "shown", "slowdown"),
    [
        (1.0, (1.9, 3.0, 3.0), 1.0),
        (1.0, (2.0, 3.0, 9.0), 3.0),
        (1.0, (0.5, 0.4, 0.1), 0.4),
        (4.0, (3.0, 5.0, 7.0), 4.0),
        (4.0, (1.0, 1.1, 0.9), 1.0),
        (1.0, (1e300,), 16.0),
        (1.0, (1e-300,), 1 / 16),
        (16.0, (1e300,), 16.0),
        (4.0, (), 4.0),
        (4.0, None, 1.0),
    ],
)
def test_slowdown_changes_only_by_twice_or_more_up_to_sixteen(
    known: float, shown: tuple[float, ...] | None, slowdown: float
) -> None:
    """A machine without a part shows None."""
    found = roster()
    found.slowed({"w-1": (known,)}, 1.0)
    generation = found.generation
    found.slowed({} if shown is None else {"w-1": shown}, 1.0 + SLOWED_S)
    assert machine(found).slowdown == slowdown
    assert (found.generation != generation) == (slowdown != known)


def test_machine_without_a_part_loses_its_slowdown() -> None:
    found = roster()
    for time, shown in enumerate(({"w-1": (4.0,)}, {"w-1": (1.9,)}, {})):
        found.slowed(shown, time * SLOWED_S)
    assert machine(found).slowdown == 1.0


def test_fluctuating_slowdown_changes_at_most_every_ten_minutes() -> None:
    found, changed = roster(), []
    for second in range(4000):
        before = machine(found).slowdown
        found.slowed({"w-1": (4.0 if second // 40 % 2 else 1.0,)}, float(second))
        if machine(found).slowdown != before:
            changed.append(second)
    assert changed[0] == 40
    assert min(after - before for before, after in itertools.pairwise(changed)) >= SLOWED_S
