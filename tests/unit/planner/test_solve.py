from dataclasses import replace

import pytest

from tests.unit.planner.models import alike
from tpiedge.planner.needs import NODE_BASE_BYTES, Infeasible, LayerShape, ModelFacts, NodeFacts
from tpiedge.planner.solve import Plan, solve
from tpiedge.units import GIB, MIB

# 32 layers of 100 MiB, of which a third is attention; 1 GiB of head.
MODEL = alike(
    32,
    LayerShape(heads=32, kv_heads=8, ffn_tiles=64, layers=32),
    ((MIB // 4, MIB // 4), (MIB, MIB), (MIB // 3, MIB // 3, MIB - 2 * (MIB // 3))),
    resident_bytes=32 * 4096,
    head_bytes=GIB,
    capacity_tokens=100,
)


@pytest.mark.parametrize(
    ("smaller", "remedies"),
    [
        ("q4", "add a node, raise the memory limits or choose --precision q4"),
        ("", "add a node or raise the memory limits"),
    ],
)
def test_a_refusal_says_what_to_do(smaller: str, remedies: str) -> None:
    model = replace(MODEL, smaller_precision=smaller)
    plan = solve(model, [NodeFacts(1.0, memory_bytes=2 * GIB), NodeFacts(1.0, memory_bytes=GIB)])
    assert isinstance(plan, Infeasible)
    assert plan.reason.endswith(f"too little; {remedies}")


def small_model(heads: int, kv_heads: int, ffn_tiles: int, last_mib: int = 8) -> ModelFacts:
    return alike(
        4,
        LayerShape(heads, kv_heads, ffn_tiles, 4),
        ((5 * MIB, 5 * MIB), (2 * MIB, 3 * MIB), (3 * MIB, 3 * MIB, 2 * MIB)),
        (0, 0, last_mib * MIB),
        (0, 8),
        resident_bytes=4 * MIB,
        head_bytes=0,
    )


@pytest.mark.parametrize(
    ("model", "shares_mib"),
    [
        # By bytes a fraction of a head would fit, but heads are whole: the FFN has to make up for it.
        (small_model(2, 2, 12), [326, 217]),
        (small_model(8, 8, 8), [516, 39, 238]),
        # One KV head that two nodes would have to replicate fits only once.
        (small_model(4, 1, 3), [185, 100]),
        # All but the short last tile is full.
        (small_model(1, 1, 3, last_mib=2), [60 + 8 * 8 + 8]),
    ],
)
def test_plan_fits_whole_units_into_tight_limits(model: ModelFacts, shares_mib: list[int]) -> None:
    own = 4 * MIB  # resident
    nodes = [NodeFacts(1.0, NODE_BASE_BYTES + own + mib * MIB) for mib in shares_mib]
    plan = solve(model, nodes)
    assert isinstance(plan, Plan), plan
    assert sum(len(share.along("attention")) for share in plan.shares) == model.shape.heads
    assert sum(len(share.along("ffn")) for share in plan.shares) == model.shape.ffn_tiles
    assert all(
        need.total_bytes <= (node.memory_bytes or 0) for need, node in zip(plan.needs, nodes, strict=True)
    )
