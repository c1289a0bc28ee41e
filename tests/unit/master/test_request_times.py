import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpiedge.master.request_times import (
    Histogram,
    Reading,
    ReadingProgress,
    ReadingRate,
    RequestHistograms,
    Timeline,
)


def count(histogram: Histogram) -> int:
    return sum(histogram.counts)


def test_histograms_record_all_times_of_one_request() -> None:
    times, line = RequestHistograms(), Timeline(accepted=10.0)
    times.started(line, 12.0)
    times.token(line, 15.0)
    times.token(line, 16.0)
    times.pauses["loss"].observe(4.0)
    times.started(line, 17.0)  # again, after a loss
    times.token(line, 20.0)
    times.finished(line, 21.0, 30, 3)
    found = times
    assert (found.queue.total, found.first_token.total, found.prefill.total) == (2.0, 5.0, 3.0)
    assert (count(found.between_tokens), found.between_tokens.total) == (2, 5.0)
    assert (found.decode.total, found.per_token.total, found.latency.total) == (5.0, 2.5, 11.0)
    assert (found.prompt_tokens.total, found.answer_tokens.total) == (30.0, 3.0)
    assert {cause: one.total for cause, one in found.pauses.items()} == {
        "plan": 0.0, "loss": 4.0, "restart": 0.0, "priority": 0.0
    }  # fmt: skip


def test_request_of_earlier_master_counts_only_times_seen_here() -> None:
    times, line = RequestHistograms(), Timeline()
    times.started(line, 1.0)
    times.token(line, 2.0)
    times.token(line, 2.5)
    times.finished(line, 3.0, 30, 40)
    found = times
    assert (count(found.between_tokens), found.between_tokens.total) == (1, 0.5)
    starts = found.queue, found.first_token, found.prefill
    assert not any(map(count, (*starts, found.decode, found.latency, found.answer_tokens)))


@given(st.lists(st.floats(0.0, 1e6)))
def test_histogram_counts_values_up_to_each_bound(values: list[float]) -> None:
    found = Histogram()
    for value in values:
        found.observe(value)
    below = 0
    for bound, more in zip(found.bounds, found.counts, strict=False):
        below += more
        assert below == sum(value <= bound for value in values)
    assert count(found) == len(values)


def rate_of(*readings: tuple[float, tuple[int, ...]]) -> float:
    rate, now = ReadingRate(), 0.0
    for seconds, prompts in readings:
        for _ in prompts:
            rate.start(now)
        for tokens in prompts:
            rate.read(tokens)
        now += seconds
        rate.stop(now)
        rate.stop(now + 1.0)
        now += 100.0
    return rate.token_s


@pytest.mark.parametrize(
    ("readings", "token_s"),
    [
        ([], 0.0),
        ([(2.0, (200,))], 0.01),
        ([(40.0, (4000, 10))], 40 / 4010),
        ([(4.0, (200, 200))], 0.01),
        ([(9.0, (63,))], 0.0),
        ([(0.2, (200,)), (2.0, (200,))], 0.01),
        ([(2.0, (200,)), (0.2, (200,))], 0.01),
        ([(2.0, (200,)), *[(0.2, (200,))] * 16], 0.001),
        ([(5.0, ())], 0.0),
    ],
    ids=str,
)
def test_prefill_rate_is_slowest_of_recent_readings(
    readings: list[tuple[float, tuple[int, ...]]], token_s: float
) -> None:
    """A fast one may have been kept from before."""
    assert rate_of(*readings) == pytest.approx(token_s)


def test_first_progress_report_has_no_rate() -> None:
    progress = ReadingProgress()
    assert progress.reading(100) is None
    assert not progress.update(40, 3.0)
    assert progress.reading(100) == Reading(40, 100, 0.0, None)


def test_prefill_time_left_assumes_rate_so_far() -> None:
    progress = ReadingProgress()
    assert [progress.update(done, now) for done, now in ((40, 3.0), (50, 4.0), (50, 5.0), (45, 6.0), (80, 7.0))] == [
        False, True, False, False, True,
    ]  # fmt: skip
    assert progress.reading(120) == Reading(80, 120, 10.0, 4.0)
