"""A tiny quantised model whose weights and inputs follow from integers alone, computed by any number of nodes.

T tokens, H hidden size. No random generator of a library has a part in it: their streams may change.
"""

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from tests.unit.kernels.paged import PagedCache
from tests.unit.kernels.panel_reference import F32, I64, lay_out, share_of
from tpiedge.kernels.attention import kv_of_heads
from tpiedge.kernels.attention_block import FusedAttention, FusedLayers
from tpiedge.kernels.elementwise import Rotation, tables
from tpiedge.kernels.ffn import FusedFFN
from tpiedge.kernels.grid import NOT_A_NUMBER, Grid, add_sums
from tpiedge.kernels.kv_format import KVFormat
from tpiedge.kernels.kv_pages import PageLayout, Spans
from tpiedge.kernels.library import Pool
from tpiedge.kernels.panel_matrix import PanelMatrix
from tpiedge.kernels.panels import FORMATS
from tpiedge.model.rope import RopeConfig
from tpiedge.model.rotation import rope_frequencies
from tpiedge.pack.share import Share, kv_share
from tpiedge.wire.fields import KVPrecision

HIDDEN, HEADS, GROUP, WIDTH, INNER, UNIT, LAYERS, CAPACITY = 96, 6, 2, 36, 272, 128, 2, 48
KV_HEADS, FFN_UNITS, EPS, WINDOW = HEADS // GROUP, -(-INNER // UNIT), 1e-5, 20
_ROPE = RopeConfig("default", 10000.0, 4096, 4096)


def integers(seed: int, count: int) -> I64:
    z = (np.arange(1, count + 1, dtype=np.uint64) + np.uint64(seed << 20)) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z = (z ^ (z >> np.uint64(shift))) * np.uint64(factor)
    return (z >> np.uint64(32)).astype(np.int64)


def numbers(seed: int, *shape: int) -> Tensor:
    """Multiples of 2**-20 in [-1, 1)."""
    whole = (integers(seed, int(np.prod(shape))) >> 11) - (1 << 20)
    return torch.from_numpy((whole / (1 << 20)).astype(np.float32).reshape(shape))


def inputs(tokens: int) -> Tensor:
    return numbers(99, tokens, HIDDEN)


