"""What a machine offers as its limits change and its nodes run out of memory, told as lists."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpiedge.worker.memory_offer import AGAIN, FIRST_S, LESS, LONGEST_S, PART, SETTLED_S, MemoryOffer

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
    memory.ran_out(GB, 4 * GB, 0.0)
    memory.ran_out(GB, 4 * GB, 1.0)
    assert "1 min 0 s" in memory.ran_out(GB, 4 * GB, 1.0 + AGAIN * FIRST_S + LONGEST_S)


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


_EVENTS = st.lists(
    st.tuples(st.floats(0.0, 200.0), st.integers(0, 8 * GB), st.none() | st.integers(0, 8 * GB)), max_size=30
)


@given(_EVENTS)
def test_it_never_offers_much_more_than_may_be_used_and_nothing_changes_unsaid(
    events: list[tuple[float, int, int | None]],
) -> None:
    memory, now = MemoryOffer(4 * GB), 0.0
    for wait_s, usable, planned in events:
        now += wait_s
        before = memory.offered_bytes
        if planned is None:
            line = memory.look(usable, now)
        else:
            line = memory.ran_out(planned, usable, now)
            assert memory.offered_bytes <= before
            line += memory.look(usable, now)
        assert memory.offered_bytes * (1 - PART) <= usable
        assert bool(line) or memory.offered_bytes == before
