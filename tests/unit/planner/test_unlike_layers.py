"""A made-up model of layers that differ: what is planned for it is what its pack and its KV cache have."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tpiedge.kernels.kv_format import KVFormat
from tpiedge.kv.cache import KVCache, LayerKV
from tpiedge.lab.random_weights import RandomSource
from tpiedge.memory.residency import smallest_ring
from tpiedge.memory.sweep import Sweep
from tpiedge.pack.layout import Storage, share_of_matrix
from tpiedge.pack.reader import Pack
from tpiedge.pack.share import Share
from tpiedge.pack.specs import BlobSpec, MatrixSpec, ModelSpec, Precision, VectorSpec
from tpiedge.pack.writer import write_pack
from tpiedge.planner.fractions import node_bound
from tpiedge.planner.needs import (
    LayerShape,
    MatrixFacts,
    ModelFacts,
    NodeFacts,
    NodeNeed,
    layers_bytes,
    model_facts,
    node_need,
    pieces_of_blocks,
    smallest_bytes,
    whole_need,
)
from tpiedge.planner.prediction import MachineFacts, least_step_s
from tpiedge.planner.solve import Plan, ShareWeight, partition, solve

HIDDEN, HEADS = 256, 8
#: (KV heads and width, or none of its own), width of q, columns of the FFN, whether it has a gate and a router.
LAYERS = (
    ((4, 64), 64, 300, True, False),
    ((2, 128), 128, 600, True, True),
    (None, 128, 300, False, False),
    (None, 0, 400, True, True),  # no attention
)
NODE = NodeFacts(1.0)


def _layer(at: int) -> BlobSpec:
    kv, width, columns, gate, router = LAYERS[at]
    rows = {"q": (HEADS * width, width)} if width else {}
    if kv is not None:
        rows |= dict.fromkeys("kv", (kv[0] * kv[1], kv[1]))
    rows |= {"o": (HEADS * width, width)} if width else {}
    rows |= dict.fromkeys(("gate", "up", "down") if gate else ("up", "down"), (columns, 128))
    rows |= {"router": (96, 32)} if router else {}
    matrices = [
        MatrixSpec(name, f"{at}.{name}", *sizes[:1], HIDDEN, sizes[1]) for name, sizes in rows.items()
    ]
    norms = tuple(VectorSpec(f"norm{n}", f"{at}.norm{n}", HIDDEN) for n in range(1 + at))
    return BlobSpec(tuple(matrices), norms)


@pytest.fixture(params=[Precision.BF16, Precision.Q4, "kept"], name="pack")
def _pack(tmp_path: Path, request: pytest.FixtureRequest) -> Pack:
    table, head = (
        BlobSpec(
            (MatrixSpec(name, name, 512, HIDDEN, 64),), (VectorSpec("final_norm", "norm", HIDDEN),) * last
        )
        for name, last in (("embedding", 0), ("head", 1))
    )
    spec = ModelSpec(table, tuple(map(_layer, range(len(LAYERS)))), head, {})
    stored = request.param
    if stored == "kept":
        stored = replace(
            Storage.of(Precision.Q4, tied=False), kept={"1.v": Precision.Q8, "2.down": Precision.Q8}
        )
    write_pack(spec, RandomSource.for_spec(1, spec, "BF16"), stored, tmp_path / "pack")
    return Pack.open(tmp_path / "pack")


@pytest.mark.parametrize("weights", [[1], [1, 1], [3, 0, 1], [1, 2, 3, 1, 2]])
def test_planned_bytes_of_unlike_layers_are_those_of_the_pack(pack: Pack, weights: list[float]) -> None:
    facts = replace(model_facts(pack, compute="f32", kv="bf16"), capacity_tokens=1000)
    assert (facts.shape, facts.exchanges) == (LayerShape(HEADS, 2, 3, len(LAYERS)), 7)
    shares = partition(facts.shape, [ShareWeight(weight, weight) for weight in weights])
    layouts, held = [pack.layout(layer) for layer in range(len(LAYERS))], Counter[tuple[int, str, int]]()
    for rank, share in enumerate(shares):
        sweep = Sweep.of(pack, share, rank == 0)
        held.update((one.key, one.matrix, unit) for one in sweep.pieces for unit in one.units)
        own = sum(one.vectors_nbytes + sum(whole.nbytes for whole in one.whole) for one in layouts)
        need = whole_need(facts, rank, share, NODE)
        head = pack.layout("head").vectors_nbytes if rank == 0 else 0
        assert need.weight_bytes == sweep.nbytes + own + head
        ranges = [one for layer in range(len(LAYERS)) for one in pack.share_ranges(layer, share)]
        in_layers = sum(piece.nbytes for piece in sweep.pieces if isinstance(piece.key, int))
        assert sum(one.length for one in ranges) == in_layers + own
        kept = [KVFormat("bf16", kv[1]) for kv, *_ in LAYERS if kv]
        counts = [
            len(share_of_matrix(layout.matrix("k"), share, pack.whole))
            for layout, (kv, *_) in zip(layouts, LAYERS, strict=True)
            if kv
        ]
        layers = [LayerKV(count, one) for count, one in zip(counts, kept, strict=True)]
        assert need.kv_bytes == KVCache(layers, slots=1, capacity=1000).reserved_bytes
        pieces = pieces_of_blocks(facts, rank, share)
        assert max(map(sum, sweep.sizes)) == max(map(sum, pieces))
        assert smallest_ring(sweep.sizes, frozenset()) == smallest_ring(pieces, frozenset())
    divided = {key: count for key, count in held.items() if key[1] not in ("k", "v", "head")}
    assert set(divided.values()) == {1}
    assert {key[:2] for key in divided} == {
        (layer, one.name)
        for layer, layout in enumerate(layouts)
        for axis in ("attention", "ffn")
        for one in layout.block(axis)
        if one.name not in ("k", "v")
    }


#: Two kinds of attention, a wide and a narrow FFN, and a block that is within another one.
ATTENTION = tuple(MatrixFacts("attention", units, 10, 10) for units in (8, 4, 4, 8))
FULL = tuple(MatrixFacts("attention", units, 20, 20) for units in (8, 2, 8))
SHARED = (ATTENTION[0], ATTENTION[3])
NARROW = (MatrixFacts("ffn", 4, 100, 60),)
WIDE = (MatrixFacts("ffn", 8, 100, 60),)
MODEL = ModelFacts(
    LayerShape(8, 2, 4, 10),
    {ATTENTION: 5, FULL: 2, SHARED: 3, NARROW: 7, WIDE: 3},
    {4: 5 * 64, 2: 2 * 256},
    kv_page_tokens=8,
    resident_bytes=1000,
    head_bytes=0,
    replicated_bytes=900,
    capacity_tokens=20,
)


def test_bytes_of_unlike_layers_are_added_up() -> None:
    share = MODEL.shape.share(Share(3, 6), Share(2, 4))
    attention = 5 * (6 * 10 + 4 * 10) + 2 * (6 * 20 + 2 * 20) + 3 * 6 * 10
    ffn = 7 * (100 + 60) + 3 * (300 + 60)
    assert layers_bytes(MODEL, share) == attention + ffn
    need = node_need(MODEL, 1, share, NODE)
    assert isinstance(need, NodeNeed)
    assert need.weight_bytes == attention + ffn + 1000
    assert need.kv_bytes == 3 * (2 * 320 + 2 * 512)
    assert MODEL.exchanges == 20
    assert len(MODEL.matrices) == 5


def test_ring_holds_the_largest_of_unlike_blocks() -> None:
    assert MODEL.largest_blocks == (ATTENTION, FULL, NARROW, WIDE)
    share = MODEL.shape.share
    only_attention, all_tiles = share(Share(3), Share(0)), share(Share(0), Share(4))
    fixed = whole_need(MODEL, 1, share(Share(0), Share(0)), NODE).total_bytes
    for share, ring in ((only_attention, 60 + 20 + 60 + 60), (all_tiles, 7 * 100 + 60)):
        kv_cache = whole_need(MODEL, 1, share, NODE).kv_bytes
        assert smallest_bytes(MODEL, 1, share, NODE) == fixed + kv_cache + ring


@pytest.mark.parametrize(("nodes", "cuts"), [(2, 4), (3, 1)])
def test_attention_is_cut_at_the_largest_groups(nodes: int, cuts: int) -> None:
    shares = partition(MODEL.shape, [ShareWeight(1 + at, 1) for at in range(nodes)])
    assert all(share.along("attention").start % cuts == 0 for share in shares)
    assert any(share.along("attention").start % (2 * cuts) for share in shares)


def test_replicated_matrices_take_every_nodes_time() -> None:
    """A node that is slow takes less than its part of the speed, for it computes the replicated matrices, too."""
    blocks = {(MatrixFacts("ffn", 1000, 10, 10),): 1}
    model = replace(MODEL, blocks=blocks, shape=LayerShape(8, 8, 1000, 1), replicated_bytes=1000)
    machines = [MachineFacts(300.0), MachineFacts(100.0)]
    plan = solve(model, machines)
    assert isinstance(plan, Plan)
    bounds = [node_bound(model, rank, node) for rank, node in enumerate(machines)]
    # 10,000 bytes to divide, and 1,000 on each.
    assert least_step_s(model, machines, bounds) == pytest.approx(12_000 / 400)
    assert [len(share.along("ffn")) for share in plan.shares] == [800, 200]
    assert plan.layers_s == pytest.approx(30)


def test_inputs_per_layer_cost_rank_0_memory_and_every_link_one_message() -> None:
    with_inputs = replace(MODEL, rank0_bytes=500, input_bytes=4000, row_bytes=400)
    share, without = MODEL.shape.whole, replace(MODEL, row_bytes=400)
    for rank, more in ((0, 500), (1, 0)):
        found, before = (whole_need(model, rank, share, NODE) for model in (with_inputs, without))
        assert found.weight_bytes - before.weight_bytes == more
        assert found.base_bytes - before.base_bytes == 4000 * MODEL.capacity_tokens
        least = [smallest_bytes(one, rank, share, NodeFacts(1.0, 1 << 40)) for one in (with_inputs, without)]
        assert least[0] - least[1] == more + 4000 * MODEL.capacity_tokens
    machines = [
        MachineFacts(1e9),
        MachineFacts(1e9, link_bytes_per_s=1e6),
        MachineFacts(1e9, link_bytes_per_s=2e6),
    ]
    bounds = [node_bound(without, rank, NODE) for rank in range(3)]
    found_s, before_s = (least_step_s(model, machines, bounds) for model in (with_inputs, without))
    assert found_s is not None
    assert before_s is not None
    assert found_s - before_s == pytest.approx(4000 / 1e6 + 4000 / 2e6 + 500 / 1e9)
