import mmap
from pathlib import Path

import pytest
import torch

from tests.unit.kernels.test_linear import open_library
from tpiedge.errors import ProtocolError
from tpiedge.kernels.attention import append_pages, attention_pages
from tpiedge.kernels.kv_format import KVFormat
from tpiedge.kernels.kv_pages import Spans
from tpiedge.kernels.library import Pool
from tpiedge.kv.cache import KVCache, LayerKV
from tpiedge.wire.data import Segment, TableChange
from tpiedge.wire.fields import KVPrecision

PRECISIONS: list[KVPrecision] = ["f32", "bf16", "q8", "q4"]
#: Torch computes nothing with what is quantised.
CASES = pytest.mark.parametrize(
    ("precision", "native"), [*((one, True) for one in PRECISIONS), ("f32", False), ("bf16", False)]
)


def make(precision: KVPrecision = "f32", **changes: int) -> KVCache:
    kept = LayerKV(changes.pop("kv_heads", 3), KVFormat(precision, changes.pop("head_dim", 16)))
    return KVCache([kept, kept], **({"slots": 2, "capacity": 256} | changes))


def segment(slot: int, start: int, stop: int) -> Segment:
    return Segment(slot, start, stop - start, 1)


def append(cache: KVCache, slot: int, start: int, x_TKd: torch.Tensor, pool: Pool | None) -> None:
    spans = Spans([cache.span(slot, start, len(x_TKd))], cache.page_positions)
    for layer in range(2):
        append_pages(x_TKd, -x_TKd, spans, cache.layouts[layer], pool)


def attended(cache: KVCache, slot: int, q_TKd: torch.Tensor, start: int, pool: Pool | None) -> torch.Tensor:
    spans = Spans([cache.span(slot, start, len(q_TKd))], cache.page_positions)
    return attention_pages(q_TKd, spans, cache.layouts[1], (0, 1, 2), pool=pool)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (TableChange(2, 0, (0,), 0), "slot 2, but there are 2"),
        (TableChange(0, 1, (0,), 0), "keeps 1 pages of slot 0, which has 0"),
        (TableChange(0, 0, (4,), 0), "page 4 of the KV cache, but there are 4"),
        (TableChange(0, 0, (0, 1, 2, 3, 0), 0), "adds 5 of 4"),
        (TableChange(0, 0, (0,), 65), "fills 65 positions of slot 0 in 1 pages"),
    ],
)
def test_invalid_table_change_is_a_protocol_error(change: TableChange, complaint: str) -> None:
    with pytest.raises(ProtocolError, match=complaint):
        make().change([change], ())


def test_a_step_beyond_the_pages_is_a_protocol_error() -> None:
    cache = make()
    cache.change([TableChange(0, 0, (3,), 10)], ())
    with pytest.raises(ProtocolError, match="needs 65 positions, the pages of slot 0 have 64"):
        cache.truncate([segment(0, 10, 65)])
    with pytest.raises(ProtocolError, match="slot 7"):
        cache.truncate([segment(7, 0, 1)])
    with pytest.raises(ProtocolError, match="page 9"):
        cache.change((), [9])


@CASES
def test_incremental_attention_equals_one_prefill(precision: KVPrecision, native: bool) -> None:
    pool = Pool(open_library(), 2) if native else None
    q, x = torch.randn(150, 3, 16), torch.randn(150, 3, 16)
    capacity = 4 * make(precision).page_positions

    def outputs(pages: tuple[int, ...], *cuts: int) -> torch.Tensor:
        cache = make(precision, capacity=capacity)
        cache.change([TableChange(0, 0, pages, 0)], ())
        parts = []
        for start, stop in zip((0, *cuts), (*cuts, 150), strict=True):
            cache.truncate([segment(0, start, stop)])
            append(cache, 0, start, x[start:stop], pool)
            parts.append(attended(cache, 0, q[start:stop], start, pool))
            cache.commit([segment(0, start, stop)])
        return torch.cat(parts)

    whole = outputs((0, 1, 2))
    for other in (outputs((3, 1, 0), 63, 64, 130), outputs((2, 0, 3), *range(1, 150))):
        if native:
            assert torch.equal(other, whole)
        else:
            torch.testing.assert_close(other, whole, rtol=1e-5, atol=1e-5)
    if pool is not None:
        pool.close()


