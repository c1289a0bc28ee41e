"""A node's part of an attention block of quantised matrices, as one native call.

T tokens, H hidden size, n query heads, K KV heads, d head width, r rotated width, S positions.

The same calls one after the other as linear.py, norm.py, rope.py and attention.py make, and the same bits: between two
products Python's own code would have been driven out of the CPU's caches by the weights.
"""

import math
import struct
from dataclasses import dataclass
from typing import TypeAlias, TypeGuard

import torch
from torch import Tensor

from tpiedge.kernels.attention import Rows, cache_memory, head_starts
from tpiedge.kernels.library import MAX_HEAD_WIDTH, Pool, pack_panels
from tpiedge.kernels.linear import check_product, check_weight
from tpiedge.kernels.panel_matrix import PanelMatrix, Weight

__all__ = ["AttentionBlock", "Panels", "Sequence", "all_panels", "attention_block"]

# x, T, H, norm, n, K, d, q_norm, k_norm, cos, sin, r, then rows and strides of keys and values, how they are stored,
# first position, window; eps and scale. The weights come before, and after it where the heads of each KV head begin.
_BLOCK = struct.Struct("=21q2d")
_NO_WINDOW = 1 << 62


Panels: TypeAlias = tuple[PanelMatrix, PanelMatrix, PanelMatrix, PanelMatrix]
"""q, k, v and o."""


def all_panels(matrices: tuple[Weight, ...]) -> TypeGuard[Panels]:
    """Whether q, k, v and o are quantised."""
    return len(matrices) == 4 and all(isinstance(w, PanelMatrix) for w in matrices)


@dataclass(frozen=True, slots=True)
class AttentionBlock:
    """What does not depend on the tokens. `head_norms_d`: of queries and keys, where the model has them."""

    matrices: Panels
    norm_H: Tensor
    head_norms_d: tuple[Tensor, Tensor] | None
    eps: float
    kv_of_head: tuple[int, ...]
    window: int | None


@dataclass(frozen=True, slots=True)
class Sequence:
    """Where the tokens stand: from position `start` on, with views [K, S, d] of the cache that end with them."""

    start: int
    keys_KSd: Rows
    values_KSd: Rows
    cos_Tr: Tensor
    sin_Tr: Tensor


def attention_block(x_TH: Tensor, block: AttentionBlock, sequence: Sequence, pool: Pool) -> Tensor:
    """[T, O] f32: o of the attention of q over the cache, to which k and v are appended before; q, k and v of the
    norm of x. Tokens may be as many as there are; a token's bits do not depend on the others."""
    _check(x_TH, block, sequence)
    q, k, v, o = block.matrices
    tokens, hidden = x_TH.shape
    kv_heads, _, width = sequence.keys_KSd.shape
    x_TH, y_TO = x_TH.contiguous(), torch.empty((tokens, o.cols))
    scratch = torch.empty(tokens * (hidden + 2 * q.rows + 3 * k.rows))
    q_norm_d, k_norm_d = block.head_norms_d or (None, None)
    keys, stored = cache_memory(sequence.keys_KSd, width)
    values, also = cache_memory(sequence.values_KSd, width)
    if stored != also:
        raise ValueError("keys and values are stored differently")
    packed = _BLOCK.pack(
        x_TH.data_ptr(), tokens, hidden, block.norm_H.data_ptr(), q.rows // width, kv_heads, width,
        0 if q_norm_d is None else q_norm_d.data_ptr(), 0 if k_norm_d is None else k_norm_d.data_ptr(),
        sequence.cos_Tr.data_ptr(), sequence.sin_Tr.data_ptr(), sequence.cos_Tr.shape[1],
        keys.data_ptr(), keys.stride(0), keys.stride(1), values.data_ptr(), values.stride(0), values.stride(1),
        stored, sequence.start, _NO_WINDOW if block.window is None else block.window,
        block.eps, 1 / math.sqrt(width),
    )  # fmt: skip
    weights = pack_panels(q, 0) + pack_panels(k, 0) + pack_panels(v, 0) + pack_panels(o, y_TO.data_ptr())
    starts = head_starts(block.kv_of_head, q.rows // width, kv_heads)
    pool.attention_panels(weights + packed + starts, scratch)
    return y_TO


def _check(x_TH: Tensor, block: AttentionBlock, sequence: Sequence) -> None:
    """The native kernels read raw memory, so what they are given is checked here, but for the cache's memory."""
    q, k, v, o = block.matrices
    for w in (q, k, v):
        check_product(x_TH, w, input_dim=1)
    check_weight(o, input_dim=0)
    tokens, (kv_heads, positions, width) = x_TH.shape[0], sequence.keys_KSd.shape
    if sequence.values_KSd.shape != sequence.keys_KSd.shape or not 0 <= sequence.start == positions - tokens:
        raise ValueError(
            f"a cache of {positions} positions for {tokens} tokens from position {sequence.start} on"
        )
    if width > MAX_HEAD_WIDTH:
        raise ValueError(f"heads of {width} columns, more than {MAX_HEAD_WIDTH}")
    if not (q.rows == o.rows and q.rows % width == 0 and k.rows == v.rows == kv_heads * width):
        raise ValueError(
            f"q, k, v and o have {q.rows}, {k.rows}, {v.rows} and {o.rows} rows for {kv_heads} KV heads of {width}"
        )
    if block.window is not None and block.window < 1:
        raise ValueError(f"a window of {block.window} positions")
    rotated = sequence.cos_Tr.shape[1]
    if rotated % 2 or rotated > width:
        raise ValueError(f"{rotated} of {width} columns are to be rotated")
    tables = [(sequence.cos_Tr, (tokens, rotated)), (sequence.sin_Tr, (tokens, rotated))]
    norms = [(norm_d, (width,)) for norm_d in block.head_norms_d or ()]
    for given, shape in ((block.norm_H, (x_TH.shape[1],)), *norms, *tables):
        if (
            given.shape != shape
            or given.dtype is not torch.float32
            or not (given.is_cpu and given.is_contiguous())
        ):
            raise ValueError(f"a norm or table is {list(given.shape)} {given.dtype}, not f32 {list(shape)}")
