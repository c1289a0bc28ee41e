"""All layers of quantised matrices as one native call, for a node that is alone.

T tokens, H hidden size, r rotated width.

The same blocks with the same bits as one after the other, without Python between them: what a token streams through the
CPU's caches drives Python's own code out of them, so that every return to it costs tens of microseconds.
"""

import ctypes
import struct
from collections.abc import Sequence

import torch
from torch import Tensor

from tpiedge.kernels.attention_block import FusedAttention, RotaryRows
from tpiedge.kernels.ffn import NORMED_BYTES, SCRATCH_BYTES, FusedFFN
from tpiedge.kernels.kv_pages import Spans
from tpiedge.kernels.library import Pool

# As PanelLayer of native/interface.h.
_LAYER = struct.Struct("=3qd")
_F32_BYTES = 4


class FusedLayers:
    """All layers, for any sequences of the cache. Raises ValueError for blocks that do not fit together."""

    def __init__(self, blocks: Sequence[tuple[FusedAttention, FusedFFN]], pool: Pool) -> None:
        hidden = {width for layer in blocks for block in layer for width in (block.hidden, block.outputs)}
        alike = {(attention.positions, attention.rotated) for attention, _ in blocks}
        if len(hidden) != 1 or len(alike) != 1:
            raise ValueError(
                f"{len(blocks)} layers of hidden sizes {hidden}, with positions of a page and rotated columns {alike}"
            )
        (self._hidden,) = hidden
        self._packed = b"".join(
            _LAYER.pack(_address(attention.packed), _address(ffn.packed), ffn.norm_H.data_ptr(), ffn.eps)
            for attention, ffn in blocks
        )
        self._blocks = tuple(blocks)
        self._pool = pool
        self._scratch = self._hidden + max(block.scratch for layer in blocks for block in layer)
        #: Tokens whose scratch stays within what an FFN block may take.
        self.most_tokens = max(1, (SCRATCH_BYTES + NORMED_BYTES) // (_F32_BYTES * self._scratch))

    def run(self, x_TH: Tensor, spans: Spans, cos_Tr: Tensor, sin_Tr: Tensor) -> tuple[float, float]:
        """Adds every block's result to `x_TH`, the tokens of the spans, whose rows of the tables are the first. Returns
        the seconds that attention and FFN blocks took."""
        self._blocks[0][0].check(x_TH, spans, RotaryRows(cos_Tr, sin_Tr, 0))
        if not x_TH.is_contiguous():
            raise ValueError("activations to add to are not contiguous")
        scratch = torch.empty(spans.tokens * self._scratch)
        return self._pool.stack_panels(
            self._packed,
            len(self._blocks),
            x_TH.data_ptr(),
            spans.packed,
            len(spans),
            cos_Tr.data_ptr(),
            sin_Tr.data_ptr(),
            scratch.data_ptr(),
        )


def _address(data: bytes) -> int:
    """The address of bytes, which stay where they are for as long as they live."""
    return ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0
