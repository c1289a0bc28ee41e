"""All layers at once have the bits of one block after the other."""

import struct

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from tests.unit.kernels.paged import PagedCache
from tests.unit.kernels.test_attention_block import EPS, GRID, HIDDEN, matrix, rotation
from tpiedge.kernels.attention_block import AttentionBlock, FusedAttention, RotaryRows
from tpiedge.kernels.dispatch import NATIVE_TOKENS
from tpiedge.kernels.ffn import FusedFFN
from tpiedge.kernels.grid import Grid, add_sums
from tpiedge.kernels.kv_format import KVFormat
from tpiedge.kernels.linear import Linear
from tpiedge.kernels.stack import FusedLayers
from tpiedge.wire.fields import KVPrecision

LAYERS, WIDTH, CAPACITY = 3, 24, 150


def blocks(
    linear: Linear, cache: PagedCache, ffn_units: int = 3, grid: Grid = GRID, biased: bool = False
) -> list[tuple[FusedAttention, FusedFFN]]:
    assert linear.pool is not None
    made = []
    for layout in cache.layouts:
        q, kv, o = matrix(4, WIDTH, 4, False), matrix(2, WIDTH, 8, False), matrix(4, WIDTH, 4, True)
        qkv_biases = (torch.randn(4 * WIDTH), torch.randn(2 * WIDTH), torch.randn(2 * WIDTH))
        block = AttentionBlock(
            (q, kv, kv, o),
            grid,
            qkv_biases if biased else None,
            torch.rand(HIDDEN) + 0.5,
            None,
            EPS,
            (0, 0, 1, 1),
            None,
            WIDTH,
        )
        gate, up, down = (matrix(ffn_units, 20, 4, transposed) for transposed in (False, False, True))
        biases = (torch.randn(ffn_units * 20), torch.randn(ffn_units * 20)) if biased else (None, None)
        ffn = FusedFFN(torch.rand(HIDDEN) + 0.5, EPS, (gate, up, down), linear.pool, grid, biases)
        made.append((FusedAttention(block, layout, linear.pool), ffn))
    return made


def new_cache(kv: KVPrecision) -> PagedCache:
    return PagedCache(KVFormat(kv, WIDTH), 2, layers=LAYERS, pages=32)


def written(cache: PagedCache, layer: int) -> bool:
    """Whether the cache keeps anything of that layer."""
    layout = cache.layouts[layer]
    part = slice(layout.layer_offset, layout.layer_offset + layout.kv_heads * layout.head_bytes)
    return bool((cache.store_PB[:, part] != 0xFF).any())


@pytest.mark.parametrize("exponent", [-18, -32], ids=["narrow", "wide"])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("kv", ["f32", "bf16", "q8", "q4"])
def test_the_bits_of_one_block_after_the_other(
    linear: Linear, kv: KVPrecision, biased: bool, exponent: int
) -> None:
    torch.manual_seed(1)
    cache, grid = new_cache(kv), Grid(exponent)
    layers = blocks(linear, cache, grid=grid, biased=biased)
    assert linear.pool is not None
    stack = FusedLayers(layers, linear.pool)
    assert stack.most_tokens >= NATIVE_TOKENS
    one, other = cache.table(CAPACITY), cache.table(CAPACITY)
    start = 0
    for tokens in (5, 1, 1, NATIVE_TOKENS):
        x_TH = torch.randn(tokens, HIDDEN)
        expected_TH = x_TH.clone()
        cos_Tr, sin_Tr = rotation(start, tokens, WIDTH)
        seconds = stack.run(x_TH, cache.spans((tokens, start, one)), cos_Tr, sin_Tr)
        spans, rotary = cache.spans((tokens, start, other)), RotaryRows(cos_Tr, sin_Tr, 0)
        for attention, ffn in layers:
            for block in (lambda x_TH, of=attention, at=(spans, rotary): of.run(x_TH, *at), ffn.run):
                sums_TH = block(expected_TH)
                assert sums_TH.dtype is (torch.int64 if exponent == -32 else torch.int32)
                add_sums(expected_TH, sums_TH, grid, linear.pool)
        assert torch.equal(x_TH, expected_TH)
        assert x_TH.isfinite().all()
        assert min(seconds) > 0
        start += tokens
    for layer in range(LAYERS):
        for found, expected in zip(
            cache.rows(one, start, layer), cache.rows(other, start, layer), strict=True
        ):
            assert torch.equal(found, expected)


