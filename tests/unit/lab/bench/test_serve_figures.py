from tpiedge.lab.bench.serve_figures import (
    RoundFigures,
    TimedAnswer,
    distribution,
    gaps_within,
    percentile,
    rate_while_all_answer,
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
