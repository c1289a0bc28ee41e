"""Weights kept within a limit: a table of limits for one small model, and the same numbers as a real pack's."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.planner.models import alike
from tpiedge.kernels.kv_format import KVFormat
from tpiedge.kv.cache import KVCache, LayerKV
from tpiedge.lab.random_weights import RandomSource
from tpiedge.memory.residency import smallest_ring
from tpiedge.memory.sweep import Placement, Sweep, place
from tpiedge.pack.layout import Storage
from tpiedge.pack.reader import Pack
from tpiedge.pack.share import NodeShare, Share, kv_share
from tpiedge.pack.specs import CHOICES, BlobSpec, MatrixSpec, ModelSpec, Precision
from tpiedge.pack.writer import write_pack
from tpiedge.planner import needs
from tpiedge.planner.solve import solve
from tpiedge.units import GIB, MIB
from tpiedge.wire.fields import Keeping, KVPrecision

PIECE = 128 * 1024
# Four layers of a piece each for q, k, v, o, gate, up and down.
MODEL = alike(
    4,
    needs.LayerShape(heads=4, kv_heads=4, ffn_tiles=1, layers=4),
    ((PIECE // 4,) * 2, (PIECE // 4,) * 2, (PIECE,) * 3),
    resident_bytes=0,
    head_bytes=0,
    capacity_tokens=10,
)
NODE = needs.NodeFacts(1.0)
SHARE = MODEL.shape.whole


def fits(pieces: int | None) -> needs.NodeNeed:
    """The need of rank 1 with room for so many pieces."""
    whole = needs.whole_need(MODEL, 1, SHARE, NODE)
    other = whole.kv_bytes + whole.base_bytes
    limit = None if pieces is None else other + pieces * PIECE
    need = needs.node_need(MODEL, 1, SHARE, needs.NodeFacts(1.0, limit, disk_bytes_per_s=1.0))
    assert isinstance(need, needs.NodeNeed), need
    return need


@pytest.mark.parametrize("pieces", [None, 28, 30])
def test_weights_that_fit_are_all_pinned(pieces: int | None) -> None:
    need = fits(pieces)
    """What of the KV cache is free is of no use to weights that are all in memory."""
    assert (need.weight_bytes, need.streamed_bytes, need.weights.pin) == (28 * PIECE, 0, "all")


@pytest.mark.parametrize("pieces", [6, 9, 14, 27])
def test_weights_over_the_limit_are_streamed(pieces: int) -> None:
    need = fits(pieces)
    assert need.weights.nbytes == need.weight_bytes == pieces * PIECE
    assert need.streamed_bytes == (28 - pieces + min(pieces, 9)) * PIECE


@pytest.mark.parametrize("keeping", [Keeping(), Keeping("all"), Keeping("none")])
def test_smallest_memory_is_exact_to_the_byte(keeping: Keeping) -> None:
    node = needs.NodeFacts(1, disk_bytes_per_s=1, keeping=keeping)
    least = needs.smallest_bytes(MODEL, 1, SHARE, node)
    for nbytes, found in ((least, needs.NodeNeed), (least - 1, needs.Infeasible)):
        assert isinstance(needs.node_need(MODEL, 1, SHARE, replace(node, memory_bytes=nbytes)), found)


def write(
    path: Path, precision: Precision | Storage, heads: int, kv_heads: int, ffn: int, hidden: int, vocab: int
) -> Pack:
    shapes = {"q": (heads, 64), "k": (kv_heads, 64), "v": (kv_heads, 64), "o": (heads, 64)}
    sizes = {name: (units * rows, rows) for name, (units, rows) in shapes.items()}
    sizes |= dict.fromkeys(("gate", "up", "down"), (ffn, 128))

    def layer(at: int) -> BlobSpec:
        return BlobSpec(
            tuple(
                MatrixSpec(name, f"{at}.{name}", rows, hidden, unit) for name, (rows, unit) in sizes.items()
            )
        )

    table = BlobSpec((MatrixSpec("embedding", "embedding", vocab, hidden, 64),))
    head = BlobSpec((MatrixSpec("head", "head", vocab, hidden, 64),))
    spec = ModelSpec(table, tuple(map(layer, range(3))), head, {})
    write_pack(spec, RandomSource.for_spec(1, spec, "BF16"), precision, path, 2)
    return Pack.open(path)


@pytest.mark.parametrize("precision", CHOICES)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "ffn", "hidden", "vocab"),
    [(4, 2, 384, 256, 512), (4, 4, 300, 200, 1000), (6, 1, 130, 1024, 64), (2, 2, 1000, 96, 70000)],
)
def test_planned_piece_sizes_equal_the_packs(tmp_path, precision, heads, kv_heads, ffn, hidden, vocab):
    pack = write(tmp_path / "pack", precision, heads, kv_heads, ffn, hidden, vocab)
    model = replace(needs.model_facts(pack, compute="f32", kv="f32"), capacity_tokens=10)
    assert model.smaller_precision == ("" if precision is Precision.Q4 else "q4")
    tiles = -(-ffn // 128)
    shares = [model.shape.whole, model.shape.share(Share(1, heads), Share(1, tiles))]
    for rank, share in enumerate(shares):
        sizes = Sweep.of(pack, share, rank == 0).sizes
        kinds = needs.pieces_of_blocks(model, rank, share)
        assert {tuple(sorted(block)) for block in sizes[:2]} == {tuple(sorted(kind)) for kind in kinds[:2]}
        assert max(map(sum, sizes)) == max(map(sum, kinds))
        assert smallest_ring(sizes, frozenset()) == smallest_ring(kinds, frozenset())
        _check_placement(model, rank, share, sizes)


def test_layers_with_larger_matrices_fit_the_plan(tmp_path: Path) -> None:
    """Layer 1 has a matrix in twice the bits. Rings hold the largest."""
    kept = dict.fromkeys(("1.v", "1.down"), Precision.Q8)
    storage = Storage(Precision.Q4, Precision.BF16, Precision.Q8, kept=kept)
    pack = write(tmp_path / "pack", storage, 4, 2, 384, 256, 512)
    model = replace(needs.model_facts(pack, compute="int8", kv="f32"), capacity_tokens=10)
    for rank, share in enumerate((model.shape.whole, model.shape.share(Share(1, 4), Share(1, 2)))):
        sizes = Sweep.of(pack, share, False).sizes
        assert sum(map(sum, sizes)) == needs.layers_bytes(model, share)
        _check_placement(model, rank, share, Sweep.of(pack, share, rank == 0).sizes)


def _check_placement(
    model: needs.ModelFacts, rank: int, share: NodeShare, sizes: Sequence[Sequence[int]]
) -> None:
    """The node can do what the planner says with every limit, and streams no more."""
    pieces = [size for block in sizes for size in block]
    least = needs.smallest_bytes(model, rank, share, NODE)
    whole = needs.whole_need(model, rank, share, NODE).total_bytes
    for limit in range(least, whole, max(1, (whole - least) // 7)):
        need = needs.node_need(model, rank, share, needs.NodeFacts(1, limit, None, 1))
        assert isinstance(need, needs.NodeNeed)
        placement = place(sizes, need.weights.nbytes, "auto", need.weights.ring_bytes or None)
        assert isinstance(placement, Placement)
        assert sum(pieces) - placement.pinned_bytes(pieces) <= need.streamed_bytes + max(pieces)


LARGE = alike(
    32,
    needs.LayerShape(32, 8, 64, 32),
    ((MIB // 4,) * 2, (MIB,) * 2, (MIB // 3, MIB // 3, MIB - 2 * (MIB // 3))),
    kv=(1024, 16 * MIB),
    resident_bytes=32 * 4096,
    head_bytes=GIB,
)


@pytest.mark.parametrize("head_dim", [64, 100, 128])
@pytest.mark.parametrize("kv", ["f32", "bf16", "q8", "q4"])
def test_planned_kv_bytes_equal_cache_reservation(kv: KVPrecision, head_dim: int) -> None:
    stored = KVFormat(kv, head_dim)
    kept = {8: 32 * stored.part_nbytes}
    model = replace(LARGE, kv=kept, kv_page_tokens=stored.page_positions, capacity_tokens=1000)
    share = LARGE.shape.share(Share(3), Share(2))
    heads = len(kv_share(share.along("attention"), model.shape.group_size))
    cache = KVCache([LayerKV(heads, stored)] * 32, slots=1, capacity=1000)
    assert needs.whole_need(model, 1, share, NODE).kv_bytes == cache.reserved_bytes > 0


def _nodes(count: int) -> st.SearchStrategy[list[needs.NodeFacts]]:
    memory = st.none() | st.integers(270 * MIB, 5 * GIB)
    disk = st.none() | st.sampled_from([1e7, 3e8, 2e9])
    keeping = st.sampled_from(
        [Keeping(), Keeping("none"), Keeping("all"), Keeping("auto", 3), Keeping("auto", 0, GIB)]
    )
    node = st.builds(needs.NodeFacts, st.sampled_from([1e8, 1e9, 2e10]), memory, st.none(), disk, keeping)
    return st.lists(node, min_size=1, max_size=count)


@given(_nodes(4), st.integers(0, 5000))
def test_a_plan_with_streaming_keeps_every_limit(nodes: list[needs.NodeFacts], tokens: int) -> None:
    plan = solve(replace(LARGE, capacity_tokens=tokens), nodes)
    if isinstance(plan, needs.Infeasible):
        assert plan.reason
        return
    assert sum(len(share.along("ffn")) for share in plan.shares) == 64
    for node, need in zip(nodes, plan.needs, strict=True):
        assert node.memory_bytes is None or need.total_bytes <= node.memory_bytes
        assert not need.streamed_bytes or node.streams
