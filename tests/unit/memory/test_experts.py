"""Experts in a node's memory."""

from pathlib import Path

import pytest
import torch

from tests.mixtures import COUNT, HIDDEN, SHAPE, mixed_pack
from tests.unit.memory.conftest import narrow
from tpiedge.errors import OutOfMemory
from tpiedge.kernels.panel_matrix import PanelMatrix, Weight
from tpiedge.memory.sweep import Block, Sweep, placed
from tpiedge.memory.weights import NodeWeights
from tpiedge.pack.share import Share
from tpiedge.pack.specs import ROUTER, Precision
from tpiedge.wire.fields import Pin, WeightMemory


def values(weight: Weight) -> torch.Tensor:
    """The numbers, in f32 [rows, cols]."""
    if not isinstance(weight, PanelMatrix):
        return weight.float()
    found = torch.zeros(weight.shape)
    for outputs, tile in weight.tiles():
        found[(slice(None), outputs) if weight.transposed else (outputs,)] = tile
    return found


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("units", [Share(4), Share(1, 3), Share(3, 4)])
@pytest.mark.parametrize("precision", [Precision.F32, Precision.BF16, Precision.Q8, Precision.Q4])
def test_node_has_its_columns_of_every_expert(
    precision: Precision, units: range, streamed: bool, tmp_path: Path
) -> None:
    pack = mixed_pack(tmp_path / "pack", precision)
    whole, part = (
        NodeWeights(pack, SHAPE.share(Share(1), Share(0), own), False, narrow if streamed else None)
        for own in (Share(4), units)
    )
    for layer in (0, 2):
        with whole.resident(Block(layer, "ffn")) as theirs, part.resident(Block(layer, "ffn")) as ours:
            assert ours.experts is not None
            assert theirs.experts is not None
            for expert in range(COUNT):
                for own, all_of in zip(ours.experts.of(expert), theirs.experts.of(expert), strict=True):
                    rows = slice(64 * units.start, 64 * units.start + own.shape[0])
                    assert torch.equal(values(own), values(all_of)[rows])
                    assert values(own).any()
    with part.resident(Block(1, "ffn")) as dense:
        assert dense.experts is None
    whole.close()
    part.close()


@pytest.mark.parametrize("pin", ["auto", "none"])
def test_experts_are_pinned_where_other_weights_stream(pin: Pin, tmp_path: Path) -> None:
    sweep = Sweep.of(mixed_pack(tmp_path / "pack", Precision.Q4), SHAPE.whole, True)
    of_experts = sum(sweep.pieces[piece].nbytes for piece in sweep.experts)
    assert len(sweep.experts) == 3
    others = sweep.nbytes - of_experts
    found = placed(WeightMemory(others * 3 // 4, 0, pin, True), sweep)
    assert found.pinned >= sweep.experts
    assert 0 < found.ring_bytes < found.nbytes([one.nbytes for one in sweep.pieces])
    assert found.nbytes([one.nbytes for one in sweep.pieces]) <= of_experts + others * 3 // 4
    assert len(placed(WeightMemory(others, 0, "auto", True), sweep).pinned) == len(sweep.pieces)
    with pytest.raises(OutOfMemory, match="is the least that works"):
        placed(WeightMemory(1000, 0, pin, True), sweep)


def test_repeated_layers_have_routers_of_their_own(tmp_path: Path) -> None:
    """Else a random model would choose the same experts in every layer."""
    pack = mixed_pack(tmp_path / "pack", Precision.Q4, distinct=3)
    assert pack.blob_id(3) == pack.blob_id(0)
    weights = NodeWeights(pack, SHAPE.whole, False)
    first, repeated = (weights.vectors[layer][ROUTER] for layer in (0, 3))
    assert first.shape == (COUNT * HIDDEN,)
    assert not torch.equal(first, repeated)
    assert torch.equal(first.sort().values, repeated.sort().values)
    again = NodeWeights(pack, SHAPE.share(Share(0), Share(0)), False)
    assert torch.equal(again.vectors[3][ROUTER], repeated)
    weights.close()
    again.close()
