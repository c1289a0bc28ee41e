"""Plans of models with experts: all bytes for memory and disk, a token's bytes for time."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.mixtures import CHOSEN, COUNT, SHAPE, mixed_pack
from tpiedge.memory.sweep import Sweep, placed
from tpiedge.pack.reader import Pack
from tpiedge.pack.specs import Precision
from tpiedge.planner.capacity import allocate, too_small
from tpiedge.planner.needs import (
    Infeasible,
    ModelFacts,
    NodeFacts,
    NodeNeed,
    base_bytes,
    expert_bytes,
    layers_bytes,
    model_facts,
    node_need,
    node_seconds,
    used_bytes,
    whole_need,
)
from tpiedge.planner.prediction import MachineFacts
from tpiedge.planner.solve import Plan, ShareWeight, partition, solve
from tpiedge.units import MIB

NODE = NodeFacts(1e9)


@pytest.fixture(name="pack")
def _pack(tmp_path: Path) -> Pack:
    return mixed_pack(tmp_path / "pack", Precision.Q4)


@pytest.fixture(name="model")
def _model(pack: Pack) -> ModelFacts:
    return replace(model_facts(pack, compute="int8", kv="bf16"), capacity_tokens=64)


@pytest.mark.parametrize("weights", [[1], [1, 1], [3, 0, 1], [1, 2, 3, 1, 2]])
def test_planned_bytes_are_those_of_the_pack(pack: Pack, model: ModelFacts, weights: list[float]) -> None:
    assert (model.shape, model.exchanges) == (SHAPE, 8)
    shares = partition(model.shape, [ShareWeight(weight, weight) for weight in weights])
    held = [unit for share in shares for unit in share.along("experts")]
    assert held == [0, 1, 2, 3]
    for rank, share in enumerate(shares):
        sweep = Sweep.of(pack, share, rank == 0)
        assert sum(sweep.pieces[piece].nbytes for piece in sweep.experts) == expert_bytes(model, share)
        vectors = sum(pack.layout(layer).vectors_nbytes for layer in range(4))
        head = pack.layout("head").vectors_nbytes if rank == 0 else 0
        assert whole_need(model, rank, share, NODE).weight_bytes == sweep.nbytes + vectors + head


def test_memory_counts_what_experts_compute(model: ModelFacts) -> None:
    dense = replace(model, shape=replace(model.shape, experts=0))
    assert base_bytes(model, NODE) - base_bytes(dense, NODE) == 8 * MIB


def test_time_follows_from_the_experts_of_a_token(model: ModelFacts) -> None:
    whole = model.shape.whole
    others = layers_bytes(model, whole) - expert_bytes(model, whole)
    used = others + expert_bytes(model, whole) * CHOSEN / COUNT
    assert used_bytes(model, whole) == pytest.approx(used)
    need = node_need(model, 0, whole, NODE)
    assert isinstance(need, NodeNeed)
    assert node_seconds(model, whole, NODE, need) == pytest.approx(used / 1e9)


@pytest.mark.parametrize("rank", [0, 1])
def test_memory_without_room_for_experts_is_refused_with_the_least_that_works(
    pack: Pack, model: ModelFacts, rank: int
) -> None:
    whole = model.shape.whole
    node = NodeFacts(1e9, memory_bytes=1, disk_bytes_per_s=1e9)
    refused = node_need(model, rank, whole, node)
    assert isinstance(refused, Infeasible)
    assert "(experts " in refused.reason
    everything = whole_need(model, rank, whole, node).total_bytes
    least = next(
        nbytes
        for nbytes in range(everything - layers_bytes(model, whole), everything, 4096)
        if isinstance(node_need(model, rank, whole, replace(node, memory_bytes=nbytes)), NodeNeed)
    )
    assert everything - least < layers_bytes(model, whole) - expert_bytes(model, whole)
    need = node_need(model, rank, whole, replace(node, memory_bytes=least))
    assert isinstance(need, NodeNeed)
    assert need.streamed_bytes > 0
    sweep = Sweep.of(pack, whole, rank == 0)
    found = placed(need.weights, sweep)
    assert sweep.experts <= found.pinned
    kept = found.nbytes([piece.nbytes for piece in sweep.pieces]) + model.resident(rank)
    assert kept <= need.weight_bytes


def test_nodes_that_hold_the_experts_only_together_get_shares(model: ModelFacts) -> None:
    whole = model.shape.whole
    room = whole_need(model, 1, whole, NODE).total_bytes - expert_bytes(model, whole) * 2 // 5
    nodes = [NodeFacts(speed, memory_bytes=room, disk_bytes_per_s=1e9) for speed in (1e9, 3e9)]
    plan = solve(model, nodes)
    assert isinstance(plan, Plan)
    assert all(share.along("experts") for share in plan.shares)
    assert all(need.total_bytes <= room for need in plan.needs)
    alone = solve(model, nodes[:1])
    assert isinstance(alone, Infeasible)
    assert "needs at least" in alone.reason


def test_worker_that_cannot_hold_a_tile_is_too_small(model: ModelFacts) -> None:
    machine = MachineFacts(1e9, memory_bytes=64 * MIB, name="worker")
    assert too_small(model, machine) is not None
    enough = replace(machine, memory_bytes=1024 * MIB)
    assert too_small(model, enough) is None
    found = allocate(model, [replace(enough, name="master"), enough], min_workers=1)
    assert not isinstance(found, Infeasible)
    assert {len(share.along("experts")) for share in found.plan.shares} == {2}


def test_experts_beside_an_ffn_send_a_second_row_in_the_same_message(model: ModelFacts) -> None:
    blocks = sorted(model.blocks, key=lambda block: block[0].axis)
    assert [block[0].axis for block in blocks] == ["attention", "experts", "ffn"]
    attention, experts, ffn = blocks
    beside = replace(model, blocks={attention: 4, (*ffn, *experts): 4}, row_bytes=1000)
    assert (beside.exchanges, beside.second_sums, model.second_sums) == (8, 4, 0)
    machine = MachineFacts(1e9, memory_bytes=1024 * MIB, round_trip_s=0.01, link_bytes_per_s=1e5)
    found = allocate(beside, [replace(machine, name="master"), machine], min_workers=1)
    assert not isinstance(found, Infeasible)
    assert found.plan.reduce_s == pytest.approx(8 * (0.005 + 0.01) + 4 * 0.01)
