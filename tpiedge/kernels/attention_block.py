"""Computes a node's quantised attention block, or all layers, in one native call. The results have the same bits as
results of linear.py, elementwise.py and attention.py.

T tokens, H hidden size, n query heads, K KV heads, d head width, r rotated width, O outputs.
"""

import ctypes
import math
import struct
from collections.abc import Sequence

import torch
from torch import Tensor

from tpiedge.kernels.attention import head_starts
from tpiedge.kernels.ffn import NORMED_BYTES, SCRATCH_BYTES, FusedFFN
from tpiedge.kernels.grid import PLAIN_END, BlockEnd, Grid, sums_of
from tpiedge.kernels.kv_pages import PageLayout, Spans
from tpiedge.kernels.library import F32_BYTES, NO_WINDOW, Pool, check_f32, pack_panels, pack_row_parallel
from tpiedge.kernels.linear import check_weight
from tpiedge.kernels.panel_matrix import PanelMatrix
from tpiedge.kernels.shared_library import MAX_HEAD_WIDTH

# As AttentionBlock of native/interface.h: before its layout H, norm, n, q_norm, k_norm, r; after it window, eps, scale;
# at the end `head_starts`.
_BLOCK = struct.Struct("=6q")
_REST = struct.Struct("=q2d")
# As the addresses of PanelLayer of native/interface.h.
_LAYER = struct.Struct("=2q")


class FusedAttention:
    """An attention block for one KV cache. `matrices` are q, k, v and o; their memory must not move. `biases` belong to
    q, k and v. `head_norms_d` belong to q and k. `rotated` is the number of a head's rotated columns; None means all.
    Raises ValueError."""

    def __init__(
        self,
        matrices: tuple[PanelMatrix, PanelMatrix, PanelMatrix, PanelMatrix],
        grid: Grid,
        norm_H: Tensor,
        eps: float,
        kv_of_head: tuple[int, ...],
        layout: PageLayout,
        pool: Pool,
        *,
        biases: tuple[Tensor | None, Tensor | None, Tensor | None] = (None, None, None),
        head_norms_d: tuple[Tensor, Tensor] | None = None,
        window: int | None = None,
        rotated: int | None = None,
    ) -> None:
        q, k, v, o = matrices
        width = layout.format.width
        self.rotated = width if rotated is None else rotated
        for w in (q, k, v):
            check_weight(w, input_dim=1)
        check_weight(o, input_dim=0)
        if width > MAX_HEAD_WIDTH:
            raise ValueError(f"heads of {width} columns, more than {MAX_HEAD_WIDTH}")
        if self.rotated % 2 or not 0 <= self.rotated <= width:
            raise ValueError(f"{self.rotated} of {width} columns are to be rotated")
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
        for w, bias_R in zip((q, k, v), biases, strict=True):
            if bias_R is not None:
                check_f32("a bias", bias_R, (w.rows,))
        if window is not None and window < 1:
            raise ValueError(f"a window of {window} positions")
        check_f32("a norm", norm_H, (q.cols,))
        for norm_d in head_norms_d or ():
            check_f32("a head's norm", norm_d, (width,))
        norms = [norm_d.data_ptr() for norm_d in head_norms_d or ()] or [0, 0]
        self.packed = b"".join(
            (
                *(pack_panels(w, bias_R=bias_R) for w, bias_R in zip((q, k, v), biases, strict=True)),
                pack_row_parallel(o, grid.exponent, grid.most),
                _BLOCK.pack(q.cols, norm_H.data_ptr(), q.rows // width, *norms, self.rotated),
                layout.packed,
                _REST.pack(NO_WINDOW if window is None else window, eps, 1 / math.sqrt(width)),
                head_starts(kv_of_head, q.rows // width, layout.kv_heads),
            )
        )
        self._kept = matrices, biases, norm_H, head_norms_d  # their addresses are packed
        self._pool = pool
        self.hidden, self.outputs = q.cols, o.cols
        self._layout, self.positions = layout, layout.positions
        self.scratch = q.cols + 2 * q.rows + 3 * k.rows

    def run(self, x_TH: Tensor, spans: Spans, cos_Tr: Tensor, sin_Tr: Tensor) -> Tensor:
        """Appends k and v to the cache. Returns integers [T, O], in units of 2**`grid.exponent`."""
        self.check(x_TH, spans, cos_Tr, sin_Tr)
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
                cos_Tr.data_ptr(),
                sin_Tr.data_ptr(),
                scratch.data_ptr(),
                wide,
            )

        return sums_of((spans.tokens, self.outputs), compute)

    def check(self, x_TH: Tensor, spans: Spans, cos_Tr: Tensor, sin_Tr: Tensor) -> None:
        spans.check_pages(self._layout)
        check_f32("activations", x_TH, (spans.tokens, self.hidden), contiguous=False)
        check_f32("cosines", cos_Tr, (spans.tokens, self.rotated))
        check_f32("sines", sin_Tr, (spans.tokens, self.rotated))


class FusedLayers:
    """Computes all layers in one native call, on a single node. Raises ValueError."""

    def __init__(
        self,
        blocks: Sequence[tuple[FusedAttention, FusedFFN]],
        pool: Pool,
        ends: Sequence[tuple[BlockEnd, BlockEnd]] | None = None,
    ) -> None:
        ends = [(PLAIN_END, PLAIN_END)] * len(blocks) if ends is None else ends
        hidden = {width for layer in blocks for block in layer for width in (block.hidden, block.outputs)}
        alike = {(attention.positions, attention.rotated) for attention, _ in blocks}
        if len(hidden) != 1 or len(alike) != 1:
            raise ValueError(
                f"{len(blocks)} layers of hidden sizes {hidden}, with positions of a page and rotated columns {alike}"
            )
        self._packed = b"".join(
            _LAYER.pack(*(_address(block.packed) for block in layer)) + first.packed + second.packed
            for layer, (first, second) in zip(blocks, ends, strict=True)
        )
        self._blocks, self._ends = tuple(blocks), tuple(ends)  # their addresses are packed
        self._pool = pool
        width = hidden.pop()
        for end in (end for pair in ends for end in pair):
            end.check(width)
        self._scratch = width + max(block.scratch for layer in blocks for block in layer)
        #: The most tokens whose scratch is not larger than the scratch of an FFN block.
        self.most_tokens = max(1, (SCRATCH_BYTES + NORMED_BYTES) // (F32_BYTES * self._scratch))

    def run(self, x_TH: Tensor, spans: Spans, cos_Tr: Tensor, sin_Tr: Tensor) -> tuple[float, float]:
        """Adds every block's result to `x_TH`. Returns (attention's seconds, FFN's seconds)."""
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


def _address(data: bytes) -> int:
    return ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0
