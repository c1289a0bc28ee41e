"""Computes a node's quantised attention block, or all layers, in one native call. The results have the same bits as
results of linear.py, elementwise.py, attention.py and grid.py.

T tokens, H hidden size, n query heads, K KV heads, d head width, r rotated width, O outputs.
"""

import ctypes
import struct
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tpiedge.kernels.attention import check_sinks, head_starts, score_numbers
from tpiedge.kernels.elementwise import Rotation
from tpiedge.kernels.experts import FusedExperts
from tpiedge.kernels.ffn import NORMED_BYTES, SCRATCH_BYTES, FusedFFN, check_inputs
from tpiedge.kernels.grid import PLAIN_END, BlockEnd, Grid, sums_of
from tpiedge.kernels.kv_pages import PageLayout, Spans
from tpiedge.kernels.library import (
    F32_BYTES,
    NO_PANELS,
    Pool,
    address,
    check_f32,
    pack_panels,
    pack_row_parallel,
)
from tpiedge.kernels.linear import check_weight
from tpiedge.kernels.panel_matrix import PanelMatrix
from tpiedge.kernels.shared_library import MAX_HEAD_WIDTH

# As AttentionBlock of native/interface.h: between its matrices and its layout, and after it; at the end `head_starts`.
_BLOCK = struct.Struct("=12q")
_REST = struct.Struct("=q3d")
# As PanelBlock of native/interface.h, before the block's end.
_PANEL_BLOCK = struct.Struct("=4q")

Projections = tuple[PanelMatrix, PanelMatrix | None, PanelMatrix | None, PanelMatrix]


