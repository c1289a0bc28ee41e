"""The part of a trace that is looked at: what `--steps` means, which steps are typical, and its figures."""

from collections.abc import Mapping, Sequence

import pytest

from tpiedge.lab.traces import (
    Excerpt,
    NodeSummary,
    StepRange,
    Trace,
    decode_steps,
    excerpt_of_steps,
    excerpt_of_times,
    parse_steps,
    summarize,
    typical_excerpt,
    typical_steps,
)
from tpiedge.tracing.tracer import TraceEvent

KNOWN = range(1, 101)


def trace_of(spent_s: Mapping[int, float], headless: Sequence[int] = ()) -> Trace:
    """Two nodes compute one step after the other; rank 0 ends each with the head, but for the `headless` ones."""
    zero: list[TraceEvent] = []
    one: list[TraceEvent] = []
    start_s = 0.0
    for step, seconds in spent_s.items():
        middle_s, end_s = start_s + seconds / 2, start_s + seconds
        one.append(TraceEvent("compute", "ffn", start_s, middle_s, 0, step))
        zero.append(TraceEvent("compute", "attention", start_s, middle_s, 0, step))
        last = "ffn" if step in headless else "head"
        zero.append(TraceEvent("compute", last, middle_s, end_s, step=step))
        start_s = end_s
    return Trace({0: tuple(zero), 1: tuple(one)}, {})


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ("40", (40,)),
        ("40:44", (40, 41, 42, 43, 44)),
        ("44:44", (44,)),
        ("98:", (98, 99, 100)),
        (":3", (1, 2, 3)),
        (":", tuple(KNOWN)),
        ("1:100", tuple(KNOWN)),
    ],
)
def test_both_ends_of_a_range_are_in_it(text: str, chosen: tuple[int, ...]) -> None:
    assert parse_steps(text).of(KNOWN) == chosen


@pytest.mark.parametrize("text", ["40", "40:44", "40:", ":44", ":"])
def test_a_range_is_written_as_it_is_read(text: str) -> None:
    assert str(parse_steps(text)) == text


@pytest.mark.parametrize(
    "text",
    ["", "x", "-1", "4-5", "1:2:3", "1::2", " 4", "4:5\n", "1.5", "1e3", "+1", "٤", "1:b", "1" * 10],
)
def test_what_is_no_range_of_steps(text: str) -> None:
    with pytest.raises(
        ValueError, match="is neither a step nor a range of steps: write 40, 40:44, 40: or :44"
    ):
        parse_steps(text)


def test_a_range_that_ends_before_it_begins() -> None:
    with pytest.raises(ValueError, match="'44:40' ends before it begins: write 40:44"):
        parse_steps("44:40")


@pytest.mark.parametrize("text", ["0", "101", "0:3", "99:101", "101:", ":101", ":0", "200:300"])
def test_a_range_with_an_end_outside_of_the_trace_has_no_steps(text: str) -> None:
    assert parse_steps(text).of(KNOWN) == ()


def test_a_trace_without_steps_has_no_range() -> None:
    assert StepRange(None, None).of([]) == ()


def test_the_time_of_some_steps() -> None:
    trace = trace_of({1: 4.0, 2: 1.0, 3: 1.0, 4: 2.0})
    assert excerpt_of_steps(trace, (2, 3)) == Excerpt(4.0, 6.0, (2, 3))
    assert excerpt_of_steps(trace, (2, 3)).window == (4.0, 6.0)


def test_the_steps_of_some_time() -> None:
    """A step of which only a part is in the time counts; one that only touches it does not."""
    trace = trace_of({1: 4.0, 2: 1.0, 3: 1.0, 4: 2.0})
    assert excerpt_of_times(trace, 4.5, 6.0) == Excerpt(4.5, 6.0, (2, 3))
    assert excerpt_of_times(trace, 0.0, 8.0).steps == (1, 2, 3, 4)


def test_steps_are_in_order_whichever_node_saw_them_first() -> None:
    later, earlier = (TraceEvent("compute", "ffn", step, step + 1.0, 0, step) for step in (2, 1))
    assert excerpt_of_times(Trace({0: (later,), 1: (earlier,)}, {}), 0.0, 3.0).steps == (1, 2)


def test_a_step_that_took_no_time_is_none() -> None:
    assert list(trace_of({1: 1.0, 2: 0.0, 3: 1.0}).steps) == [1, 3]


@pytest.mark.parametrize(
    ("spent_s", "chosen"),
    [
        ([9, 9, 5, 5, 5, 1, 1], [3, 4, 5]),  # the first ones are not typical, nor are the last
        ([5, 5, 9, 5, 1, 5, 5, 5.5, 1], [6, 7, 8]),  # each of the three is near it, not only their mean
        ([9, 5, 5, 20, 3, 7, 3, 0], [5, 6, 7]),  # none of the three is far off, though their sum is
        ([5, 5, 5, 5, 5], [1, 2, 3]),  # equally good: the first
        ([20, 20, 20, 2, 2, 2, 2, 2, 200], [4, 5, 6]),  # one long step does not move the median
        ([7], [1]),
        ([7, 8], [1, 2]),
    ],
)
def test_the_three_steps_in_a_row_that_are_nearest_to_the_median(
    spent_s: list[float], chosen: list[int]
) -> None:
    assert list(typical_steps(dict(enumerate(spent_s, 1)))) == chosen


