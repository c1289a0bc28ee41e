import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from tests.unit.kernels.paged import PagedCache
from tpiedge.kernels.attention_block import FusedAttention, FusedLayers
from tpiedge.kernels.elementwise import tables
from tpiedge.kernels.ffn import FusedFFN
from tpiedge.kernels.grid import Grid
from tpiedge.kernels.kv_format import KVFormat
from tpiedge.kernels.linear import Linear
from tpiedge.kernels.panel_matrix import PanelMatrix
from tpiedge.kernels.panels import FORMATS, PanelShape
from tpiedge.kernels.quantise import quantise_unit
from tpiedge.wire.fields import KVPrecision

HIDDEN, EPS = 72, 1e-5
GRID = Grid(-18)
LAYERS, WIDTH, CAPACITY = 3, 24, 150


def matrix(units: int, width: int, bits: int, transposed: bool) -> PanelMatrix:
    outputs, inputs = (HIDDEN, width) if transposed else (width, HIDDEN)
    shape = PanelShape(FORMATS[f"q{bits}"], outputs, inputs)
    unit_nbytes = -(-shape.nbytes // 4096) * 4096
    data = torch.zeros(units * unit_nbytes, dtype=torch.uint8)
    for unit in range(units):
        values = torch.randn(outputs, inputs).numpy()
        quantise_unit(values, shape, True, data.numpy()[unit * unit_nbytes :][: shape.nbytes])
    return PanelMatrix(data, FORMATS[f"q{bits}"], units * width, HIDDEN, width, unit_nbytes, transposed)


def rotation(start: int, tokens: int, width: int) -> tuple[Tensor, Tensor]:
    return tables(torch.arange(start, start + tokens), 10000.0 ** -(torch.arange(0, width, 2) / width))


def blocks(linear: Linear, cache: PagedCache) -> list[tuple[FusedAttention, FusedFFN]]:
    assert linear.pool is not None
    made = []
    for layout in cache.layouts:
        q, kv, o = matrix(4, WIDTH, 4, False), matrix(2, WIDTH, 8, False), matrix(4, WIDTH, 4, True)
        norm_H, heads = torch.rand(HIDDEN) + 0.5, (0, 0, 1, 1)
        attention = FusedAttention((q, kv, kv, o), GRID, norm_H, EPS, heads, layout, linear.pool)
        gate, up, down = (matrix(3, 20, 4, transposed) for transposed in (False, False, True))
        ffn = FusedFFN(torch.rand(HIDDEN) + 0.5, EPS, (gate, up, down), linear.pool, GRID)
        made.append((attention, ffn))
    return made


def new_cache(kv: KVPrecision) -> PagedCache:
    return PagedCache(KVFormat(kv, WIDTH), 2, layers=LAYERS, pages=32)


@pytest.mark.parametrize("kv", ["f32", "bf16", "q8", "q4"])
def test_batched_sequences_have_the_bits_of_single_ones(linear: Linear, kv: KVPrecision) -> None:
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
    for length, *both in zip(lengths, together, alone, strict=True):
        prompt_TH = torch.randn(length, HIDDEN)
        assert torch.equal(*(run(prompt_TH, (length, 0, table)) for table in both))
    # Sequence, after its length, tokens.
    order = (1, 0, 1), (3, 0, 2), (0, 0, 3), (4, 0, 1), (3, 2, 4), (2, 0, 1)
    x_TH = torch.randn(sum(tokens for *_, tokens in order), HIDDEN)
    found_TH = run(x_TH, *((tokens, lengths[of] + after, together[of]) for of, after, tokens in order))
    first = 0
    for of, after, tokens in order:
        rows, first = slice(first, first + tokens), first + tokens
        expected_TH = run(x_TH[rows], (tokens, lengths[of] + after, alone[of]))
        assert torch.equal(found_TH[rows], expected_TH), of


def test_fused_layers_refuse_mismatched_inputs(linear: Linear) -> None:
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
