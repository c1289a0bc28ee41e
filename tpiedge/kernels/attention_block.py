"""A node's part of an attention block of quantised matrices, as one native call.

T tokens, H hidden size, n query heads, K KV heads, d head width, r rotated width.

The same calls one after the other as linear.py, norm.py, rope.py and attention.py make, and the same bits: between two
products Python's own code would have been driven out of the CPU's caches by the weights. For the same reason what does
not depend on the tokens is checked and packed once, for as long as the weights stay where they are.
"""

import math
import struct
from dataclasses import dataclass
from typing import TypeAlias, TypeGuard

import torch
from torch import Tensor

from tpiedge.kernels.attention import head_starts
from tpiedge.kernels.grid import Grid, sums_of
from tpiedge.kernels.kv_pages import PageLayout, Spans
from tpiedge.kernels.library import MAX_HEAD_WIDTH, Pool, pack_panels, pack_row_parallel
from tpiedge.kernels.linear import check_bias, check_weight
from tpiedge.kernels.panel_matrix import PanelMatrix, Weight

# As AttentionBlock of native/interface.h, between the weights and the layout: H, norm, n, q_norm, k_norm, r. Behind the
# layout: window, eps and scale. Where the query heads of each KV head begin is last.
_BLOCK = struct.Struct("=6q")
_REST = struct.Struct("=q2d")
_NO_WINDOW = 1 << 62
_F32_BYTES = 4


Panels: TypeAlias = tuple[PanelMatrix, PanelMatrix, PanelMatrix, PanelMatrix]
"""q, k, v and o."""


def all_panels(matrices: tuple[Weight, ...]) -> TypeGuard[Panels]:
    """Whether q, k, v and o are quantised."""
    return len(matrices) == 4 and all(isinstance(w, PanelMatrix) for w in matrices)


@dataclass(frozen=True, slots=True)
class AttentionBlock:
    """What does not depend on the tokens. `grid`: of o. `biases`: of q, k and v, where the model has them.
    `head_norms_d`: of queries and keys, likewise. `rotated`: columns of a head."""

    matrices: Panels
    grid: Grid
    biases: tuple[Tensor, Tensor, Tensor] | None
    norm_H: Tensor
    head_norms_d: tuple[Tensor, Tensor] | None
    eps: float
    kv_of_head: tuple[int, ...]
    window: int | None
    rotated: int


@dataclass(frozen=True, slots=True)
class RotaryRows:
    """Tables of cosines and sines, [.., r]; row `row` is the first token's, and the other tokens' follow."""

    cos_Tr: Tensor
    sin_Tr: Tensor
    row: int


