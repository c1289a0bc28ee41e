"""A node's attention block of quantised matrices as one native call, and all layers as one, with the bits of linear.py,
elementwise.py and attention.py: between separate calls weights drive Python's code out of the CPU's caches.

T tokens, H hidden size, n query heads, K KV heads, d head width, r rotated width.
"""

import ctypes
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tpiedge.kernels.attention import head_starts
from tpiedge.kernels.ffn import NORMED_BYTES, SCRATCH_BYTES, FusedFFN
from tpiedge.kernels.grid import Grid, sums_of
from tpiedge.kernels.kv_pages import PageLayout, Spans
from tpiedge.kernels.library import F32_BYTES, NO_WINDOW, Pool, check_f32, pack_panels, pack_row_parallel
from tpiedge.kernels.linear import check_weight
from tpiedge.kernels.panel_matrix import PanelMatrix
from tpiedge.kernels.shared_library import MAX_HEAD_WIDTH

# As AttentionBlock of native/interface.h, before its layout: H, norm, n, q_norm, k_norm, r; and behind it: window, eps,
# scale. Where the query heads of each KV head begin is last.
_BLOCK = struct.Struct("=6q")
_REST = struct.Struct("=q2d")
# As PanelLayer of native/interface.h.
_LAYER = struct.Struct("=3qd")


@dataclass(frozen=True, slots=True)
class AttentionBlock:
    """What does not depend on tokens. `matrices`: q, k, v and o; `grid`: of o; `biases` of q, k and v and
    `head_norms_d` of queries and keys where the model has them; `rotated`: columns of a head."""

    matrices: tuple[PanelMatrix, PanelMatrix, PanelMatrix, PanelMatrix]
    grid: Grid
    biases: tuple[Tensor, Tensor, Tensor] | None
    norm_H: Tensor
    head_norms_d: tuple[Tensor, Tensor] | None
    eps: float
    kv_of_head: tuple[int, ...]
    window: int | None
    rotated: int


class FusedAttention:
    """One block on the pages of one cache. Raises ValueError for what does not fit together. The block's matrices must
    not move."""

    def __init__(self, block: AttentionBlock, layout: PageLayout, pool: Pool) -> None:
        _check(block, layout)
        q, k, v, o = block.matrices
        width = layout.format.width
        norms = [norm_d.data_ptr() for norm_d in block.head_norms_d or ()] or [0, 0]
        fields = _BLOCK.pack(q.cols, block.norm_H.data_ptr(), q.rows // width, *norms, block.rotated)
        window = NO_WINDOW if block.window is None else block.window
        biases = block.biases or (None, None, None)
        weights = b"".join(
            pack_panels(w, bias_R=bias_R) for w, bias_R in zip((q, k, v), biases, strict=True)
        ) + pack_row_parallel(o, block.grid.exponent, block.grid.most)
        rest = _REST.pack(window, block.eps, 1 / math.sqrt(width))
        starts = head_starts(block.kv_of_head, q.rows // width, layout.kv_heads)
        self.packed = weights + fields + layout.packed + rest + starts
        self._block = block
        self._pool = pool
        self.hidden, self.outputs = q.cols, o.cols
        self.positions, self.rotated = layout.positions, block.rotated
        self.scratch = q.cols + 2 * q.rows + 3 * k.rows

    def run(self, x_TH: Tensor, spans: Spans, cos_Tr: Tensor, sin_Tr: Tensor) -> Tensor:
        """[T, O], sums of the grid: appends k and v to the cache and applies attention and o. A token's bits do not
        depend on the others."""
        self.check(x_TH, spans, cos_Tr, sin_Tr)
        x_TH = x_TH.contiguous()
        scratch = torch.empty(spans.tokens * self.scratch)

        def compute(sums_TO: Tensor, wide: bool) -> bool:
            return self._pool.call(
                "tpiedge_panels_attention",
                self.packed,
                x_TH.data_ptr(),
                sums_TO.data_ptr(),
                spans.packed,
                len(spans),
                cos_Tr.data_ptr(),
                sin_Tr.data_ptr(),
                scratch.data_ptr(),
                wide,
            )

        return sums_of((spans.tokens, self.outputs), compute)

    def check(self, x_TH: Tensor, spans: Spans, cos_Tr: Tensor, sin_Tr: Tensor) -> None:
        if spans.positions != self.positions:
            raise ValueError(f"spans in pages of {spans.positions} positions for pages of {self.positions}")
        check_f32("activations", x_TH, (spans.tokens, self.hidden), contiguous=False)
        check_f32("cosines", cos_Tr, (spans.tokens, self.rotated))
        check_f32("sines", sin_Tr, (spans.tokens, self.rotated))


class FusedLayers:
    """All layers on a lone node. Raises ValueError for blocks that do not fit together."""

    def __init__(self, blocks: Sequence[tuple[FusedAttention, FusedFFN]], pool: Pool) -> None:
        hidden = {width for layer in blocks for block in layer for width in (block.hidden, block.outputs)}
        alike = {(attention.positions, attention.rotated) for attention, _ in blocks}
        if len(hidden) != 1 or len(alike) != 1:
            raise ValueError(
                f"{len(blocks)} layers of hidden sizes {hidden}, with positions of a page and rotated columns {alike}"
            )
        self._packed = b"".join(
            _LAYER.pack(_address(attention.packed), _address(ffn.packed), ffn.norm_H.data_ptr(), ffn.eps)
            for attention, ffn in blocks
        )
        self._blocks = tuple(blocks)
        self._pool = pool
        self._scratch = hidden.pop() + max(block.scratch for layer in blocks for block in layer)
        #: Tokens whose scratch stays within an FFN block's.
        self.most_tokens = max(1, (SCRATCH_BYTES + NORMED_BYTES) // (F32_BYTES * self._scratch))

    def run(self, x_TH: Tensor, spans: Spans, cos_Tr: Tensor, sin_Tr: Tensor) -> tuple[float, float]:
        """Adds every block's result to `x_TH`. Returns the seconds of attention and FFN blocks."""
        self._blocks[0][0].check(x_TH, spans, cos_Tr, sin_Tr)
        if not x_TH.is_contiguous():
            raise ValueError("activations to add to are not contiguous")
        scratch = torch.empty(spans.tokens * self._scratch)
        seconds = (ctypes.c_double * 2)()
        self._pool.call(
            "tpiedge_panels_stack",
            self._packed,
            len(self._blocks),
            x_TH.data_ptr(),
            spans.packed,
            len(spans),
            cos_Tr.data_ptr(),
            sin_Tr.data_ptr(),
            scratch.data_ptr(),
            ctypes.addressof(seconds),
        )
        return seconds[0], seconds[1]


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
        check_f32("a bias", bias_R, (w.rows,))
    if block.window is not None and block.window < 1:
        raise ValueError(f"a window of {block.window} positions")
    if block.rotated % 2 or not 0 <= block.rotated <= width:
        raise ValueError(f"{block.rotated} of {width} columns are to be rotated")
    check_f32("a norm", block.norm_H, (q.cols,))
    for norm_d in block.head_norms_d or ():
        check_f32("a head's norm", norm_d, (width,))


def _address(data: bytes) -> int:
    return ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0
