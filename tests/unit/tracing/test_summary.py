"""The figures of a trace, from intervals that can be added up by hand."""

import pytest

from tpiedge.tracing.chrome import Trace
from tpiedge.tracing.summary import NodeSummary, summarize
from tpiedge.tracing.tracer import TraceEvent

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