@pytest.mark.parametrize(
    ("spent_s", "chosen"),
    [
        ({2: 5, 3: 5, 9: 4, 10: 5, 11: 6, 20: 5}, [9, 10, 11]),
        ({2: 5, 4: 5, 6: 9, 7: 9}, [6, 7]),
        ({2: 1, 4: 5, 6: 9}, [4]),
    ],
    ids=["three in a row", "two", "none"],
)
def test_steps_that_do_not_follow_each_other_are_not_in_a_row(
    spent_s: dict[int, float], chosen: list[int]
) -> None:
    assert list(typical_steps(spent_s)) == chosen


def test_the_steps_of_a_long_prompt_are_no_decode_steps() -> None:
    """Only the last of the three that the prompt takes has a head; what comes after it computes its token."""
    assert decode_steps(trace_of(dict.fromkeys(range(1, 8), 1.0), headless=(1, 2))) == [4, 5, 6, 7]


def test_without_decode_steps_all_count() -> None:
    assert decode_steps(trace_of(dict.fromkeys(range(1, 5), 1.0), headless=(1, 2, 3))) == [1, 2, 3, 4]


def test_the_prompt_is_not_typical() -> None:
    """Even where its steps are the most, and the nearest to the median of all."""
    spent_s = {1: 5.0, 2: 5.0, 3: 5.0, 4: 5.0, 5: 1.0, 6: 1.0, 7: 1.0}
    assert typical_excerpt(trace_of(spent_s, headless=(1, 2, 3))) == Excerpt(20.0, 23.0, (5, 6, 7))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_all_of_a_few_steps_are_drawn(count: int) -> None:
    trace = trace_of(dict.fromkeys(range(1, count + 1), 2.0))
    assert typical_excerpt(trace) == Excerpt(0.0, 2.0 * count, tuple(range(1, count + 1)))


def test_of_four_steps_the_prompt_is_left_out() -> None:
    assert typical_excerpt(trace_of(dict.fromkeys(range(1, 5), 2.0))).steps == (2, 3, 4)


def test_a_trace_without_steps_is_drawn_whole() -> None:
    trace = Trace({0: (TraceEvent("load", "up", 1.0, 3.0),)}, {})
    assert typical_excerpt(trace) == Excerpt(0.0, 3.0, ())


EVENTS = (
    TraceEvent("load", "q", 0.0, 4.0, 0, nbytes=100),
    TraceEvent("load", "k", 2.0, 6.0, 0, nbytes=50),  # at the same time as the other: counts once
    TraceEvent("compute", "attention", 1.0, 3.0, 0, 1),
    TraceEvent("reduce", "reduce attention", 3.0, 4.0, 0, 1),
    TraceEvent("wait", "ffn", 4.5, 6.0, 0),
    TraceEvent("compute", "ffn", 6.0, 8.0, 0, 2),
    TraceEvent("travel", "ffn", 5.0, 7.0, 0, 2),
    TraceEvent("travel", "ffn", 6.5, 7.5, 0, 2),  # at the same time as the other: counts once
)
TRACE = Trace({0: EVENTS, 2: (TraceEvent("compute", "ffn", 2.0, 3.0, 0, 2),)}, {0: 7})


def test_the_whole_of_a_trace() -> None:
    assert TRACE.end_s == 8.0
    assert TRACE.steps == {1: (1.0, 4.0), 2: (2.0, 8.0)}
    zero, two = summarize(TRACE, 0.0, 8.0)
    assert zero == NodeSummary(
        rank=0,
        busy_s={"compute": 4.0, "reduce": 1.0, "load": 6.0, "wait": 1.5, "travel": 2.5},
        load_during_s={"compute": 2.0, "reduce": 1.0, "wait": 1.5},
        travel_during_compute_s=1.5,
        read_bytes=150,
        events=8,
        dropped=7,
    )
    assert zero.hidden_percent == pytest.approx(75)
    assert zero.travel_hidden_percent == pytest.approx(60)
    assert (two.rank, two.hidden_percent, two.travel_hidden_percent, two.read_bytes) == (2, None, None, 0)


def test_a_part_of_a_trace() -> None:
    zero, two = summarize(TRACE, 3.0, 5.0)
    assert zero.busy_s == {"compute": 0.0, "reduce": 1.0, "load": 2.0, "wait": 0.5, "travel": 0.0}
    assert zero.load_during_s == {"compute": 0.0, "reduce": 1.0, "wait": 0.5}
    assert zero.hidden_percent == pytest.approx(75)
    assert (zero.events, zero.read_bytes) == (4, 100)
    assert two.events == 0
