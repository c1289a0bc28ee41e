"""What has the same bits on every instruction set: all but products of f32 and bf16 matrices."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.unit.kernels.instruction_sets import AVAILABLE
from tests.unit.kernels.paged import PagedCache, attend
from tests.unit.kernels.panel_reference import random_matrix
from tests.unit.kernels.test_attention_block import matrix
from tests.unit.kernels.test_attention_kv import stored
from tests.unit.kernels.test_linear import open_library
from tpiedge.kernels.attention import kv_of_heads
from tpiedge.kernels.attention_block import AttentionBlock, FusedAttention, RotaryRows
from tpiedge.kernels.ffn import FusedFFN
from tpiedge.kernels.grid import Grid
from tpiedge.kernels.kv_format import KVFormat
from tpiedge.kernels.library import Pool
from tpiedge.kernels.norm import rms_norm
from tpiedge.kernels.rope import rope, tables
from tpiedge.kernels.swiglu import swiglu
from tpiedge.wire.fields import KVPrecision

pytestmark = pytest.mark.skipif(
    len(AVAILABLE) < 2, reason="system: this CPU and build have fewer than two instruction sets to compare"
)

WIDTHS = [64, 80, 96, 100, 128, 20]
STORED: list[KVPrecision] = ["f32", "bf16", "q8", "q4"]
GROUPS = [1, 3, 8, 20]


@pytest.fixture(scope="module")
def pools() -> Iterator[dict[str, Pool]]:
    """One thread and two in turn."""
    opened = {isa: Pool(open_library(isa), 1 + number % 2) for number, isa in enumerate(AVAILABLE)}
    yield opened
    for pool in opened.values():
        pool.close()


def assert_same(pools: dict[str, Pool], compute: Callable[[Pool], Tensor], says: object = "") -> None:
    first, *others = (compute(pool).numpy() for pool in pools.values())
    assert np.isfinite(first).all()
    for isa, found in zip(list(pools)[1:], others, strict=True):
        assert found.tobytes() == first.tobytes(), (isa, says, np.abs(found - first).max())


def of_all_sizes(*shape: int) -> Tensor:
    """Numbers whose sums show every change of their order."""
    return torch.randn(shape) * torch.exp(4 * torch.randn(shape))


@pytest.mark.parametrize("width", [1, 3, 16, 17, 63, 64, 65, 100, 127, 129, 896, 2053])
def test_rms_norm(pools: dict[str, Pool], width: int) -> None:
    for tokens in (1, 2, 40):
        x, weight = of_all_sizes(tokens, width), torch.randn(width)
        assert_same(pools, lambda pool, x=x, weight=weight: rms_norm(x, weight, 1e-6, pool), tokens)
    for scale in (1e-30, 1e-18, 1e18):  # squares that are denormal, or nearly infinite
        x = torch.randn(3, width) * scale
        assert_same(pools, lambda pool, x=x: rms_norm(x, torch.ones(width), 1e-6, pool), scale)


@pytest.mark.parametrize("width", WIDTHS)
def test_rope(pools: dict[str, Pool], width: int) -> None:
    for tokens in (1, 40):
        for rotated in {width, width // 4 * 2}:
            cos, sin = tables(torch.arange(tokens) * 997, torch.rand(rotated // 2))
            x = of_all_sizes(tokens, 3, width)
            assert_same(pools, lambda pool, x=x, cos=cos, sin=sin: rope(x, cos, sin, pool), (tokens, rotated))


def test_swiglu(pools: dict[str, Pool]) -> None:
    gates = torch.cat(
        (torch.linspace(-100, 100, 20_001), of_all_sizes(5000), torch.zeros(2), -torch.zeros(1))
    )
    assert_same(pools, lambda pool: swiglu(gates[None], torch.ones_like(gates)[None], pool))
    for count in (1, 7, 15, 16, 17, 130):
        gate, up = of_all_sizes(3, count), of_all_sizes(3, count)
        assert_same(pools, lambda pool, gate=gate, up=up: swiglu(gate.clone(), up, pool), count)


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("precision", STORED)
def test_attention(pools: dict[str, Pool], precision: KVPrecision, width: int, group: int) -> None:
    """Sharp and flat softmaxes, windows, some tokens alone and up to 40 together."""
    kv = kv_of_heads(0, 2 * group, group)
    for tokens, before, window, scale in [
        (1, 0, None, 1), (1, 200, 70, 5), (2, 62, None, 1), (5, 63, 5, 20), (17, 100, 64, 1), (40, 90, None, 2),
    ]:  # fmt: skip
        (k, _), (v, _) = (stored(torch.randn(2, before + tokens, width), precision) for _ in "kv")
        q = torch.randn(tokens, 2 * group, width) * scale

        def compute(pool: Pool, q=q, k=k, v=v, before=before, window=window) -> Tensor:
            return attend(q, k, v, kv, before, window=window, pool=pool)

        assert_same(pools, compute, (tokens, before, window))


@pytest.mark.parametrize("precision", STORED)
@pytest.mark.parametrize("width", [1, 7, 31, 33, 250, 256])
def test_attention_of_odd_widths(pools: dict[str, Pool], width: int, precision: KVPrecision) -> None:
    (k, _), (v, _) = (stored(torch.randn(1, 140, width), precision) for _ in "kv")
    for tokens in (1, 3, 40):
        q = torch.randn(tokens, 5, width)

        def compute(pool: Pool, q=q, tokens=tokens) -> Tensor:
            return attend(q, k, v, (0,) * 5, 140 - tokens, pool=pool)

        assert_same(pools, compute, tokens)


@pytest.mark.parametrize("exponent", [-14, -30])
@pytest.mark.parametrize("bits", [4, 8])
def test_fused_ffn(pools: dict[str, Pool], bits: int, exponent: int) -> None:
    random = np.random.default_rng(bits)
    gate, up = (random_matrix(random, bits, 300, 90, 128, False).matrix for _ in range(2))
    down = random_matrix(random, bits, 300, 77, 128, True).matrix
    norm, biases = torch.randn(90), (torch.randn(300), torch.randn(300))
    for tokens in (1, 2, 7, 40):
        x = of_all_sizes(tokens, 90)

        def compute(pool: Pool, x=x) -> Tensor:
            block = FusedFFN(norm, 1e-5, (gate, up, down), pool, Grid(exponent), biases)
            return block.run(x).long()  # where both kinds hold the sums, either may come

        assert_same(pools, compute, tokens)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("window", [None, 9])
@pytest.mark.parametrize("width", [64, 80, 20])
@pytest.mark.parametrize("kv", STORED)
def test_fused_attention_blocks(
    pools: dict[str, Pool], kv: KVPrecision, width: int, window: int | None, bits: int
) -> None:
    """With the keys and values that they append."""
    q, k, v, o = (
        matrix(heads, width, bits, transposed)
        for heads, transposed in ((6, False), (2, False), (2, False), (6, True))
    )
    biases = (torch.randn(6 * width), torch.randn(2 * width), torch.randn(2 * width))
    norms = (torch.rand(width) + 0.5, torch.rand(width) + 0.5)
    norm_H, kv_of_head = torch.rand(q.cols) + 0.5, kv_of_heads(0, 6, 3)
    cos_Tr, sin_Tr = tables(torch.arange(90), torch.rand(width // 2))
    steps = [(tokens, of_all_sizes(tokens, q.cols)) for tokens in (30, 1, 40, 2)]

    def compute(pool: Pool) -> Tensor:
        block = AttentionBlock(
            (q, k, v, o), Grid(-16), biases, norm_H, norms, 1e-5, kv_of_head, window, width
        )
        cache = PagedCache(KVFormat(kv, width), 2)
        table, call, start, sums = cache.table(90), FusedAttention(block, cache.layout, pool), 0, []
        for tokens, x_TH in steps:
            rotary = RotaryRows(cos_Tr, sin_Tr, start)
            sums.append(call.run(x_TH, cache.spans((tokens, start, table)), rotary).long())
            start += tokens
        kept = cache.store_PB.flatten().long()
        return torch.cat((*(one.flatten() for one in sums), kept))

    assert_same(pools, compute)
