from pathlib import Path

import pytest

from tpiedge.engine.meter import Meter
from tpiedge.tracing.tracer import Tracer, read_part


def test_every_span_is_traced_with_its_layer_and_step(tmp_path: Path) -> None:
    meter, tracer = Meter(), Tracer(20)
    meter.record(tracer, traced=True)
    meter.step = 2
    for begin in (
        lambda: meter.embedding_span,
        lambda: meter.announce_span,
        lambda: meter.broadcast_span,
        lambda: meter.attention_span.of(3),
        lambda: meter.reduce_span(6),
        lambda: meter.ffn_span.of(3),
        lambda: meter.reduce_span(7),
        lambda: meter.head_span,
    ):
        with begin():
            pass
    tracer.write(tmp_path / "part", 0)
    events = read_part(tmp_path / "part").events
    assert [(event.lane, event.name, event.layer, event.step) for event in events] == [
        ("compute", "embedding", -1, 2),
        ("reduce", "plan", -1, 2),
        ("reduce", "broadcast", -1, 2),
        ("compute", "attention", 3, 2),
        ("reduce", "reduce attention", 3, 2),
        ("compute", "ffn", 3, 2),
        ("reduce", "reduce ffn", 3, 2),
        ("compute", "head", -1, 2),
    ]
    reduced_s = sum(event.end_s - event.start_s for event in events if event.lane == "reduce")
    assert reduced_s == pytest.approx(meter.reduce_wait_s)