class FusedAttention:
    """An attention block for one KV cache. `matrices` are q, k, v and o; their memory must not move. Raises ValueError.

    - Without v, values are the products of k before its norm. Without k and v, nothing is appended to the cache, and
      `layout` belongs to the earlier layer whose keys and values are used.
    - `biases` belong to q, k and v, `head_norms_d` to q and k, `value_norm_d` to values.
    - `own_heads` says that q and k have all nodes' heads, and that each of their norms is over all of them at once.
      It is the first own query head and KV head.
    - `rotated`: columns of a head, None for all. `sinks_n`, `window`, `scale`, `cap`: attention.py.
    """

    def __init__(
        self,
        matrices: Projections,
        grid: Grid,
        norm_H: Tensor | None,
        eps: float,
        kv_of_head: tuple[int, ...],
        layout: PageLayout,
        pool: Pool,
        *,
        biases: tuple[Tensor | None, Tensor | None, Tensor | None] = (None, None, None),
        head_norms_d: tuple[Tensor | None, Tensor | None] | None = None,
        value_norm_d: Tensor | None = None,
        own_heads: tuple[int, int] | None = None,
        sinks_n: Tensor | None = None,
        window: int | None = None,
        scale: float | None = None,
        cap: float = 0.0,
        rotated: int | None = None,
    ) -> None:
        q, k, v, o = matrices
        width = layout.format.width
        self.rotated = width if rotated is None else rotated
        if width > MAX_HEAD_WIDTH:
            raise ValueError(f"heads of {width} columns, more than {MAX_HEAD_WIDTH}")
        if self.rotated % 2 or not 0 <= self.rotated <= width:
            raise ValueError(f"{self.rotated} of {width} columns are to be rotated")
        _check_matrices(matrices, layout, own_heads or (0, 0), whole=own_heads is not None)
        for w, bias_R in zip((q, k, v), biases, strict=True):
            if bias_R is not None:
                check_f32("a bias", bias_R, (0 if w is None else w.rows,))
        if norm_H is not None:
            check_f32("a norm", norm_H, (q.cols,))
        norms = *(head_norms_d or (None, None)), value_norm_d
        for w, norm_d, heads in zip((q, k, v or k), norms, (own_heads, own_heads, None), strict=True):
            if norm_d is not None:
                check_f32("a head's norm", norm_d, (0 if w is None else w.rows if heads else width,))
        check_sinks(sinks_n, o.rows // width)
        numbers = score_numbers(width, window, scale, cap)
        projections = [w for w in (q, k, v) if w is not None]
        self.packed = b"".join(
            (
                *(pack_panels(w, bias_R=bias_R) for w, bias_R in zip(projections, biases, strict=False)),
                NO_PANELS * (3 - len(projections)),
                pack_row_parallel(o, grid.exponent, grid.most),
                _BLOCK.pack(
                    *(len(projections), q.cols, address(norm_H), o.rows // width),
                    *map(address, (*norms, sinks_n)),
                    *(own_heads is not None, *(own_heads or (0, 0)), self.rotated),
                ),
                layout.packed,
                _REST.pack(numbers[0], eps, *numbers[1:]),
                head_starts(kv_of_head, o.rows // width, layout.kv_heads),
            )
        )
        self._kept = matrices, biases, norm_H, norms, sinks_n  # their addresses are packed
        self._pool = pool
        self.hidden, self.outputs = q.cols, o.cols
        self._layout, self.positions = layout, layout.positions
        k_rows = 0 if k is None else k.rows
        self.scratch = q.cols + 2 * (q.rows + k_rows) + layout.kv_heads * width

    def run(self, x_TH: Tensor, spans: Spans, rotation: Rotation) -> Tensor:
        """Appends k and v to the cache. Returns integers [T, O], in units of 2**`grid.exponent`."""
        self.check(x_TH, spans)
        rotation.check(spans.tokens, self.rotated)
        x_TH = x_TH.contiguous()
        scratch = torch.empty(spans.tokens * self.scratch)

        # Between separate calls, weights would evict Python's code from the CPU's caches.
        def compute(sums_TO: Tensor, wide: bool) -> bool:
            return self._pool.call(
                "tpiedge_panels_attention",
                self.packed,
                x_TH.data_ptr(),
                sums_TO.data_ptr(),
                spans.packed,
                len(spans),
                rotation.packed,
                scratch.data_ptr(),
                wide,
            )

        return sums_of((spans.tokens, self.outputs), compute)

    def check(self, x_TH: Tensor, spans: Spans) -> None:
        spans.check_pages(self._layout)
        check_f32("activations", x_TH, (spans.tokens, self.hidden), contiguous=False)


class FusedPair(NamedTuple):
    """An FFN and experts side by side. Their sums have one grid and one end."""

    ffn: FusedFFN
    experts: FusedExperts


_KINDS = FusedAttention, FusedFFN, FusedExperts  # in the order of PanelBlock
_Blocks = tuple[FusedFFN | FusedExperts | FusedPair, ...]


class FusedLayers:
    """Computes all layers in one native call, on a single node. All layers have the same H and positions of a page.

    A layer is an attention block and any number of FFNs, blocks of experts or pairs. `ends` has the ends of a layer's
    blocks. `rotations` has the number of the call's rotation that each layer uses. FFNs without up use the columns of a
    call's inputs one after the other. Raises ValueError.
    """

    def __init__(
        self,
        layers: Sequence[tuple[FusedAttention, *_Blocks]],
        pool: Pool,
        ends: Sequence[tuple[BlockEnd, ...]] | None = None,
        rotations: Sequence[int] | None = None,
    ) -> None:
        ends = [(PLAIN_END,) * len(layer) for layer in layers] if ends is None else ends
        rotations = [0] * len(layers) if rotations is None else rotations
        blocks = [_parts(block) for layer in layers for block in layer]
        hidden = {width for parts in blocks for one in parts for width in (one.hidden, one.outputs)}
        positions = {attention.positions for attention, *_ in layers}
        turned = {(number, layer[0].rotated) for number, layer in zip(rotations, layers, strict=True)}
        #: Columns that each of a call's rotations has.
        self.rotated = [columns for _, columns in sorted(turned)]
        if len(hidden) != 1 or len(positions) != 1 or sorted(set(rotations)) != list(range(len(turned))):
            raise ValueError(
                f"{len(layers)} layers of hidden sizes {hidden}, with positions of a page {positions} and rotated "
                f"columns {turned}"
            )
        self._layers, self._ends = tuple(layers), tuple(ends)  # their addresses are packed
        self._pool = pool
        #: Columns of a call's inputs.
        self.inputs = 0
        self._packed, width = b"", hidden.pop()
        for layer, of_layer, number in zip(layers, ends, rotations, strict=True):
            for parts, end in zip(map(_parts, layer), of_layer, strict=True):
                end.check(width)
                if end.sums != len(parts):
                    raise ValueError(f"a block of {len(parts)} sums has an end of {end.sums}")
                addresses = [0] * len(_KINDS)
                for one in parts:
                    addresses[_KINDS.index(type(one))] = _bytes_address(one.packed)
                first = number if isinstance(parts[0], FusedAttention) else self.inputs
                self._packed += _PANEL_BLOCK.pack(*addresses, first) + end.packed
                self.inputs += sum(one.inputs for one in parts if isinstance(one, FusedFFN))
        self._scratch = max(
            len(parts) * width + max(len(parts) * width, *(one.scratch for one in parts)) for parts in blocks
        )
        #: The most tokens whose scratch is not larger than the scratch of an FFN block.
        self.most_tokens = max(1, (SCRATCH_BYTES + NORMED_BYTES) // (F32_BYTES * self._scratch))

    def run(
        self, x_TH: Tensor, spans: Spans, rotations: Sequence[Rotation], inputs_TC: Tensor | None = None
    ) -> tuple[float, float]:
        """Changes `x_TH` as every block ends. Returns (attention's seconds, the other blocks' seconds)."""
        self._layers[0][0].check(x_TH, spans)
        inputs, stride = check_inputs(inputs_TC, spans.tokens, self.inputs)
        for rotation, rotated in zip(rotations, self.rotated, strict=True):
            rotation.check(spans.tokens, rotated)
        if not x_TH.is_contiguous():
            raise ValueError("activations to add to are not contiguous")
        scratch = torch.empty(spans.tokens * self._scratch)
        seconds = (ctypes.c_double * 2)()
        self._pool.call(
            "tpiedge_panels_stack",
            self._packed,
            sum(map(len, self._layers)),
            x_TH.data_ptr(),
            spans.packed,
            len(spans),
            b"".join(rotation.packed for rotation in rotations),
            inputs,
            stride,
            scratch.data_ptr(),
            ctypes.addressof(seconds),
        )
        return seconds[0], seconds[1]


def _parts(
    block: FusedAttention | FusedFFN | FusedExperts | FusedPair,
) -> tuple[FusedAttention | FusedFFN | FusedExperts, ...]:
    return block if isinstance(block, FusedPair) else (block,)


def _check_matrices(matrices: Projections, layout: PageLayout, first: tuple[int, int], whole: bool) -> None:
    (q, k, v, o), width = matrices, layout.format.width
    for w in (q, k, v):
        if w is not None:
            check_weight(w, input_dim=1)
    check_weight(o, input_dim=0)
    kv_rows = layout.kv_heads * width
    rows = [(q.rows, first[0] * width + o.rows)]
    if k is not None:
        rows.append((k.rows, first[1] * width + kv_rows))
    if not (
        all(w.cols == q.cols for w in (k, v) if w is not None)
        and all(0 <= used <= had and (whole or used == had) and had % width == 0 for had, used in rows)
        and o.rows % width == 0
        and min(first) >= 0
        and (v is None or (k is not None and v.rows == kv_rows))
    ):
        shapes = [None if w is None else list(w.shape) for w in matrices]
        raise ValueError(
            f"q, k, v and o are {shapes} for {layout.kv_heads} KV heads of {width}, from {first} on"
        )


def _bytes_address(data: bytes) -> int:
    return ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0
