"""The attention block as one native call has the bits of its parts."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.unit.kernels.paged import PagedCache
from tpiedge.kernels.attention import append_pages, attention_pages, kv_of_heads
from tpiedge.kernels.attention_block import AttentionBlock, FusedAttention, RotaryRows, all_panels
from tpiedge.kernels.grid import MOST, Grid
from tpiedge.kernels.kv_format import KVFormat
from tpiedge.kernels.kv_pages import Spans
from tpiedge.kernels.linear import Linear
from tpiedge.kernels.norm import rms_norm
from tpiedge.kernels.panel_matrix import PanelMatrix
from tpiedge.kernels.panels import PanelShape
from tpiedge.kernels.quantise import quantise_unit
from tpiedge.kernels.rope import rope, tables
from tpiedge.wire.fields import KVPrecision

HIDDEN, EPS = 72, 1e-5
GRID = Grid(-18)


def matrix(units: int, width: int, bits: int, transposed: bool) -> PanelMatrix:
    """`units` heads of random weights."""
    outputs, inputs = (HIDDEN, width) if transposed else (width, HIDDEN)
    shape = PanelShape(bits, outputs, inputs)
    unit_nbytes = -(-shape.nbytes // 4096) * 4096
    data = torch.zeros(units * unit_nbytes, dtype=torch.uint8)
    for unit in range(units):
        values = torch.randn(outputs, inputs).numpy()
        quantise_unit(values, shape, True, data.numpy()[unit * unit_nbytes :][: shape.nbytes])
    return PanelMatrix(data, bits, units * width, HIDDEN, width, unit_nbytes, transposed)


def in_turn(
    x_TH: Tensor, block: AttentionBlock, cache: PagedCache, spans: Spans, rotary: RotaryRows, linear: Linear
) -> Tensor:
    q, k, v, o = block.matrices
    tokens, width = len(x_TH), cache.layout.format.width
    cos_Tr, sin_Tr = (table[rotary.row : rotary.row + tokens] for table in (rotary.cos_Tr, rotary.sin_Tr))
    h_TH = rms_norm(x_TH, block.norm_H, EPS, linear.pool)
    outputs = linear.project_many(h_TH, (q, k, v))
    if block.biases is not None:
        outputs = [y + bias for y, bias in zip(outputs, block.biases, strict=True)]
    q_TNd, k_TKd, v_TKd = (y.view(tokens, -1, width) for y in outputs)
    if block.head_norms_d is not None:
        q_TNd, k_TKd = (
            rms_norm(x, norm, EPS, linear.pool)
            for x, norm in zip((q_TNd, k_TKd), block.head_norms_d, strict=True)
        )
    q_TNd, k_TKd = (rope(x, cos_Tr, sin_Tr, linear.pool) for x in (q_TNd, k_TKd))
    append_pages(k_TKd, v_TKd, spans, cache.layout, linear.pool)
    out_TNd = attention_pages(
        q_TNd, spans, cache.layout, block.kv_of_head, window=block.window, pool=linear.pool
    )
    return linear.contract(out_TNd.flatten(1), o, block.grid)


def rotation(start: int, tokens: int, width: int) -> tuple[Tensor, Tensor]:
    return tables(torch.arange(start, start + tokens), 10000.0 ** -(torch.arange(0, width, 2) / width))


def at_once(
    x_TH: Tensor, block: AttentionBlock, cache: PagedCache, spans: Spans, rotary: RotaryRows, linear: Linear
) -> Tensor:
    assert linear.pool is not None
    return FusedAttention(block, cache.layout, linear.pool).run(x_TH, spans, rotary)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("kv", ["f32", "bf16", "q8", "q4"])
@pytest.mark.parametrize(
    ("heads", "group", "width", "normed", "window"),
    [
        ((0, 4), 2, 32, False, None),
        ((1, 6), 3, 20, True, None),
        ((0, 2), 2, 64, False, 5),
        ((2, 4), 1, 12, True, 3),
    ],
)
@pytest.mark.parametrize("bits", [8, 4])
def test_the_bits_of_its_parts(
    linear: Linear, bits: int, heads: tuple[int, int], group: int, width: int, normed: bool, window: int | None,
    kv: KVPrecision, biased: bool,
) -> None:  # fmt: skip
    """The last tokens' sums are wide: they are larger."""
    torch.manual_seed(bits + width)
    kv_of_head = kv_of_heads(*heads, group)
    kv_heads = kv_of_head[-1] + 1
    matrices = tuple(
        matrix(units, width, bits, transposed)
        for units, transposed in (
            (len(kv_of_head), False),
            (kv_heads, False),
            (kv_heads, False),
            (len(kv_of_head), True),
        )
    )
    norms = (torch.rand(width) + 0.5, torch.rand(width) + 0.5) if normed else None
    q_bias, k_bias, v_bias = (torch.randn(w.rows) for w in matrices[:3])
    biases = (q_bias, k_bias, v_bias) if biased else None
    norm_H = torch.rand(HIDDEN) + 0.5
    fine = AttentionBlock(matrices, Grid(-32), biases, norm_H, norms, EPS, kv_of_head, window, width)
    coarse = replace(fine, grid=GRID)
    assert all_panels(matrices)
    caches = [PagedCache(KVFormat(kv, width), kv_heads, scattered=scattered) for scattered in (True, False)]
    tables = [(cache.table(80), cache.table(80)) for cache in caches]
    rotary = RotaryRows(*rotation(0, 100, width), 0)
    start = 0
    for tokens, block in ((5, coarse), (1, coarse), (1, fine), (20, coarse), (3, fine), (40, coarse)):
        x_TH, rotary = torch.randn(2 * tokens, HIDDEN), replace(rotary, row=start // 2)
        found_TH, expected_TH = (
            compute(
                x_TH,
                block,
                cache,
                cache.spans((tokens, start, first), (tokens, start, second)),
                rotary,
                linear,
            )
            for compute, cache, (first, second) in zip((at_once, in_turn), caches, tables, strict=True)
        )
        assert torch.equal(found_TH, expected_TH)
        assert found_TH.dtype is expected_TH.dtype is (torch.int64 if block is fine else torch.int32)
        assert found_TH.any()
        assert (found_TH.long() > -MOST).all()
        start += tokens
    for one, other in zip(*tables, strict=True):
        for found, expected in zip(caches[0].rows(one, start), caches[1].rows(other, start), strict=True):
            assert torch.equal(found, expected)


def test_what_does_not_fit_is_refused(linear: Linear) -> None:
    q, o = matrix(2, 16, 4, False), matrix(2, 16, 4, True)
    norm_H, cache = torch.ones(HIDDEN), PagedCache(KVFormat("f32", 16), 2)
    spans, rotary = cache.spans((3, 0, cache.table(8))), RotaryRows(*rotation(0, 3, 16), 0)
    good = AttentionBlock((q, q, q, o), GRID, None, norm_H, None, EPS, (0, 1), None, 16)
    x_TH = torch.ones(3, HIDDEN)
    at_once(x_TH, good, cache, spans, rotary, linear)
    three = matrix(3, 16, 4, False)
    for block in (
        AttentionBlock((q, three, three, o), GRID, None, norm_H, None, EPS, (0, 1), None, 16),
        AttentionBlock((three, q, q, o), GRID, None, norm_H, None, EPS, (0, 1), None, 16),
        AttentionBlock((q, q, q, q), GRID, None, norm_H, None, EPS, (0, 1), None, 16),
        AttentionBlock((q, q, q, o), GRID, None, norm_H[1:], None, EPS, (0, 1), None, 16),
        AttentionBlock(
            (q, q, q, o), GRID, None, norm_H, (torch.ones(15), torch.ones(16)), EPS, (0, 1), None, 16
        ),
        AttentionBlock((q, q, q, o), GRID, None, norm_H, None, EPS, (0, 1), 0, 16),
        AttentionBlock((q, q, q, o), GRID, None, norm_H, None, EPS, (0, 2), None, 16),
        AttentionBlock((q, q, q, o), GRID, None, norm_H, None, EPS, (0, 1), None, 18),
        AttentionBlock((q, q, q, o), GRID, None, norm_H, None, EPS, (0, 1), None, 7),
        replace(good, biases=(torch.ones(32), torch.ones(32), torch.ones(31))),
        replace(good, biases=(torch.ones(32).double(), torch.ones(32), torch.ones(32))),
        replace(good, biases=(torch.ones(32), torch.ones(64)[::2], torch.ones(32))),
    ):
        with pytest.raises(ValueError):
            at_once(x_TH, block, cache, spans, rotary, linear)
    assert linear.pool is not None
    call, (cos_Tr, sin_Tr) = FusedAttention(good, cache.layout, linear.pool), rotation(0, 3, 16)
    call.run(x_TH, spans, rotary)
    for wrong in (
        RotaryRows(cos_Tr[:2], sin_Tr, 0),
        RotaryRows(cos_Tr, sin_Tr, 1),
        RotaryRows(cos_Tr, sin_Tr, -1),
        RotaryRows(cos_Tr, sin_Tr[:, :8], 0),
        RotaryRows(cos_Tr, sin_Tr.double(), 0),
    ):
        with pytest.raises(ValueError, match="table"):
            call.run(x_TH, spans, wrong)
    for wrong_TH in (x_TH[:, 1:], x_TH.double(), x_TH[:2]):
        with pytest.raises(ValueError):
            call.run(wrong_TH, spans, rotary)
    larger = PagedCache(KVFormat("f32", 16), 2, positions=128)
    with pytest.raises(ValueError, match="128"):
        call.run(x_TH, larger.spans((3, 0, larger.table(8))), rotary)
