"""Causal attention over the pages of a KV cache, and appending to them: natively, or by torch where they are
in f32 or bf16.

T tokens of all spans, N query heads, K KV heads, d head width.

A token's bits depend on its own sequence alone: not on other spans or their order, nor on where its pages are. The
native kernels take all spans with one hand-over to their threads, and also compute a token as it would be computed
without the other tokens of its span; torch does not.
"""

import functools
import math
import struct
from bisect import bisect_left

import torch
from torch import Tensor

from tpiedge.kernels.dispatch import for_attention
from tpiedge.kernels.kv_pages import PageLayout, Spans
from tpiedge.kernels.library import Pool
from tpiedge.kernels.torch_attention import append_by_torch, attention, rows_in_pages


def kv_of_heads(start: int, stop: int, group_size: int) -> tuple[int, ...]:
    """Local KV head of every query head in [start, stop) when the share holds the KV heads that cover them.

    A share may start inside a group: (3, 6, 2) -> (0, 1, 1).
    """
    return tuple(head // group_size - start // group_size for head in range(start, stop))


def attention_pages(
    q_TNd: Tensor,
    spans: Spans,
    layout: PageLayout,
    kv_of_head: tuple[int, ...],
    *,
    window: int | None = None,
    scale: float | None = None,
    pool: Pool | None = None,
) -> Tensor:
    """[T, N, d] f32 of f32 queries, each over its own sequence up to its own position, whose keys and values are there.

    With `window` a query sees only keys at a position greater than its own minus `window` (Hugging Face's meaning).
    `kv_of_head` is non-decreasing, one entry per query head. `scale` is 1 / sqrt(d) unless given.
    """
    tokens, heads, width = q_TNd.shape
    head_start = head_starts(kv_of_head, heads, layout.kv_heads)
    _check_rows(q_TNd, spans, layout, "queries")
    if window is not None and window < 1:
        raise ValueError(f"a window of {window} positions")
    scale = 1 / math.sqrt(width) if scale is None else scale
    native = for_attention(pool, width)
    if native is None:
        return _by_torch(q_TNd, spans, layout, kv_of_head, window, scale)
    out_TNd = torch.empty(tokens, heads, width)
    native.attention(
        q_TNd.contiguous(), out_TNd, layout.packed, spans.packed, len(spans), head_start, window, scale
    )
    return out_TNd


def append_pages(
    k_TKd: Tensor, v_TKd: Tensor, spans: Spans, layout: PageLayout, pool: Pool | None = None
) -> None:
    """Store keys and values (f32) at the positions of the spans, rounded as the cache keeps them; native kernels and
    torch leave the same bytes."""
    for name, x_TKd in (("keys", k_TKd), ("values", v_TKd)):
        _check_rows(x_TKd, spans, layout, name)
        if x_TKd.shape[1] != layout.kv_heads:
            raise ValueError(f"{name} of {x_TKd.shape[1]} heads for a cache of {layout.kv_heads}")
    if pool is None:
        append_by_torch(k_TKd, v_TKd, spans, layout)
        return
    k_TKd, v_TKd = (x_TKd if x_TKd.stride(2) == 1 else x_TKd.contiguous() for x_TKd in (k_TKd, v_TKd))
    pool.kv_append(k_TKd, v_TKd, layout.packed, spans.packed, len(spans))


def _by_torch(
    q_TNd: Tensor,
    spans: Spans,
    layout: PageLayout,
    kv_of_head: tuple[int, ...],
    window: int | None,
    scale: float,
) -> Tensor:
    out_TNd = torch.empty(q_TNd.shape)
    for rows, span in spans:
        seen = 0 if window is None else max(0, span.start + 1 - window)
        first = seen // layout.positions * layout.positions
        k_KSd, v_KSd = rows_in_pages(span, layout, first)
        out_TNd[rows] = attention(
            q_TNd[rows], k_KSd, v_KSd, kv_of_head, span.start, first_key=first, window=window, scale=scale
        )
    return out_TNd


def _check_rows(x_Tnd: Tensor, spans: Spans, layout: PageLayout, name: str) -> None:
    spans.check_pages(layout)
    if x_Tnd.dtype is not torch.float32 or not x_Tnd.is_cpu:
        raise ValueError(f"{name} are {x_Tnd.dtype} on {x_Tnd.device}, not f32 in main memory")
    tokens, _, width = x_Tnd.shape
    if tokens != spans.tokens or width != layout.format.width:
        raise ValueError(
            f"{name} are {list(x_Tnd.shape)} for {spans.tokens} tokens and heads of {layout.format.width} columns"
        )


@functools.lru_cache(maxsize=64)
def head_starts(kv_of_head: tuple[int, ...], heads: int, kv_heads: int) -> bytes:
    """The first query head of every KV head, and the end, as int64: checked, because memory is read with them."""
    if list(kv_of_head) != sorted(kv_of_head):
        raise ValueError(f"KV heads {kv_of_head} decrease")
    if len(kv_of_head) != heads or (heads and not 0 <= min(kv_of_head) <= max(kv_of_head) < kv_heads):
        raise ValueError(f"{heads} query heads with KV heads {kv_of_head} of {kv_heads}")
    starts = [bisect_left(kv_of_head, kv) for kv in range(kv_heads + 1)]
    return struct.pack(f"={len(starts)}q", *starts)
