from dataclasses import dataclass

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from tests.unit.kernels.paged import PagedCache
from tpiedge.kernels.attention import kv_of_heads
from tpiedge.kernels.attention_block import FusedAttention, FusedLayers
from tpiedge.kernels.elementwise import Activation, Rotation, tables
from tpiedge.kernels.ffn import FusedFFN
from tpiedge.kernels.grid import BlockEnd, Grid, add_sums
from tpiedge.kernels.kv_format import KVFormat, whole
from tpiedge.kernels.kv_pages import PageLayout, Span, Spans
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


def rotation(start: int, tokens: int, width: int, turned: int | None = None) -> tuple[Tensor, Tensor]:
    """Angles are zero but for the first `turned // 2` pairs of columns, as "proportional" rotations have it."""
    frequencies = 10000.0 ** -(torch.arange(0, width, 2) / width)
    if turned is not None:
        frequencies[turned // 2 :] = 0
    return tables(torch.arange(start, start + tokens), frequencies)


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
        stack.run(result_TH, cache.spans(*spans), [Rotation(cos_Tr[at], sin_Tr[at])])
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


@dataclass(frozen=True)
class Unlike:
    """A layer of a stack; `rotation` is the number of one of ROTATIONS, `like` the layer whose keys it uses."""

    width: int
    kv_heads: int
    ffn: int
    rotation: int = 0
    window: int | None = None
    like: int | None = None
    gelu: bool = False
    ended: bool = False
    gated: bool = True
    values: bool = False
    inputs: int = 0


ROTATIONS = (24, 10, 0, 256, 512)  # columns
TURNED = (None, None, None, None, 128)
UNLIKE = (
    Unlike(24, 2, 20, window=9),
    Unlike(64, 1, 40, rotation=1, gelu=True, ended=True),
    Unlike(24, 2, 36, like=0, ended=True),
    Unlike(10, 3, 8, rotation=2, window=4),
    Unlike(64, 1, 40, rotation=1, like=1, gated=False),
    Unlike(256, 2, 30, rotation=3, window=7, values=True, inputs=16, ended=True),
    Unlike(512, 1, 12, rotation=4, gelu=True, gated=False, inputs=24),
)
Layers = list[tuple[FusedAttention, *tuple[FusedFFN, ...]]]


def unlike_layers(linear: Linear, kv: KVPrecision, grid: Grid = GRID) -> tuple[Layers, Tensor]:
    """Also returns the pages."""
    assert linear.pool is not None
    formats = [KVFormat(kv, of.width) for of in UNLIKE]
    sizes = [whole(2 * 64 * stored.row_nbytes) for stored in formats]
    offsets = np.cumsum(
        [0] + [size * of.kv_heads * (of.like is None) for size, of in zip(sizes, UNLIKE, strict=True)]
    )
    store_PB, made = torch.zeros(8, int(offsets[-1]), dtype=torch.uint8), Layers()
    for number, of in enumerate(UNLIKE):
        at = number if of.like is None else of.like
        layout = PageLayout(formats[number], of.kv_heads, 64, at, store_PB, int(offsets[at]))
        q, o = matrix(6, of.width, 4, False), matrix(6, of.width, 4, True)
        k = None if of.like is not None else matrix(of.kv_heads, of.width, 8, False)
        attention = FusedAttention(
            (q, k, matrix(of.kv_heads, of.width, 4, False) if of.values else None, o),
            grid,
            torch.rand(HIDDEN) + 0.5,
            EPS,
            kv_of_heads(0, 6, 6 // of.kv_heads),
            layout,
            linear.pool,
            value_norm_d=torch.rand(of.width) + 0.5 if of.width > 64 else None,
            window=of.window,
            rotated=ROTATIONS[of.rotation],
        )
        gate, up, down = (matrix(2, of.ffn, 4, transposed) for transposed in (False, False, True))
        activation = Activation.GELU_TANH if of.gelu else Activation.SILU
        matrices = gate if of.gated else None, up, down
        ffns = [FusedFFN(torch.rand(HIDDEN), EPS, matrices, linear.pool, grid, activation=activation)]
        if of.inputs:
            gate, down = (matrix(1, of.inputs, 8, transposed) for transposed in (False, True))
            ffns.append(FusedFFN(None, 0, (gate, None, down), linear.pool, grid))
        made.append((attention, *ffns))
    return made, store_PB


@pytest.mark.parametrize("most", [GRID.most, 0])
@pytest.mark.parametrize("kv", ["f32", "bf16", "q8", "q4"])
def test_unlike_layers_have_the_bits_of_one_after_the_other(
    linear: Linear, kv: KVPrecision, most: int
) -> None:
    torch.manual_seed(2)
    grid = Grid(GRID.exponent, most)
    (layers, store_PB), pool = unlike_layers(linear, kv, grid), linear.pool
    assert pool is not None
    some = BlockEnd(torch.randn(HIDDEN), torch.rand(HIDDEN), EPS, 0.5, 0.9), BlockEnd(torch.randn(HIDDEN))
    some = *some, BlockEnd(None, torch.rand(HIDDEN), EPS, scale=0.7)
    ends = [
        (some if of.ended else [BlockEnd()] * 3)[: len(layer)]
        for of, layer in zip(UNLIKE, layers, strict=True)
    ]
    stack = FusedLayers(layers, pool, ends, [of.rotation for of in UNLIKE])
    assert stack.rotated == list(ROTATIONS)
    assert stack.inputs == 40
    table = store_PB.data_ptr() + store_PB.stride(0) * np.array([5, 2], dtype=np.int64)
    for start, tokens in ((0, 70), (70, 1), (71, 3)):
        factor_T = torch.rand(tokens) + 0.5
        rotations = [
            Rotation(*rotation(start, tokens, width, turned), factor_T)
            for width, turned in zip(ROTATIONS, TURNED, strict=True)
        ]
        inputs_TC, first = torch.randn(tokens, 50)[:, :40], 0
        spans, x_TH = Spans([Span(tokens, start, table)], 64), torch.randn(tokens, HIDDEN)
        found_TH, before_PB = x_TH.clone(), store_PB.clone()
        stack.run(found_TH, spans, rotations, inputs_TC)
        after_PB = store_PB.clone()
        store_PB.copy_(before_PB)
        for of, (attention, ffn, *more), end in zip(UNLIKE, layers, ends, strict=True):
            turned = rotations[of.rotation]
            sums = attention.run(x_TH, spans, Rotation(turned.cos_Tr, turned.sin_Tr, factor_T))
            add_sums(x_TH, sums, grid, pool, end[0])
            add_sums(x_TH, ffn.run(x_TH), grid, pool, end[1])
            for block in more:
                columns, first = slice(first, first + of.inputs), first + of.inputs
                add_sums(x_TH, block.run(x_TH, inputs_TC[:, columns]), grid, pool, end[2])
        assert found_TH.isfinite().all()
        assert torch.equal(found_TH, x_TH)
        assert torch.equal(after_PB, store_PB)


def test_stacks_refuse_rotations_that_do_not_fit(linear: Linear) -> None:
    (layers, _), pool = unlike_layers(linear, "f32"), linear.pool
    assert pool is not None
    for numbers in ([0] * 7, [0, 1, 0, 3, 1, 4, 5]):
        with pytest.raises(ValueError, match="rotated columns"):
            FusedLayers(layers, pool, rotations=numbers)
    end = BlockEnd(torch.zeros(HIDDEN + 1))
    with pytest.raises(ValueError, match="at a block's end"):
        FusedLayers(layers, pool, [(end,) * len(layer) for layer in layers], [of.rotation for of in UNLIKE])
    with pytest.raises(ValueError, match="zip"):
        FusedLayers(layers, pool, [(BlockEnd(),) * 2] * 7, [of.rotation for of in UNLIKE])
    stack = FusedLayers(layers, pool, rotations=[of.rotation for of in UNLIKE])
    spans = Spans([Span(1, 0, np.zeros(1, np.int64))], 64)
    inputs_TC = torch.zeros(1, 40)
    with pytest.raises(ValueError, match="zip"):
        stack.run(torch.zeros(1, HIDDEN), spans, [Rotation(*rotation(0, 1, 24))], inputs_TC)
    with pytest.raises(ValueError, match="a table of rotations"):
        stack.run(torch.zeros(1, HIDDEN), spans, [Rotation(*rotation(0, 1, 24))] * 5, inputs_TC)
    for wrong in (None, inputs_TC[:, 1:]):
        with pytest.raises(ValueError, match="inputs"):
            stack.run(torch.zeros(1, HIDDEN), spans, [Rotation(*rotation(0, 1, 24))] * 5, wrong)


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
            stack.run(x_TH, spans, [Rotation(cos_Tr, sin_Tr)])
