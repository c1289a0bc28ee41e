"""What a machine offers as its limits change and its nodes run out of memory, told as lists."""

import copy
from collections.abc import Callable

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tpiedge.launch.memory_offer import AGAIN, FIRST_S, LESS, LONGEST_S, PART, SETTLED_S, MemoryOffer
from tpiedge.units import format_seconds

GB = 10**9


@pytest.mark.parametrize(
    ("looks", "offered"),
    [
        ([(0, 4.0)], [4.0]),
        ([(0, 3.9), (2, 3.85)], [4.0, 4.0]),  # a few per cent lead to no new plan
        ([(0, 3.7)], [3.7]),
        ([(0, 2.0), (2, 1.0)], [2.0, 1.0]),  # less is offered at once
        ([(0, 2.0), (2, 4.0), (11, 4.0), (12, 4.0)], [2.0, 2.0, 2.0, 4.0]),  # more once it has settled
        ([(0, 2.0), (2, 4.0), (4, 2.0), (6, 4.0), (14, 4.0), (16, 4.0)], [2.0, 2.0, 2.0, 2.0, 2.0, 4.0]),
        ([(0, 2.0), (2, 2.1), (60, 2.1)], [2.0, 2.0, 2.0]),
        ([(0, 6.0), (10, 6.0)], [4.0, 6.0]),  # more than at first
        ([(0, 0.0), (2, 1.0), (12, 1.0)], [0.0, 0.0, 1.0]),
    ],
)
def test_what_is_offered_follows_the_limits(looks: list[tuple[float, float]], offered: list[float]) -> None:
    memory, found, lines = MemoryOffer(4 * GB), [], []
    for now, usable in looks:
        lines.append(memory.look(int(usable * GB), float(now)))
        found.append(memory.offered_bytes / GB)
    assert found == offered
    before = [4.0, *offered]
    assert [bool(line) for line in lines] == [
        one != other for one, other in zip(before, offered, strict=False)
    ]


def test_a_change_is_said() -> None:
    memory = MemoryOffer(4 * GB)
    line = "this machine has less memory for tpiedge now: it offers 1.0 GB (before: 4.0 GB)"
    assert memory.look(GB, 0.0) == line
    assert memory.reduced
    memory.look(5 * GB, 1.0)
    line = "this machine has more memory for tpiedge now: it offers 5.0 GB (before: 1.0 GB)"
    assert memory.look(5 * GB, 1.0 + SETTLED_S) == line
    assert not memory.reduced


def test_a_node_that_runs_out_though_nothing_changed_is_followed_by_a_smaller_one() -> None:
    """Each such end keeps it smaller for longer than the one before, so there is no loop."""
    memory, now, length_s = MemoryOffer(4 * GB), 0.0, FIRST_S
    said = memory.ran_out(2 * GB, 4 * GB, now)
    assert said == (
        "this machine ran out of memory with 2.0 GB planned for it: it offers 1.5 GB for the next 1 min 0 s; with "
        "--memory it never offers more than that"
    )
    for _ in range(10):
        assert memory.offered_bytes == LESS * 2 * GB
        assert memory.reduced
        memory.look(4 * GB, now + length_s - SETTLED_S - 1)
        assert not memory.look(4 * GB, now + length_s - 1), "the time is not over"
        memory.look(4 * GB, now + length_s)
        now += length_s + SETTLED_S
        assert memory.look(4 * GB, now)
        assert memory.offered_bytes == 4 * GB
        length_s = min(AGAIN * length_s, LONGEST_S)
        assert memory.ran_out(2 * GB, 4 * GB, now)
    assert length_s == LONGEST_S


def test_a_smaller_node_that_runs_out_too_is_followed_by_one_still_smaller() -> None:
    memory = MemoryOffer(4 * GB)
    memory.ran_out(4 * GB, 4 * GB, 0.0)
    assert memory.offered_bytes == 3 * GB
    memory.ran_out(2 * GB, 4 * GB, 5.0)
    assert memory.offered_bytes == 1.5 * GB
    memory.look(4 * GB, FIRST_S + SETTLED_S)
    assert not memory.look(4 * GB, FIRST_S + 2 * SETTLED_S), "the second time is longer"


def test_long_after_the_last_one_it_starts_anew() -> None:
    memory = MemoryOffer(4 * GB)
    memory.ran_out(0, 4 * GB, 0.0)
    memory.ran_out(0, 4 * GB, 1.0)
    assert "1 min 0 s" in memory.ran_out(0, 4 * GB, 1.0 + AGAIN * FIRST_S + LONGEST_S)


