"""Who is slower than the plan expects: as tables of counters, and in a master that plans anew."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.master.stories import Story, assignments_of, two_machines
from tpiedge.master.assignments import Assignment
from tpiedge.master.pace import AGREEING, STEPS, WINDOW_S, Pace
from tpiedge.master.roster import Machine
from tpiedge.wire.control import AskStats, Stats
from tpiedge.wire.requests import GenerationRequest

_NOTHING = Stats(1, 0, *([0] * 6), *([0.0] * 6), 0, 0, 0, 0, 0, 0.0, *([0] * 8))


class Nodes:
    """Take steps: `paces` is the FFN of one, in seconds, by rank."""

    def __init__(self, expected: Sequence[float]) -> None:
        self.pace = Pace(expected)
        self.now = 5.0
        self.believed: dict[int, float] = {}
        self.counters = {rank: replace(_NOTHING, rank=rank) for rank in range(len(expected))}
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
            self.counters[rank] = replace(
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
        ((0.0, 1.0, 1.0, 1.0), (0.0, 0.0, 0.1, 0.9), {}),
        ((0.0, 1.0, 1.0, 0.0), (0.0, 0.1, 0.9, 0.9), {}),
        ((0.0, 1.0, 1.0, 1.0), (0.0, 0.1, 0.3, 0.1), {2: 3.0}),
        ((0.0, 1.0, 1.0, 1.0, 1.0), (0.0, 0.1, 0.1, 0.9, 0.9), {3: 9.0, 4: 9.0}),
        ((0.0, 1.0, 1.0, 1.0), (0.0, 0.3, 0.1, 0.3), {2: 1 / 3}),
        ((0.0, 1.0), (0.0, 0.9), {}),
        ((0.0, 1.0, 1.0), (0.0, 0.0, 0.0), {}),
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


def test_where_rank_0_has_no_ffn_what_is_believed_counts_for_those_it_is_compared_with() -> None:
    nodes = Nodes((0.0, 1.0, 1.0, 1.0))
    nodes.believed = {1: 4.0, 2: 4.0}
    assert [nodes.window((0.0, 0.4, 0.4, 0.1)) for _ in range(AGREEING)] == [{}] * AGREEING
    assert [nodes.window((0.0, 0.1, 0.1, 0.1)) for _ in range(AGREEING)] == [{}] * (AGREEING - 1) + [
        {3: pytest.approx(4.0)}
    ]


@given(
    st.lists(st.floats(1.0, 1.9), min_size=1, max_size=5),
    st.integers(0, 5),
    st.sampled_from((0.0, 0.01, 100.0)),
)
def test_one_worker_s_word_finds_no_honest_one_off_its_pace(
    honest: list[float], place: int, said: float
) -> None:
    """Of workers that are about as fast as they measured, beside a rank 0 without FFN."""
    liar = 1 + place % (len(honest) + 1)
    nodes = Nodes([0.0] + [1.0] * (len(honest) + 1))
    for _ in range(AGREEING):
        assert set(nodes.window([0.0, *honest[: liar - 1], said, *honest[liar - 1 :]])) <= {liar}


@pytest.mark.parametrize(
    "between",
    [
        {"paces": (0.1, 0.1)},
        {"paces": (0.1, 0.03)},
    ],
    ids=str,
)
def test_one_window_that_does_not_agree_is_enough_to_wait(between: dict) -> None:
    nodes = Nodes((1.0, 1.0))
    for window in (*[{"paces": (0.1, 0.4)}] * (AGREEING - 1), between, {"paces": (0.1, 0.4)}):
        assert nodes.window(**window) == {}


@pytest.mark.parametrize("between", [{"steps": STEPS - 1}, {"tokens": 9}, {"seconds": WINDOW_S / 2}], ids=str)
def test_windows_that_do_not_count_change_nothing(between: dict) -> None:
    """Too few steps, many tokens in each, too short."""
    nodes = Nodes((1.0, 1.0))
    for _ in range(AGREEING - 1):
        assert nodes.window((0.1, 0.4)) == {}
    assert nodes.window((0.1, 0.1) if "tokens" in between else (0.1, 0.4), **between) == {}
    assert nodes.window((0.1, 0.4)) == {1: pytest.approx(4.0)}


def test_who_says_nothing_or_nonsense_of_itself_changes_nothing_for_others() -> None:
    nodes = Nodes((1.0, 1.0, 1.0))
    del nodes.counters[1]
    for window in range(AGREEING):
        found = nodes.window_of({0: 0.1, 2: 0.4})
        assert found == ({2: pytest.approx(4.0)} if window == AGREEING - 1 else {})


@given(st.lists(st.tuples(st.floats(0, 1e9), st.integers(0, 2**32)), min_size=2, max_size=12))
def test_whatever_a_worker_says_its_slowdown_is_a_positive_number(said: list[tuple[float, int]]) -> None:
    nodes = Nodes((1.0, 1.0))
    for ffn_s, steps in said:
        nodes.counters[1] = replace(nodes.counters[1], ffn_s=ffn_s, steps=steps, tokens=steps)
        assert all(off > 0 for off in nodes.window_of({0: 0.1}).values())


def test_without_rank_0s_counters_nothing_is_known() -> None:
    pace = Pace((1.0, 1.0))
    assert pace.off({1: _NOTHING}, {}, 0.0) == pace.off({1: _NOTHING}, {}, 99.0) == {}


# --- in a master


class Plans:
    """Of everybody; notes how slow the machines are thought to be. Those that take more than `most` times as long as
    they measured have no part."""

    def __init__(self) -> None:
        self.slowdowns: list[float] = []
        self.most = 100.0
        #: How many may have a part.
        self.others = 9

    def __call__(self, machines: tuple[Machine, ...]) -> tuple[Assignment, ...]:
        if machines:  # the plan for its loss is made, too
            self.slowdowns = [machine.slowdown for machine in machines]
        taken = [machine.name for machine in machines if machine.slowdown <= self.most][: self.others]
        return tuple(replace(one, ffn_s=1.0) for one in assignments_of(*taken))  # all are planned as equals


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


def test_a_plan_for_a_slow_worker_is_worth_its_pause_too(story: Story, plans: Plans) -> None:
    """It is not predicted faster than the plan that serves was, but faster than that is now."""
    story.step_s = lambda machines: 1.0 + sum(machine.slowdown > 1 for machine in machines)
    story.root.finish()
    story.turn()
    plans.others = 1
    story.join("w-2")
    story.wait(4.0)
    assert story.members() == ("master", "w-1")
    story.master.submit(GenerationRequest("r-9", tuple(range(200)), 30))
    story.turn()
    story.wait(100.0)  # so long it takes to read its prompt
    run(story, 1, pace=1.0)
    epoch = story.epoch
    plans.others = 2
    run(story, AGREEING + 2, pace=4.0)
    assert story.epoch == epoch
    assert story.worker("w-2").state == "prepared"
    run(story, 28, pace=4.0)  # half of the time is saved
    assert story.epoch > epoch


def test_a_worker_that_is_fast_again_gets_more_again(story: Story, plans: Plans) -> None:
    run(story, AGREEING + 3, pace=4.0)
    assert plans.slowdowns == [pytest.approx(4.0, rel=0.01)]
    run(story, 2 * AGREEING, pace=4.0)
    assert plans.slowdowns == [pytest.approx(4.0, rel=0.01)], (
        "the same shares, the same epoch: known is known"
    )
    run(story, AGREEING + 3, pace=1.0)
    assert plans.slowdowns == [pytest.approx(1.0, rel=0.01)]


def test_a_slow_worker_without_a_part_is_tried_again_after_a_while(story: Story, plans: Plans) -> None:
    plans.most = 2.0
    run(story, AGREEING + 3, pace=4.0)
    story.settle()
    assert story.members() == ("master",)
    story.wait(500.0)
    assert story.members() == ("master",)
    story.wait(150.0)
    assert story.members() == ("master", "w-1")
