"""What answers come to, by hand: percentiles, gaps, and the rate while all answer."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpiedge.lab.bench.serve_figures import (
    LongPromptFigures,
    RoundFigures,
    TimedAnswer,
    distribution,
    gaps_within,
    percentile,
    rate_while_all_answer,
    spread_of,
    spreads,
)


def answer(sent_s: float, *token_s: float, ended_s: float | None = None, error: str = "") -> TimedAnswer:
    return TimedAnswer(sent_s, token_s, token_s[-1] if ended_s is None else ended_s, 8, error)


def test_percentiles_are_values_that_occurred() -> None:
    values = [float(value) for value in range(100, 0, -1)]
    assert [percentile(values, percent) for percent in (1, 50, 90, 99, 100)] == [1, 50, 90, 99, 100]
    assert [percentile([3.0], percent) for percent in (0, 50, 99)] == [3, 3, 3]
    assert percentile([1.0, 2.0, 3.0, 4.0], 50) == 2
    assert distribution([]) is None
    assert distribution([2.0, 1.0]) == {"p50": 1, "p90": 2, "p99": 2, "max": 2}


@given(st.lists(st.floats(0, 1e6), min_size=1), st.integers(1, 100))
def test_so_many_values_are_not_above_a_percentile(values: list[float], percent: int) -> None:
    found = percentile(values, percent)
    assert found in values
    assert 100 * sum(value <= found for value in values) >= percent * len(values)
    assert 100 * sum(value < found for value in values) < percent * len(values)


def test_an_answer() -> None:
    found = answer(1.0, 1.5, 1.75, 1.75, 2.5)
    assert found.first_s == 0.5
    assert found.gaps_s == (0.25, 0.0, 0.75)
    nothing = TimedAnswer(1.0, (), 2.0, 8, "broke")
    assert (nothing.first_s, nothing.gaps_s) == (None, ())


def test_gaps_that_have_a_part_of_some_time() -> None:
    answers = [answer(0, 1, 2, 4, 8), answer(0, 5)]
    assert gaps_within(answers, 2, 4) == [2]
    assert gaps_within(answers, 3, 5) == [2, 4]
    assert gaps_within(answers, 8, 9) == []


def test_the_rate_while_all_answer_counts_no_prompt_and_no_missing_client() -> None:
    # Both answer from 2 to 4 alone; in it there are four tokens, after those at 2.
    both = [answer(0, 1, 2, 3, 4), answer(0, 2, 3, 4, 5)]
    assert rate_while_all_answer(both, 2) == 2
    assert rate_while_all_answer(both, 1) == 1  # from 1 to 2 and from 4 to 5
    assert rate_while_all_answer(both, 3) is None
    assert rate_while_all_answer([], 1) is None
    one_after_the_other = [answer(0, 1, 2), answer(2, 3, 4)]
    assert rate_while_all_answer(one_after_the_other, 2) is None


@given(st.integers(1, 5), st.integers(2, 30), st.floats(0.001, 10))
def test_streams_in_step_have_the_rate_of_their_steps(clients: int, tokens: int, step_s: float) -> None:
    answers = [answer(0, *(step_s * number for number in range(1, tokens + 1))) for _ in range(clients)]
    found = rate_while_all_answer(answers, clients)
    assert found == pytest.approx(clients / step_s)


def test_a_round() -> None:
    answers = [answer(0, 1, 2, 3), answer(0, 1, 2, 3), answer(1, ended_s=4, error="broke")]
    found = RoundFigures.of(answers, 2)
    assert (found.requests, found.errors, found.error, found.seconds) == (3, 1, "broke", 4)
    assert (found.tokens_per_s, found.requests_per_s, found.answering_tokens_per_s) == (1.5, 0.5, 2)
    assert found.first_s == {"p50": 1, "p90": 1, "p99": 1, "max": 1}
    assert found.gap_s == found.first_s
    assert RoundFigures.of(answers, None).answering_tokens_per_s is None
    nothing = RoundFigures.of(answers[2:], 1)
    assert (nothing.first_s, nothing.gap_s, nothing.tokens_per_s) == (None, None, 0)
    assert nothing.answering_tokens_per_s is None


def test_a_long_prompt_beside_others() -> None:
    times = ({"p50": 1.0, "p99": 2.0}, {"p50": 2.0, "p99": 9.0})
    found = LongPromptFigures(*times, alone_tokens_per_s=200, beside_tokens_per_s=150)
    assert (found.gap_ratio, found.prompt_ratio) == (4.5, 0.75)


def test_repeats() -> None:
    ones = [distribution([1.0, 3.0]), None, distribution([2.0])]
    found = spreads(ones)
    assert found is not None
    assert found["p50"] == {"median": 1.5, "min": 1, "max": 2}
    assert list(found) == ["p50", "p90", "p99", "max"]
    assert spreads([None]) is None
    assert spread_of([1.0, 2.0, 5.0], lambda one: one) == {"median": 2, "min": 1, "max": 5}
    assert spread_of([1.0, 2.0, 5.0], lambda one: one if one > 1 else None) == {
        "median": 3.5,
        "min": 2,
        "max": 5,
    }
    assert spread_of(itertools.repeat(1.0, 0), lambda one: one) is None  # type: ignore[arg-type]
