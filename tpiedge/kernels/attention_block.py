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

from tpiedge.kernels.attention import STORED, head_starts
from tpiedge.kernels.grid import Grid, sums_of
from tpiedge.kernels.kv_format import KVFormat
from tpiedge.kernels.library import MAX_HEAD_WIDTH, Pool, pack_panels, pack_row_parallel
from tpiedge.kernels.linear import check_bias, check_weight
from tpiedge.kernels.panel_matrix import PanelMatrix, Weight

__all__ = ["AttentionBlock", "CacheMemory", "CachePosition", "FusedAttention", "Panels", "all_panels"]

# H, norm, n, K, d, q_norm, k_norm, r, strides of a head and of a position, how rows are stored, window; eps and scale.
# The weights come before, and after it where the query heads of each KV head begin.
_BLOCK = struct.Struct("=12q2d")
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
class CacheMemory:
    """How keys, and likewise values, of one layer and sequence lie in memory: [K, capacity, d] with strides in numbers
    of the cache, bytes where it is quantised."""

    format: KVFormat
    kv_heads: int
    capacity: int
    head_stride: int
    stride: int


@dataclass(frozen=True, slots=True)
class CachePosition:
    """Where the tokens stand: from position `start` on, of the keys and values at these addresses. Row `row` of the
    tables of cosines and sines, [.., r], is the first token's."""

    start: int
    keys: int
    values: int
    cos_Tr: Tensor
    sin_Tr: Tensor
    row: int


class FusedAttention:
    """One block on the memory of one cache. Raises ValueError for what does not fit together. It keeps no tensor but
    those of `block`, whose matrices must not move."""

    def __init__(self, block: AttentionBlock, cache: CacheMemory, pool: Pool) -> None:
        _check(block, cache)
        q, k, v, o = block.matrices
        width = cache.format.width
        q_norm_d, k_norm_d = block.head_norms_d or (None, None)
        fields = _BLOCK.pack(
            q.cols, block.norm_H.data_ptr(), q.rows // width, cache.kv_heads, width,
            0 if q_norm_d is None else q_norm_d.data_ptr(), 0 if k_norm_d is None else k_norm_d.data_ptr(),
            block.rotated, cache.head_stride, cache.stride, STORED[cache.format.precision],
            _NO_WINDOW if block.window is None else block.window, block.eps, 1 / math.sqrt(width),
        )  # fmt: skip
        biases = block.biases or (None, None, None)
        weights = b"".join(
            pack_panels(w, bias_R=bias_R) for w, bias_R in zip((q, k, v), biases, strict=True)
        ) + pack_row_parallel(o, block.grid.exponent, block.grid.most)
        self.packed = weights + fields + head_starts(block.kv_of_head, q.rows // width, cache.kv_heads)
        self._block = block
        self._pool = pool
        self._capacity = cache.capacity
        self.hidden, self.outputs = q.cols, o.cols
        #: Floats for each token.
        self.scratch = q.cols + 2 * q.rows + 3 * k.rows

    def run(self, x_TH: Tensor, place: CachePosition) -> Tensor:
        """[T, O], sums of the grid: o of the attention of q over the cache, to which k and v are appended before; q, k
        and v of the norm of x. Tokens may be as many as there are; a token's bits do not depend on the others."""
        tokens, row_bytes = self.check(x_TH, place), _F32_BYTES * self._block.rotated
        x_TH = x_TH.contiguous()
        scratch = torch.empty(tokens * self.scratch)

        def compute(sums_TO: Tensor, wide: bool) -> bool:
            return self._pool.attention_panels(
                self.packed,
                x_TH.data_ptr(),
                sums_TO.data_ptr(),
                tokens,
                place.start,
                place.cos_Tr.data_ptr() + place.row * row_bytes,
                place.sin_Tr.data_ptr() + place.row * row_bytes,
                place.keys,
                place.values,
                scratch.data_ptr(),
                wide,
            )

        return sums_of((tokens, self.outputs), compute)

    def check(self, x_TH: Tensor, place: CachePosition) -> int:
        """The tokens. The native kernels read raw memory, so what they are given is checked, here and in `_check`, but
        for the cache's addresses."""
        tokens, hidden = x_TH.shape
        if hidden != self.hidden or x_TH.dtype is not torch.float32 or not x_TH.is_cpu:
            raise ValueError(f"activations are {list(x_TH.shape)} {x_TH.dtype}, not f32 [T, {self.hidden}]")
        if not 0 <= place.start <= self._capacity - tokens:
            raise ValueError(f"{tokens} tokens from position {place.start} on, of {self._capacity}")
        for table in (place.cos_Tr, place.sin_Tr):
            rows, rotated = table.shape
            if (
                rotated != self._block.rotated
                or not 0 <= place.row <= rows - tokens
                or table.dtype is not torch.float32
                or not (table.is_cpu and table.is_contiguous())
            ):
                raise ValueError(
                    f"a table is {list(table.shape)} {table.dtype} for {tokens} tokens from row {place.row} on"
                )
        return tokens


def _check(block: AttentionBlock, cache: CacheMemory) -> None:
    q, k, v, o = block.matrices
    for w in (q, k, v):
        check_weight(w, input_dim=1)
    check_weight(o, input_dim=0)
    width = cache.format.width
    if width > MAX_HEAD_WIDTH:
        raise ValueError(f"heads of {width} columns, more than {MAX_HEAD_WIDTH}")
    if not (
        q.cols == k.cols == v.cols
        and q.rows == o.rows
        and q.rows % width == 0
        and k.rows == v.rows == cache.kv_heads * width
    ):
        raise ValueError(
            f"q, k, v and o are {list(q.shape)}, {list(k.shape)}, {list(v.shape)} and {list(o.shape)} for "
            f"{cache.kv_heads} KV heads of {width}"
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
