from collections.abc import Mapping, Sequence

import pytest

from tpiedge.lab import traces
from tpiedge.tracing.tracer import TraceEvent

KNOWN = range(1, 101)


def trace_of(spent_s: Mapping[int, float], headless: Sequence[int] = ()) -> traces.Trace:
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
    return traces.Trace({0: tuple(zero), 1: tuple(one)}, {})


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
def test_step_range_includes_both_ends(text: str, chosen: tuple[int, ...]) -> None:
    assert traces.parse_steps(text).of(KNOWN) == chosen


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
def test_typical_steps_are_three_in_a_row_near_the_median(spent_s: list[float], chosen: list[int]) -> None:
    assert list(traces.typical_steps(dict(enumerate(spent_s, 1)))) == chosen


def test_prefill_steps_are_not_decode_steps() -> None:
    """Only the last of the three that the prompt takes has a head; what comes after it computes its token."""
    assert traces.decode_steps(trace_of(dict.fromkeys(range(1, 8), 1.0), headless=(1, 2))) == [4, 5, 6, 7]


def test_typical_excerpt_skips_the_prompt() -> None:
    spent_s = {1: 5.0, 2: 5.0, 3: 5.0, 4: 5.0, 5: 1.0, 6: 1.0, 7: 1.0}
    assert traces.typical_excerpt(trace_of(spent_s, headless=(1, 2, 3))) == traces.Excerpt(
        20.0, 23.0, (5, 6, 7)
    )


EVENTS = (
    TraceEvent("load", "q", 0.0, 4.0, 0, nbytes=100),
    TraceEvent("load", "k", 2.0, 6.0, 0, nbytes=50),  # at the same time as the other: counts once
    TraceEvent("compute", "attention", 1.0, 3.0, 0, 1),
    TraceEvent("reduce", "reduce attention", 3.0, 4.0, 0, 1),
    TraceEvent("wait", "ffn", 4.5, 6.0, 0),
    TraceEvent("compute", "ffn", 6.0, 8.0, 0, 2),
    TraceEvent("travel", "ffn", 5.0, 7.0, 0, 2),
    TraceEvent("travel", "ffn", 6.5, 7.5, 0, 2),  # at the same time as the other: counts once
    TraceEvent("bring", "page", 7.0, 7.5, nbytes=70),
    TraceEvent("leave", "page", 7.5, 7.75, nbytes=70),
)
TRACE = traces.Trace({0: EVENTS, 2: (TraceEvent("compute", "ffn", 2.0, 3.0, 0, 2),)}, {0: 7})


def test_trace_is_summarised_per_node() -> None:
    assert TRACE.end_s == 8.0
    assert TRACE.steps == {1: (1.0, 4.0), 2: (2.0, 8.0)}
    zero, two = traces.summarize(TRACE, 0.0, 8.0)
    assert zero == traces.NodeSummary(
        rank=0,
        busy_s={
            **{"compute": 4.0, "reduce": 1.0, "load": 6.0, "wait": 1.5, "travel": 2.5},
            **{"bring": 0.5, "leave": 0.25},
        },
        load_during_s={"compute": 2.0, "reduce": 1.0, "wait": 1.5},
        travel_during_compute_s=1.5,
        read_bytes=150,
        events=10,
        dropped=7,
    )
    assert zero.hidden_percent == pytest.approx(75)
    assert zero.travel_hidden_percent == pytest.approx(60)
    assert (two.rank, two.hidden_percent, two.travel_hidden_percent, two.read_bytes) == (2, None, None, 0)