def matrix(seed: int, bits: int, rows: int, cols: int, rows_per_unit: int, transposed: bool) -> PanelMatrix:
    blobs = []
    for start in range(0, rows, rows_per_unit):
        count = min(rows_per_unit, rows - start)
        outputs, width = (cols, count) if transposed else (count, cols)
        groups = -(-width // 32)
        codes = integers(1000 * seed + start, outputs * width).reshape(outputs, width) % (1 << bits)
        whole = integers(1000 * seed + start + 1, outputs * groups).reshape(outputs, groups)
        scales = (whole % 9 + 8) * (1 - 2 * (whole >> 8 & 1)) / (1 << (6 + bits))
        blobs.append(lay_out(codes, scales.astype(np.float16), bits))
    data_B = torch.frombuffer(bytearray(b"".join(blobs)), dtype=torch.uint8)
    return PanelMatrix(data_B, FORMATS[f"q{bits}"], rows, cols, rows_per_unit, len(blobs[0]), transposed)


@dataclass(frozen=True)
class Layer:
    """q, k, v and o; gate, up and down; biases of all but o and down; norms."""

    attention: tuple[PanelMatrix, PanelMatrix, PanelMatrix, PanelMatrix]
    ffn: tuple[PanelMatrix, PanelMatrix, PanelMatrix]
    biases: tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
    norms_H: tuple[Tensor, Tensor]
    head_norms_d: tuple[Tensor, Tensor]


@functools.cache
def layers(bits: int) -> tuple[Layer, ...]:
    return tuple(_layer(bits, 50 * layer) for layer in range(1, LAYERS + 1))


def _layer(bits: int, seed: int) -> Layer:
    query, kv = HEADS * WIDTH, KV_HEADS * WIDTH
    return Layer(
        (
            matrix(seed, bits, query, HIDDEN, WIDTH, False),
            matrix(seed + 1, bits, kv, HIDDEN, WIDTH, False),
            matrix(seed + 2, bits, kv, HIDDEN, WIDTH, False),
            matrix(seed + 3, bits, query, HIDDEN, WIDTH, True),
        ),
        (
            matrix(seed + 4, bits, INNER, HIDDEN, UNIT, False),
            matrix(seed + 5, bits, INNER, HIDDEN, UNIT, False),
            matrix(seed + 6, bits, INNER, HIDDEN, UNIT, True),
        ),
        (
            numbers(seed + 7, query),
            numbers(seed + 8, kv),
            numbers(seed + 9, kv),
            numbers(seed + 10, INNER),
            numbers(seed + 11, INNER),
        ),
        (1 + numbers(seed + 12, HIDDEN) / 2, 1 + numbers(seed + 13, HIDDEN) / 2),
        (1 + numbers(seed + 14, WIDTH) / 2, 1 + numbers(seed + 15, WIDTH) / 2),
    )


class Node:
    def __init__(
        self, model: Sequence[Layer], heads: Share, units: Share, kv: KVPrecision, grid: Grid, pool: Pool
    ) -> None:
        self._kv = kv_share(heads, GROUP)
        self._cache = PagedCache(KVFormat(kv, WIDTH), len(self._kv), layers=len(model))
        self._table = self._cache.table(CAPACITY)
        self.blocks = [
            (self._attention(layer, layout, heads, grid, pool), _ffn(layer, units, grid, pool))
            for layer, layout in zip(model, self._cache.layouts, strict=True)
        ]

    def spans(self, start: int, tokens: int) -> Spans:
        return self._cache.spans((tokens, start, self._table))

    def _attention(
        self, layer: Layer, layout: PageLayout, heads: Share, grid: Grid, pool: Pool
    ) -> FusedAttention:
        shares = heads, self._kv, self._kv, heads
        q, k, v, o = (
            share_of(w, own.start, own.stop) for w, own in zip(layer.attention, shares, strict=True)
        )
        q_bias, k_bias, v_bias = (
            bias[own.start * WIDTH : own.stop * WIDTH]
            for bias, own in zip(layer.biases, shares[:3], strict=False)
        )
        return FusedAttention(
            (q, k, v, o),
            grid,
            layer.norms_H[0],
            EPS,
            kv_of_heads(heads.start, heads.stop, GROUP),
            layout,
            pool,
            biases=(q_bias, k_bias, v_bias),
            head_norms_d=layer.head_norms_d,
            window=WINDOW,
        )


def _ffn(layer: Layer, units: Share, grid: Grid, pool: Pool) -> FusedFFN:
    gate, up, down = (share_of(w, units.start, units.stop) for w in layer.ffn)
    gate_bias, up_bias = (bias[units.start * UNIT : units.stop * UNIT] for bias in layer.biases[3:])
    return FusedFFN(layer.norms_H[1], EPS, (gate, up, down), pool, grid, (gate_bias, up_bias))


def _rotation(tokens: int) -> tuple[Tensor, Tensor]:
    inv_freq, scale = rope_frequencies(_ROPE, WIDTH)
    return tables(torch.arange(tokens), torch.from_numpy(inv_freq), scale)


def stacked(bits: int, kv: KVPrecision, grid: Grid, steps: Sequence[int], pool: Pool) -> Tensor:
    """[T, H]: what all layers make of the inputs, so many tokens at a time, on one node and in one call each."""
    node = Node(layers(bits), Share(0, HEADS), Share(0, FFN_UNITS), kv, grid, pool)
    stack = FusedLayers(node.blocks, pool)
    cos_Tr, sin_Tr = _rotation(sum(steps))
    x_TH, start = inputs(sum(steps)), 0
    for tokens in steps:
        rows = slice(start, start + tokens)
        stack.run(x_TH[rows], node.spans(start, tokens), [Rotation(cos_Tr[rows], sin_Tr[rows])])
        start += tokens
    return x_TH


def on_nodes(
    bits: int,
    kv: KVPrecision,
    cuts: tuple[Sequence[int], Sequence[int]],
    grid: Grid,
    steps: Sequence[int],
    pool: Pool,
) -> Tensor:
    model = layers(bits)
    nodes = [
        Node(model, Share(*heads), Share(*units), kv, grid, pool)
        for heads, units in zip(pairwise(cuts[0]), pairwise(cuts[1]), strict=True)
    ]
    cos_Tr, sin_Tr = _rotation(sum(steps))
    x_TH, start = inputs(sum(steps)), 0
    for tokens in steps:
        rows = x_TH[start : start + tokens]
        for layer in range(len(model)):
            rotated = Rotation(cos_Tr[start : start + tokens], sin_Tr[start : start + tokens])
            attended = [node.blocks[layer][0].run(rows, node.spans(start, tokens), rotated) for node in nodes]
            add_sums(rows, _total(attended), grid, pool)
            add_sums(rows, _total([node.blocks[layer][1].run(rows) for node in nodes]), grid, pool)
        start += tokens
    return x_TH


def _total(parts: Sequence[Tensor]) -> Tensor:
    total = torch.zeros(parts[0].shape, dtype=torch.int64)
    for part in reversed(parts):
        add_steps(total, part.long())
    return total


def add_steps(sums: Tensor, steps: Tensor) -> None:
    lost = (sums == NOT_A_NUMBER) | (steps == NOT_A_NUMBER)
    sums += steps
    sums.masked_fill_(lost, NOT_A_NUMBER)


def digest(x_TH: Tensor) -> str:
    values: F32 = x_TH.numpy()
    return hashlib.sha256(values.astype("<f4").tobytes()).hexdigest()