class FusedAttention:
    """One block on the pages of one cache. Raises ValueError for what does not fit together. It keeps no tensor but
    those of `block`, whose matrices must not move."""

    def __init__(self, block: AttentionBlock, layout: PageLayout, pool: Pool) -> None:
        _check(block, layout)
        q, k, v, o = block.matrices
        width = layout.format.width
        q_norm_d, k_norm_d = block.head_norms_d or (None, None)
        fields = _BLOCK.pack(
            q.cols, block.norm_H.data_ptr(), q.rows // width,
            0 if q_norm_d is None else q_norm_d.data_ptr(), 0 if k_norm_d is None else k_norm_d.data_ptr(),
            block.rotated,
        )  # fmt: skip
        window = _NO_WINDOW if block.window is None else block.window
        rest = _REST.pack(window, block.eps, 1 / math.sqrt(width))
        biases = block.biases or (None, None, None)
        weights = b"".join(
            pack_panels(w, bias_R=bias_R) for w, bias_R in zip((q, k, v), biases, strict=True)
        ) + pack_row_parallel(o, block.grid.exponent, block.grid.most)
        starts = head_starts(block.kv_of_head, q.rows // width, layout.kv_heads)
        self.packed = weights + fields + layout.packed + rest + starts
        self._block = block
        self._pool = pool
        self.hidden, self.outputs = q.cols, o.cols
        #: Of a page of the cache, and columns of a head that are rotated.
        self.positions, self.rotated = layout.positions, block.rotated
        #: Floats for each token.
        self.scratch = q.cols + 2 * q.rows + 3 * k.rows

    def run(self, x_TH: Tensor, spans: Spans, rotary: RotaryRows) -> Tensor:
        """[T, O], sums of the grid: o of the attention of q over the cache, to which k and v are appended before; q, k
        and v of the norm of x. Tokens may be as many as there are; a token's bits do not depend on the others."""
        self.check(x_TH, spans, rotary)
        row = _F32_BYTES * self.rotated * rotary.row
        x_TH = x_TH.contiguous()
        scratch = torch.empty(spans.tokens * self.scratch)

        def compute(sums_TO: Tensor, wide: bool) -> bool:
            return self._pool.attention_panels(
                self.packed,
                x_TH.data_ptr(),
                sums_TO.data_ptr(),
                spans.packed,
                len(spans),
                rotary.cos_Tr.data_ptr() + row,
                rotary.sin_Tr.data_ptr() + row,
                scratch.data_ptr(),
                wide,
            )

        return sums_of((spans.tokens, self.outputs), compute)

    def check(self, x_TH: Tensor, spans: Spans, rotary: RotaryRows) -> None:
        """The native kernels read raw memory, so what they are given is checked: here, in `_check` and in kv_pages.py.
        Raises ValueError."""
        tokens, hidden = x_TH.shape
        if hidden != self.hidden or x_TH.dtype is not torch.float32 or not x_TH.is_cpu:
            raise ValueError(f"activations are {list(x_TH.shape)} {x_TH.dtype}, not f32 [T, {self.hidden}]")
        if tokens != spans.tokens or spans.positions != self.positions:
            raise ValueError(
                f"{tokens} tokens in pages of {self.positions} positions, but spans of {spans.tokens} tokens in "
                f"pages of {spans.positions}"
            )
        for table in (rotary.cos_Tr, rotary.sin_Tr):
            rows, rotated = table.shape
            if (
                rotated != self.rotated
                or not 0 <= rotary.row <= rows - tokens
                or table.dtype is not torch.float32
                or not (table.is_cpu and table.is_contiguous())
            ):
                raise ValueError(
                    f"a table is {list(table.shape)} {table.dtype} for {tokens} tokens from row {rotary.row} on"
                )


def _check(block: AttentionBlock, layout: PageLayout) -> None:
    q, k, v, o = block.matrices
    for w in (q, k, v):
        check_weight(w, input_dim=1)
    check_weight(o, input_dim=0)
    width = layout.format.width
    if width > MAX_HEAD_WIDTH:
        raise ValueError(f"heads of {width} columns, more than {MAX_HEAD_WIDTH}")
    if not (
        q.cols == k.cols == v.cols
        and q.rows == o.rows
        and q.rows % width == 0
        and k.rows == v.rows == layout.kv_heads * width
    ):
        raise ValueError(
            f"q, k, v and o are {list(q.shape)}, {list(k.shape)}, {list(v.shape)} and {list(o.shape)} for "
            f"{layout.kv_heads} KV heads of {width}"
        )
    for w, bias_R in zip((q, k, v), block.biases or (), strict=False):
        check_bias(bias_R, w.rows)
    if block.window is not None and block.window < 1:
        raise ValueError(f"a window of {block.window} positions")
    if block.rotated % 2 or not 0 <= block.rotated <= width:
        raise ValueError(f"{block.rotated} of {width} columns are to be rotated")
    norms = [(norm_d, (width,)) for norm_d in block.head_norms_d or ()]
    for given, shape in ((block.norm_H, (q.cols,)), *norms):
        if (
            given.shape != shape
            or given.dtype is not torch.float32
            or not (given.is_cpu and given.is_contiguous())
        ):
            raise ValueError(f"a norm is {list(given.shape)} {given.dtype}, not f32 {list(shape)}")