@pytest.mark.parametrize("kv", ["f32", "bf16", "q8", "q4"])
def test_rows_of_many_sequences_have_the_bits_that_they_have_alone(linear: Linear, kv: KVPrecision) -> None:
    """After a prompt each; the spans have another order than the sequences, and two are of one sequence."""
    torch.manual_seed(1)
    cache, pool = new_cache(kv), linear.pool
    assert pool is not None
    stack = FusedLayers(blocks(linear, cache), pool)
    cos_Tr, sin_Tr = rotation(0, CAPACITY, WIDTH)

    def run(x_TH: Tensor, *spans: tuple[int, int, NDArray[np.int64]]) -> Tensor:
        at = torch.cat([torch.arange(start, start + tokens) for tokens, start, _ in spans])
        result_TH = x_TH.clone()
        stack.run(result_TH, cache.spans(*spans), cos_Tr[at], sin_Tr[at])
        return result_TH

    lengths = (63, 1, 64, 129, 20)
    together, alone = ([cache.table(CAPACITY) for _ in lengths] for _ in range(2))
    for length, *tables in zip(lengths, together, alone, strict=True):
        prompt_TH = torch.randn(length, HIDDEN)
        assert torch.equal(*(run(prompt_TH, (length, 0, table)) for table in tables))
    order = (
        (1, 0, 1),
        (3, 0, 2),
        (0, 0, 3),
        (4, 0, 1),
        (3, 2, 4),
        (2, 0, 1),
    )  # sequence, after its length, tokens
    x_TH = torch.randn(sum(tokens for *_, tokens in order), HIDDEN)
    found_TH = run(x_TH, *((tokens, lengths[of] + after, together[of]) for of, after, tokens in order))
    first = 0
    for of, after, tokens in order:
        rows, first = slice(first, first + tokens), first + tokens
        expected_TH = run(x_TH[rows], (tokens, lengths[of] + after, alone[of]))
        assert torch.equal(found_TH[rows], expected_TH), of


def beyond_memory(packed: bytes, at: int) -> bytes:
    """The same block, but its matrix `at` has more columns than any memory: inputs, or outputs where row-parallel."""
    column = struct.calcsize("=11q") * at + struct.calcsize("=5q")
    return packed[:column] + struct.pack("=q", 1 << 50) + packed[column + 8 :]


@pytest.mark.parametrize(("at", "appends"), [(0, False), (3, True)], ids=["q, k and v", "o"])
def test_attention_without_memory_says_so_and_stops(linear: Linear, at: int, appends: bool) -> None:
    cache = new_cache("f32")
    (attention, _), *_ = blocks(linear, cache)
    right, attention.packed = attention.packed, beyond_memory(attention.packed, at)
    spans, rotary = cache.spans((2, 0, cache.table(2))), RotaryRows(*rotation(0, 2, WIDTH), 0)
    x_TH = torch.randn(2, HIDDEN)
    with pytest.raises(MemoryError, match="native kernels"):
        attention.run(x_TH, spans, rotary)
    assert written(cache, 0) == appends
    attention.packed = right
    assert attention.run(x_TH, spans, rotary).any()


@pytest.mark.parametrize(
    ("block", "at", "layers"),
    [(0, 0, [True, False, False]), (1, 2, [True, True, False])],
    ids=["attention", "ffn"],
)
def test_a_stack_without_memory_says_so_and_stops(
    linear: Linear, block: int, at: int, layers: list[bool]
) -> None:
    cache = new_cache("f32")
    made = blocks(linear, cache)
    made[1][block].packed = beyond_memory(made[1][block].packed, at)
    assert linear.pool is not None
    stack = FusedLayers(made, linear.pool)
    with pytest.raises(MemoryError, match="native kernels"):
        stack.run(torch.randn(2, HIDDEN), cache.spans((2, 0, cache.table(2))), *rotation(0, 2, WIDTH))
    assert [written(cache, layer) for layer in range(LAYERS)] == layers


def test_what_does_not_fit_is_refused(linear: Linear) -> None:
    cache, pool = new_cache("f32"), linear.pool
    assert pool is not None
    layers = blocks(linear, cache)
    with pytest.raises(ValueError, match="0 layers"):
        FusedLayers([], pool)
    larger = PagedCache(KVFormat("f32", WIDTH), 2, layers=LAYERS, positions=128)
    with pytest.raises(ValueError, match="4 layers"):
        FusedLayers([*layers, blocks(linear, larger)[0]], pool)
    stack, (cos_Tr, sin_Tr) = FusedLayers(layers, pool), rotation(0, 2, WIDTH)
    two, three = (cache.spans((tokens, 0, cache.table(3))) for tokens in (2, 3))
    for x_TH, spans in (
        (torch.zeros(3, HIDDEN), three),  # more than the tables have
        (torch.zeros(3, HIDDEN), two),
        (torch.zeros(2, HIDDEN), larger.spans((2, 0, larger.table(2)))),
        (torch.zeros(2, HIDDEN + 1), two),
        (torch.zeros(HIDDEN, 2).t(), two),
        (torch.zeros(2, HIDDEN, dtype=torch.float64), two),
    ):
        with pytest.raises(ValueError):
            stack.run(x_TH, spans, cos_Tr, sin_Tr)
