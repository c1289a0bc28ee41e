"""What is measured of requests, as their readers see it."""

from hypothesis import given
from hypothesis import strategies as st

from tpiedge.master.histogram import SECONDS, GrowingHistogram, Histogram
from tpiedge.master.request_times import RequestTimes, Timeline


def count(histogram: Histogram) -> int:
    return sum(histogram.counts)


def test_the_life_of_a_request() -> None:
    times, line = RequestTimes(), Timeline(accepted=10.0)
    times.started(line, 12.0)
    times.token(line, 15.0)
    times.token(line, 16.0)
    times.resumed("loss", 4.0)
    times.started(line, 17.0)  # again, after a loss
    times.token(line, 20.0)
    times.finished(line, 21.0, 30, 3)
    found = times.histograms()
    assert (found.queue.total, found.first_token.total, found.prefill.total) == (2.0, 5.0, 3.0)
    assert (count(found.between_tokens), found.between_tokens.total) == (2, 5.0)
    assert (found.decode.total, found.per_token.total, found.latency.total) == (5.0, 2.5, 11.0)
    assert (found.prompt_tokens.total, found.answer_tokens.total) == (30.0, 3.0)
    assert {cause: one.total for cause, one in found.pauses.items()} == {
        "plan": 0.0, "loss": 4.0, "restart": 0.0, "priority": 0.0
    }  # fmt: skip


def test_of_an_earlier_masters_request_only_what_is_seen_here_counts() -> None:
    times, line = RequestTimes(), Timeline()
    times.started(line, 1.0)
    times.token(line, 2.0)
    times.token(line, 2.5)
    times.finished(line, 3.0, 30, 40)
    found = times.histograms()
    assert (count(found.between_tokens), found.between_tokens.total) == (1, 0.5)
    for none in (
        found.queue,
        found.first_token,
        found.prefill,
        found.decode,
        found.latency,
        found.answer_tokens,
    ):
        assert count(none) == 0


def test_an_answer_of_one_token_has_no_time_between_two() -> None:
    times, line = RequestTimes(), Timeline(accepted=0.0)
    times.started(line, 0.0)
    times.token(line, 1.0)
    times.finished(line, 1.0, 1, 1)
    assert count(times.histograms().per_token) == 0
    assert count(times.histograms().decode) == 1


@given(st.lists(st.floats(0.0, 1e6)))
def test_every_value_is_counted_below_its_bound(values: list[float]) -> None:
    growing = GrowingHistogram(SECONDS)
    for value in values:
        growing.observe(value)
    found = growing.histogram()
    below = 0
    for bound, more in zip(found.bounds, found.counts, strict=False):
        below += more
        assert below == sum(value <= bound for value in values)
    assert count(found) == len(values)
