import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpiedge.engine.step_cost import StepCost
from tpiedge.model.blocks import Experts

MEASUREMENTS = st.lists(st.tuples(st.integers(1, 300), st.floats(0.001, 10)), min_size=1, max_size=60)


def learnt(*measured: tuple[int, float]) -> StepCost:
    cost = StepCost()
    for rows, seconds in measured:
        cost.measured(rows, seconds)
    return cost


def test_lasting_change_of_step_cost_is_followed() -> None:
    cost = learnt(*[(1, 1.0)] * 100, *[(1, 2.0)] * 4)
    assert cost.seconds(1) == 2.0


def test_rows_within_a_time_follow_the_measured_cost() -> None:
    cost = learnt((1, 1.0), (9, 3.0))
    assert [cost.rows_within(seconds, 100) for seconds in (0.5, 1.0, 2.0, 6.0)] == [None, 1, 5, 18]
    assert cost.rows_within(6.0, 7) == 7


def test_hopeful_cost_ignores_old_measurements() -> None:
    cost = learnt(*[(16, 9.0)] * 7, *[(1, 1.0)] * 256)
    assert cost.hopeful_seconds(16) == 9.0
    cost.measured(1, 1.0)
    assert cost.hopeful_seconds(16) == 1.0
    assert cost.seconds(16) == 9.0
    cost.measured(16, 2.0)
    cost.measured(16, 2.0)
    assert cost.hopeful_seconds(16) == cost.seconds(16) == 2.0


@given(MEASUREMENTS)
def test_estimated_cost_never_falls_with_more_rows(measured: list[tuple[int, float]]) -> None:
    cost = learnt(*measured)
    known = [seconds for rows in range(1, 400) if (seconds := cost.seconds(rows)) is not None]
    assert known == sorted(known)
    assert known[0] >= min(seconds for _, seconds in measured) * (1 - 1e-9)


@given(measured=MEASUREMENTS, seconds=st.floats(0.001, 20), most=st.integers(1, 300))
def test_rows_within_a_time_cost_at_most_that_time(
    measured: list[tuple[int, float]], seconds: float, most: int
) -> None:
    cost = learnt(*measured)
    rows = cost.rows_within(seconds, most)
    if rows is None:
        return
    assert 0 <= rows <= most
    assert (cost.seconds(rows) or 0.0) <= seconds
    if rows < most:
        assert (cost.seconds(rows + 1) or seconds) >= seconds


@pytest.mark.parametrize(
    ("fixed_s", "row_s"), [(0.5, 0.0005), (0.05, 0.015), (0.0, 0.07)], ids=["streamed", "in memory", "steep"]
)
def test_cost_estimate_is_accurate_with_noisy_steps(fixed_s: float, row_s: float) -> None:
    """Half of the steps take up to a third longer, one in ten three times as long. The median of few is near enough."""
    draw = random.Random(3)
    cost = StepCost()
    for _ in range(400):
        rows = draw.choice((1, 1, 1, 2, 4, 8, 16, 64, 300))
        noise = 3.0 if draw.random() < 0.1 else 1 + max(0.0, draw.uniform(-0.33, 0.33))
        cost.measured(rows, (fixed_s + row_s * rows) * noise)
    for rows in (1, 2, 3, 6, 8, 12, 16, 40, 64, 200, 300):
        assert cost.seconds(rows) == pytest.approx(1.08 * (fixed_s + row_s * rows), rel=0.25)


def test_cost_of_more_rows_counts_the_experts_that_they_touch() -> None:
    experts = Experts(128, 8, 768)
    cost = StepCost(experts.touched)
    for rows in (1, 2):
        for _ in range(3):
            cost.measured(rows, 1.0 + experts.touched(rows) + 2 * rows)
    assert cost.hopeful_seconds(16) == pytest.approx(1.0 + experts.touched(16) + 32)
    cost.measured(16, 1.0 + experts.touched(16) + 32)
    assert cost.seconds(5) == pytest.approx(1.0 + experts.touched(5) + 10)
    assert learnt(*[(1, 1.0), (2, 1.5)] * 3).hopeful_seconds(16) == 1.5


def test_hopeful_cost_of_experts_is_that_of_the_only_known_kind() -> None:
    cost = StepCost(Experts(128, 8, 768).touched)
    for _ in range(3):
        cost.measured(1, 1.0)
    assert cost.hopeful_seconds(16) == 1.0


@pytest.mark.parametrize(("count", "chosen", "rows"), [(128, 8, 47), (8, 2, 11), (4, 4, 1)])
def test_rows_that_touch_nearly_all_experts(count: int, chosen: int, rows: int) -> None:
    assert StepCost(Experts(count, chosen, 768).touched).rows_touching(0.95) == rows
    assert StepCost().rows_touching(0.95) == 1