def test_a_node_without_attention_has_an_empty_cache() -> None:
    cache = make(kv_heads=0)
    cache.change([TableChange(0, 0, (0, 1), 0)], [1])
    cache.truncate([segment(0, 0, 3)])
    assert cache.reserved_bytes == cache.held_bytes == 0


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def test_discarded_pages_free_memory_and_others_stay() -> None:
    cache = make(head_dim=128, capacity=64 * 128)
    pool = Pool(open_library(), 1)
    x = torch.randn(64 * 64, 3, 128)
    for slot in (0, 1):
        cache.change([TableChange(slot, 0, tuple(range(slot * 64, slot * 64 + 64)), 0)], ())
        append(cache, slot, 0, x, pool)
    before = attended(cache, 1, x[-2:], 64 * 64 - 2, pool)
    full, held = resident_bytes(), cache.held_bytes
    assert held == cache.reserved_bytes
    cache.change((), tuple(range(64)))
    assert cache.held_bytes == held // 2
    assert abs(full - resident_bytes() - held // 2) < 4 << 20
    assert torch.equal(attended(cache, 1, x[-2:], 64 * 64 - 2, pool), before)
    pool.close()


def test_a_refused_step_changes_nothing() -> None:
    cache = make()
    cache.change([TableChange(0, 0, (0,), 10), TableChange(1, 0, (1,), 10)], ())
    for wrong in ([segment(0, 5, 6), segment(1, 11, 12)], [segment(0, 5, 6), segment(0, 7, 8)]):
        with pytest.raises(ProtocolError, match="hole"):
            cache.truncate(wrong)
    cache.truncate([segment(0, 10, 11)])
    with pytest.raises(ProtocolError, match="page 4"):
        cache.change([TableChange(0, 1, (2, 4), 64)], ())
    with pytest.raises(ProtocolError, match="slot 0 have 64"):
        cache.truncate([segment(0, 10, 65)])


def test_uncommitted_positions_are_dropped() -> None:
    """A step that was cancelled after it had begun is begun again."""
    cache = make()
    cache.change([TableChange(0, 0, (0,), 10)], ())
    cache.truncate([segment(0, 8, 20)])
    with pytest.raises(ProtocolError, match="slot 0 holds 8, not 9"):
        cache.truncate([segment(0, 9, 20)])
    cache.truncate([segment(0, 8, 20)])
    cache.commit([segment(0, 8, 20)])
    cache.truncate([segment(0, 20, 21)])


def test_unlike_layers_lie_one_after_the_other_and_shared_keys_once() -> None:
    wide, narrow = KVFormat("bf16", 128), KVFormat("bf16", 32)
    cache = KVCache([LayerKV(1, wide), LayerKV(3, narrow), 0, LayerKV(2, wide), 1], slots=1, capacity=100)
    parts = [one.part_bytes(64) for one in (wide, narrow, wide)]
    assert (cache.page_positions, cache.pages) == (64, 2)
    assert cache.page_bytes == parts[0] + 3 * parts[1] + 2 * parts[2]
    offsets = [layout.layer_offset for layout in cache.layouts]
    assert offsets == [0, parts[0], 0, parts[0] + 3 * parts[1], parts[0]]
    assert cache.extents.shape == (2, cache.page_bytes // parts[1], parts[1])
    cache.change([TableChange(0, 0, (1, 0), 0)], ())
    cache.truncate([segment(0, 0, 70)])
    spans = Spans([cache.span(0, 0, 70)], cache.page_positions)
    kept = [torch.randn(70, layout.kv_heads, layout.format.width) for layout in cache.kept]
    for x_TKd, layout in zip(kept, cache.kept, strict=True):
        append_pages(x_TKd, -x_TKd, spans, layout)
    for layer, of in enumerate([0, 1, 0, 2, 1]):
        x_TKd, layout = kept[of], cache.layouts[layer]
        alone = KVCache([LayerKV(layout.kv_heads, layout.format)], slots=1, capacity=100)
        alone.change([TableChange(0, 0, (0, 1), 0)], ())
        own = Spans([alone.span(0, 0, 70)], alone.page_positions)
        append_pages(x_TKd, -x_TKd, own, alone.layouts[0])
        heads = tuple(range(layout.kv_heads))
        expected = attention_pages(x_TKd, own, alone.layouts[0], heads)
        assert torch.equal(attention_pages(x_TKd, spans, layout, heads), expected)


def test_page_has_as_many_positions_on_every_node() -> None:
    """Nodes own other numbers of KV heads, and rank 0 numbers the pages of all."""
    formats = [KVFormat("q4", width) for width in (64, 100, 256)]
    caches = [
        KVCache([LayerKV(heads, one) for one in formats], slots=1, capacity=1000) for heads in (0, 1, 3)
    ]
    assert len({(cache.page_positions, cache.pages, cache.extents.shape[2]) for cache in caches}) == 1
