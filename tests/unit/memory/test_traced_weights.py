from pathlib import Path

import pytest

from tests.unit.memory.conftest import EVERYTHING, MakePack, narrow
from tpiedge.memory.weights import NodeWeights
from tpiedge.tracing.tracer import Tracer, read_part

SWEEPS = 3


def test_reads_and_waits(make_pack: MakePack, tmp_path: Path) -> None:
    weights, tracer = NodeWeights(make_pack(layers=3), EVERYTHING, True, narrow), Tracer()
    weights.trace(tracer)
    for _ in range(SWEEPS):
        for block in weights.sweep.blocks:
            if block.kind != "head":
                with weights.resident(block):
                    pass
        assert list(weights.head_tiles())
    stalls, stall_s = weights.counts.stalls, weights.counts.stall_s
    weights.close()
    tracer.write(tmp_path / "part", 0)
    events = read_part(tmp_path / "part").events

    waits = [event for event in events if event.lane == "wait"]
    assert len(waits) == stalls
    assert sum(event.end_s - event.start_s for event in waits) == pytest.approx(stall_s)
    blocks = {("head", -1), *((kind, layer) for layer in range(3) for kind in ("attention", "ffn"))}
    assert {(event.name, event.layer) for event in waits} <= blocks

    nbytes: dict[tuple[str, int], int] = {}
    for event in (event for event in events if event.lane == "load"):
        assert event.start_s < event.end_s
        nbytes[event.name, event.layer] = nbytes.get((event.name, event.layer), 0) + event.nbytes
    for piece in weights.sweep.pieces:
        if isinstance(piece.key, int):
            read = nbytes[piece.matrix, piece.key]
            assert read % piece.nbytes == 0
            assert (SWEEPS - 1) * piece.nbytes <= read <= (SWEEPS + 1) * piece.nbytes