def test_a_limit_that_was_lowered_explains_the_end_of_a_node() -> None:
    """Then what may be used is offered, and nothing less, though it differs by a few per cent only."""
    memory = MemoryOffer(4 * GB)
    assert memory.ran_out(4 * GB, 39 * GB // 10, 0.0)
    assert memory.offered_bytes == 39 * GB // 10
    memory.look(2 * GB, 1.0)
    assert memory.ran_out(3 * GB, 2 * GB, 2.0) == "", "the plan was made before the limit was lowered"
    assert memory.offered_bytes == 2 * GB


def test_a_limit_that_rises_ends_the_time_of_less() -> None:
    memory = MemoryOffer(4 * GB)
    memory.ran_out(4 * GB, 4 * GB, 0.0)
    memory.look(8 * GB, 1.0)
    assert memory.look(8 * GB, 1.0 + SETTLED_S)
    assert memory.offered_bytes == 8 * GB


def test_both_a_limit_and_an_end_bound_the_offer() -> None:
    memory = MemoryOffer(4 * GB)
    memory.ran_out(4 * GB, 4 * GB, 0.0)
    memory.look(2 * GB, 1.0)
    assert memory.offered_bytes == 2 * GB
    memory.look(4 * GB, 2.0)
    memory.look(4 * GB, 2.0 + SETTLED_S)
    assert memory.offered_bytes == 3 * GB


def test_a_plan_that_does_not_say_what_it_gives_is_taken_for_the_whole_offer() -> None:
    memory = MemoryOffer(4 * GB)
    memory.ran_out(0, 4 * GB, 0.0)
    assert memory.offered_bytes == 3 * GB


def test_a_node_of_a_plan_from_before_the_last_end_shows_nothing_new() -> None:
    """It was ordered while more was offered: the machine is not made smaller twice for one plan."""
    memory = MemoryOffer(4 * GB)
    memory.ran_out(4 * GB, 4 * GB, 0.0)
    assert memory.ran_out(4 * GB, 4 * GB, 1.0) == ""
    assert memory.offered_bytes == 3 * GB
    assert "4 min 0 s" in memory.ran_out(3 * GB, 4 * GB, 2.0), "the second time, and not the third"


def test_a_limit_that_rises_for_a_moment_does_not_end_the_time_of_less() -> None:
    memory = MemoryOffer(4 * GB)
    memory.ran_out(4 * GB, 4 * GB, 0.0)
    memory.look(8 * GB, 2.0)
    for now in (4.0, 14.0, 24.0):
        assert memory.look(4 * GB, now) == ""
    assert memory.offered_bytes == 3 * GB


class Limits(RuleBasedStateMachine):
    """Limits rise and fall, and nodes run out of memory: those of the plan of now, or of one that was made before."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = MemoryOffer(4 * GB)
        self.now, self.usable = 0.0, 4 * GB
        #: Since when it may use so much, and of the last end that showed something: the most that may be offered, until
        #: when, and with which limit.
        self.since = 0.0
        self.most, self.until, self.limit = 8 * GB, 0.0, 0
        self.length_s = 0.0

    @rule(wait_s=st.floats(0.0, 200.0) | st.sampled_from([2.0, SETTLED_S, FIRST_S, LONGEST_S]))
    def wait(self, wait_s: float) -> None:
        self.now += wait_s
        self.look()

    @rule(usable=st.integers(0, 8 * GB) | st.sampled_from([2 * GB, 4 * GB, 8 * GB]))
    def change(self, usable: int) -> None:
        self.since, self.usable = self.now, usable
        self.look()

    @rule()
    def look(self) -> None:
        self.check_said(lambda: self.memory.look(self.usable, self.now))

    @rule(planned=st.integers(0, 8 * GB) | st.none())
    def run_out(self, planned: int | None) -> None:
        """None: of the plan that was made for what is offered."""
        before = self.memory.offered_bytes
        planned = before if planned is None else planned
        line = self.check_said(lambda: self.memory.ran_out(planned, self.usable, self.now))
        assert self.memory.offered_bytes <= before, "no such end lets it offer more"
        if planned <= min(self.usable, before):
            again = self.length_s and self.now < self.until + LONGEST_S
            self.length_s = min(AGAIN * self.length_s, LONGEST_S) if again else FIRST_S
            self.most, self.limit = int(LESS * (planned or before)), self.usable
            self.until = self.now + self.length_s
            assert format_seconds(self.length_s) in line, "longer each time, up to a day"
            assert self.memory.offered_bytes == min(self.most, self.usable)
        elif line:
            assert self.memory.offered_bytes <= self.usable
        self.look()

    @rule()
    def insist(self) -> None:
        """There is no plan with so little."""
        self.until = min(self.until, self.now)
        self.check_said(lambda: self.memory.insist(self.usable, self.now))
        assert self.memory.offered_bytes * (1 + PART) >= self.usable

    def check_said(self, call: Callable[[], str]) -> str:
        before = self.memory.offered_bytes
        line = call()
        assert bool(line) >= (self.memory.offered_bytes != before), "a change is said"
        return line

    @invariant()
    def laws(self) -> None:
        offered = self.memory.offered_bytes
        assert offered * (1 - PART) <= self.usable
        if self.now < self.until and self.usable <= self.limit:
            assert offered <= self.most / (1 - PART), "for a while after such an end it offers less"

    @invariant()
    def what_has_settled_is_offered(self) -> None:
        """Whatever came before; looked at often enough."""
        memory = copy.deepcopy(self.memory)
        now = max(self.now, self.until)
        for wait_s in (0.0, SETTLED_S + 1):
            memory.look(self.usable, now + wait_s)
        assert memory.offered_bytes * (1 + PART) >= self.usable


TestLimits = Limits.TestCase
