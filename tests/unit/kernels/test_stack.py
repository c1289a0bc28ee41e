"""All layers at once have the bits of one block after the other."""

import struct

import pytest
import torch

from tests.unit.kernels.test_attention_block import EPS, GRID, HIDDEN, matrix, rotation
from tpiedge.kernels.attention_block import AttentionBlock, CachePosition, FusedAttention
from tpiedge.kernels.dispatch import NATIVE_TOKENS
from tpiedge.kernels.ffn import FusedFFN
from tpiedge.kernels.grid import Grid, add_sums
from tpiedge.kernels.linear import Linear
from tpiedge.kernels.stack import FusedLayers
from tpiedge.kv.cache import KVCache
from tpiedge.wire.fields import KVPrecision

LAYERS, WIDTH, CAPACITY = 3, 24, 40


def blocks(
    linear: Linear, cache: KVCache, ffn_units: int = 3, grid: Grid = GRID, biased: bool = False
) -> list[tuple[FusedAttention, FusedFFN]]:
    assert linear.pool is not None
    made = []
    for _ in range(LAYERS):
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
        made.append((FusedAttention(block, cache.memory, linear.pool), ffn))
    return made


def caches(kv: KVPrecision) -> list[KVCache]:
    return [
        KVCache(num_layers=LAYERS, kv_heads=2, head_dim=WIDTH, slots=2, capacity=CAPACITY, precision=kv)
        for _ in range(2)
    ]


@pytest.mark.parametrize("exponent", [-18, -32], ids=["narrow", "wide"])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("kv", ["f32", "bf16", "q8", "q4"])
def test_the_bits_of_one_block_after_the_other(
    linear: Linear, kv: KVPrecision, biased: bool, exponent: int
) -> None:
    torch.manual_seed(1)
    (one, other), grid = caches(kv), Grid(exponent)
    layers = blocks(linear, one, grid=grid, biased=biased)
    assert linear.pool is not None
    stack = FusedLayers(layers, [one.addresses(layer, 1) for layer in range(LAYERS)], linear.pool)
    assert stack.most_tokens >= NATIVE_TOKENS
    start = 0
    for tokens in (5, 1, 1, NATIVE_TOKENS):
        x_TH = torch.randn(tokens, HIDDEN)
        expected_TH = x_TH.clone()
        cos_Tr, sin_Tr = rotation(start, tokens, WIDTH)
        seconds = stack.run(x_TH, start, cos_Tr, sin_Tr)
        for layer, (attention, ffn) in enumerate(layers):
            place = CachePosition(start, *other.addresses(layer, 1), cos_Tr, sin_Tr, 0)
            for block in (lambda x_TH, at=place, of=attention: of.run(x_TH, at), ffn.run):
                sums_TH = block(expected_TH)
                assert sums_TH.dtype is (torch.int64 if exponent == -32 else torch.int32)
                add_sums(expected_TH, sums_TH, grid, linear.pool)
        assert torch.equal(x_TH, expected_TH)
        assert x_TH.isfinite().all()
        assert min(seconds) > 0
        start += tokens
    assert torch.equal(one._store, other._store)
    assert one._store[1].any()
    assert not one._store[0].any()


def beyond_memory(packed: bytes, at: int) -> bytes:
    """The same block, but its matrix `at` has more columns than any memory: inputs, or outputs where row-parallel."""
    column = struct.calcsize("=10q") * at + struct.calcsize("=5q")
    return packed[:column] + struct.pack("=q", 1 << 50) + packed[column + 8 :]


@pytest.mark.parametrize(("at", "appends"), [(0, False), (3, True)], ids=["q, k and v", "o"])
def test_attention_without_memory_says_so_and_stops(linear: Linear, at: int, appends: bool) -> None:
    cache, _ = caches("f32")
    (attention, _), *_ = blocks(linear, cache)
    right, attention.packed = attention.packed, beyond_memory(attention.packed, at)
    place = CachePosition(0, *cache.addresses(0, 0), *rotation(0, 2, WIDTH), 0)
    x_TH = torch.randn(2, HIDDEN)
    with pytest.raises(MemoryError, match="native kernels"):
        attention.run(x_TH, place)
    assert cache._store.any() == appends
    attention.packed = right
    assert attention.run(x_TH, place).any()


@pytest.mark.parametrize(
    ("block", "at", "layers"),
    [(0, 0, [True, False, False]), (1, 2, [True, True, False])],
    ids=["attention", "ffn"],
)
def test_a_stack_without_memory_says_so_and_stops(
    linear: Linear, block: int, at: int, layers: list[bool]
) -> None:
    cache, _ = caches("f32")
    made = blocks(linear, cache)
    made[1][block].packed = beyond_memory(made[1][block].packed, at)
    assert linear.pool is not None
    stack = FusedLayers(made, [cache.addresses(layer, 0) for layer in range(LAYERS)], linear.pool)
    with pytest.raises(MemoryError, match="native kernels"):
        stack.run(torch.randn(2, HIDDEN), 0, *rotation(0, 2, WIDTH))
    assert [bool(cache._store[0, layer].any()) for layer in range(LAYERS)] == layers


def test_what_does_not_fit_is_refused(linear: Linear) -> None:
    (cache, _), pool = caches("f32"), linear.pool
    assert pool is not None
    layers, addresses = blocks(linear, cache), [cache.addresses(layer, 0) for layer in range(LAYERS)]
    for given in (addresses[1:], []):
        with pytest.raises(ValueError, match="3 layers"):
            FusedLayers(layers, given, pool)
    with pytest.raises(ValueError, match="0 layers"):
        FusedLayers([], [], pool)
    stack, (cos_Tr, sin_Tr) = FusedLayers(layers, addresses, pool), rotation(0, 2, WIDTH)
    for x_TH, start in (
        (torch.zeros(3, HIDDEN), 0),  # more than the tables have
        (torch.zeros(2, HIDDEN), CAPACITY - 1),
        (torch.zeros(2, HIDDEN + 1), 0),
        (torch.zeros(HIDDEN, 2).t(), 0),
        (torch.zeros(2, HIDDEN, dtype=torch.float64), 0),
    ):
        with pytest.raises(ValueError):
            stack.run(x_TH, start, cos_Tr, sin_Tr)
