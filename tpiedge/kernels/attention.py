"""Computes causal attention over a KV cache's pages, in native code or (f32 and bf16) in torch.

T tokens of all spans, N query heads, K KV heads, g query heads of one KV head, S cached positions, P positions of a
page, d head width, B bytes of a row. The bits of a token's result do not depend on other sequences. In native code,
they do not depend on the call's other tokens either.
"""

import functools
import math
import struct
from bisect import bisect_left
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from tpiedge.kernels.kv_pages import PageLayout, Span, Spans
from tpiedge.kernels.library import NO_WINDOW, Pool, address, check_f32
from tpiedge.kernels.shared_library import MAX_HEAD_WIDTH

Numbers = tuple[int, float, float]  # the window, scale and cap that native code takes
_DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


def kv_of_heads(start: int, stop: int, group_size: int) -> tuple[int, ...]:
    """Returns every query head's local KV head: (3, 6, 2) -> (0, 1, 1)."""
    return tuple(head // group_size - start // group_size for head in range(start, stop))


def attention_pages(
    q_TNd: Tensor,
    spans: Spans,
    layout: PageLayout,
    kv_of_head: tuple[int, ...],
    *,
    window: int | None = None,
    scale: float | None = None,
    cap: float = 0.0,
    sinks_N: Tensor | None = None,
    pool: Pool | None = None,
) -> Tensor:
    """Returns f32 outputs [T, N, d]. A query sees `window` keys (None: all). `scale` multiplies scores (None: 1 /
    sqrt(d)). Then `cap`, unless 0, makes them cap * tanh(score / cap). Sinks are scores without keys. `kv_of_head` must
    not decrease."""
    numbers = score_numbers(q_TNd.shape[2], window, scale, cap)
    check_sinks(sinks_N, q_TNd.shape[1])
    heads, width = q_TNd.shape[1:]
    head_start = head_starts(kv_of_head, heads, layout.kv_heads)
    spans.check_pages(layout)
    check_f32("queries", q_TNd, (spans.tokens, heads, layout.format.width), contiguous=False)
    out_TNd = torch.empty(q_TNd.shape)
    if pool is not None and width <= MAX_HEAD_WIDTH:
        q_TNd = q_TNd.contiguous()
        both = q_TNd.data_ptr(), out_TNd.data_ptr()
        of_spans = layout.packed, spans.packed, len(spans)
        pool.call("tpiedge_attention", *both, *of_spans, head_start, heads, *numbers, address(sinks_N))
        return out_TNd
    for rows, span in spans:
        seen = 0 if window is None else max(0, span.start + 1 - window)
        k_KSd, v_KSd = _rows_in_pages(span, layout, seen)
        # f32 keys, or few in bf16, are computed for all KV heads at once, others one head at a time.
        whole = k_KSd.dtype is torch.float32 or k_KSd.numel() <= 1 << 20
        for kv, of_kv in _runs(kv_of_head, whole):
            kv_heads = kv.stop - kv.start
            grouped = span.tokens, kv_heads, -1, width
            q_TKgd, out_TKgd = q_TNd[rows, of_kv].view(grouped), out_TNd[rows, of_kv].view(grouped)
            sinks_Kg = None if sinks_N is None else sinks_N[of_kv].view(kv_heads, -1)
            _group(
                q_TKgd, k_KSd[kv].float(), v_KSd[kv].float(), span.start - seen, numbers, sinks_Kg, out_TKgd
            )
    return out_TNd


def append_pages(
    k_TKd: Tensor, v_TKd: Tensor, spans: Spans, layout: PageLayout, pool: Pool | None = None
) -> None:
    """Stores f32 keys and values in the cache's precision."""
    spans.check_pages(layout)
    for name, x_TKd in (("keys", k_TKd), ("values", v_TKd)):
        shape = spans.tokens, layout.kv_heads, layout.format.width
        check_f32(name, x_TKd, shape, contiguous=False)
    if pool is not None:
        k_TKd, v_TKd = (x_TKd if x_TKd.stride(2) == 1 else x_TKd.contiguous() for x_TKd in (k_TKd, v_TKd))
        both, strides = (k_TKd.data_ptr(), v_TKd.data_ptr()), (*k_TKd.stride()[:2], *v_TKd.stride()[:2])
        pool.call("tpiedge_kv_append", *both, layout.packed, spans.packed, len(spans), *strides)
        return
    dtype = _dtype(layout)
    for rows, span in spans:
        positions = torch.arange(span.start, span.stop)
        pages = _page_numbers(span, layout)[positions // layout.positions]
        for part_pKPB, x_TKd in zip(_parts(layout), (k_TKd, v_TKd), strict=True):
            x_TKB = x_TKd[rows].to(dtype).contiguous().view(torch.uint8)
            part_pKPB[pages, :, positions % layout.positions] = x_TKB


def score_numbers(width: int, window: int | None, scale: float | None, cap: float) -> Numbers:
    """Fills in defaults for heads of this width. Raises ValueError."""
    if window is not None and window < 1:
        raise ValueError(f"a window of {window} positions")
    if not 0 <= cap < math.inf:
        raise ValueError(f"scores are capped at {cap}")
    return NO_WINDOW if window is None else window, 1 / math.sqrt(width) if scale is None else scale, cap


def check_sinks(sinks_N: Tensor | None, heads: int) -> None:
    if sinks_N is not None:
        check_f32("sinks", sinks_N, (heads,))


@functools.lru_cache(maxsize=64)
def head_starts(kv_of_head: tuple[int, ...], heads: int, kv_heads: int) -> bytes:
    """Returns each KV head's first query head, then `heads`, packed as int64. Raises ValueError."""
    if list(kv_of_head) != sorted(kv_of_head):
        raise ValueError(f"KV heads {kv_of_head} decrease")
    if len(kv_of_head) != heads or (heads and not 0 <= min(kv_of_head) <= max(kv_of_head) < kv_heads):
        raise ValueError(f"{heads} query heads with KV heads {kv_of_head} of {kv_heads}")
    starts = [bisect_left(kv_of_head, kv) for kv in range(kv_heads + 1)]
    return struct.pack(f"={len(starts)}q", *starts)


def _group(
    q_TKgd: Tensor,
    k_KSd: Tensor,
    v_KSd: Tensor,
    offset: int,
    numbers: Numbers,
    sinks_Kg: Tensor | None,
    out_TKgd: Tensor,
) -> None:
    tokens, window = q_TKgd.shape[0], numbers[0]
    if tokens == 1:
        # One query sees every key: the heads of a group take the place of tokens and share one pass over the keys.
        sinks = None if sinks_Kg is None else sinks_Kg[:, None, :, None]
        out = _attend(q_TKgd.transpose(0, 1), k_KSd[:, None], v_KSd[:, None], None, numbers, sinks)
        out_TKgd.copy_(out.transpose(0, 1))
        return
    sinks = None if sinks_Kg is None else sinks_Kg[..., None, None]
    # The mask of a query tile is bounded: a long prompt must not need T x S floats.
    tile = max(1, (1 << 21) // k_KSd.shape[1])
    for first in range(0, tokens, tile):
        last = min(tokens, first + tile)
        high = offset + last
        low = max(0, offset + first + 1 - window)
        q_Kgtd = q_TKgd[first:last].permute(1, 2, 0, 3)
        k_Kgsd = k_KSd[:, None, low:high].expand(-1, q_Kgtd.shape[1], -1, -1)
        v_Kgsd = v_KSd[:, None, low:high].expand(-1, q_Kgtd.shape[1], -1, -1)
        query = torch.arange(offset + first, high)[:, None]
        key = torch.arange(low, high)[None, :]
        seen = key <= query
        seen = seen if window == NO_WINDOW else seen & (key > query - window)
        out = _attend(q_Kgtd, k_Kgsd, v_Kgsd, seen, numbers, sinks)
        out_TKgd[first:last] = out.permute(2, 0, 1, 3)


def _attend(
    q_Kgtd: Tensor,
    k_Kgsd: Tensor,
    v_Kgsd: Tensor,
    seen: Tensor | None,
    numbers: Numbers,
    sinks_Kg11: Tensor | None,
) -> Tensor:
    _, scale, cap = numbers
    if not cap and sinks_Kg11 is None:
        return F.scaled_dot_product_attention(q_Kgtd, k_Kgsd, v_Kgsd, attn_mask=seen, scale=scale)
    scores = q_Kgtd @ k_Kgsd.transpose(-1, -2) * scale
    if cap:
        scores = torch.tanh(scores / cap) * cap
    if seen is not None:
        scores.masked_fill_(~seen, -math.inf)
    if sinks_Kg11 is not None:
        scores = torch.cat((scores, sinks_Kg11.expand(*scores.shape[:-1], 1)), -1)
    return torch.softmax(scores, -1)[..., : k_Kgsd.shape[-2]] @ v_Kgsd


def _runs(kv_of_head: tuple[int, ...], whole: bool) -> list[tuple[slice, slice]]:
    runs: list[tuple[slice, slice]] = []
    for head, kv in enumerate(kv_of_head):
        start = runs.pop()[1].start if runs and runs[-1][0].start == kv else head
        runs.append((slice(kv, kv + 1), slice(start, head + 1)))
    sizes = {heads.stop - heads.start for _, heads in runs}
    adjacent = all(after[0].start == before[0].stop for before, after in pairwise(runs))
    if whole and len(runs) > 1 and len(sizes) == 1 and adjacent:
        return [(slice(runs[0][0].start, runs[-1][0].stop), slice(0, len(kv_of_head)))]
    return runs


def _rows_in_pages(span: Span, layout: PageLayout, first: int) -> tuple[Tensor, Tensor]:
    """Copies keys and values, [K, S, d], from position `first` on."""
    page, within = divmod(first, layout.positions)
    pages = _page_numbers(span, layout)[page : -(-span.stop // layout.positions)]
    keys, values = (
        part_pKPB[pages]
        .transpose(0, 1)
        .flatten(1, 2)[:, within : within + span.stop - first]
        .view(_dtype(layout))
        for part_pKPB in _parts(layout)
    )
    return keys, values


def _dtype(layout: PageLayout) -> torch.dtype:
    if layout.format.quantised:
        raise ValueError(
            f"keys and values in {layout.format.precision} need the native kernels, and heads of at most "
            f"{MAX_HEAD_WIDTH} columns"
        )
    return _DTYPES[layout.format.precision]


def _page_numbers(span: Span, layout: PageLayout) -> Tensor:
    store_PB = layout.store_PB
    return (torch.from_numpy(span.table) - store_PB.data_ptr()) // max(1, store_PB.stride(0))


def _parts(layout: PageLayout) -> tuple[Tensor, Tensor]:
    store_PB = layout.store_PB
    row_nbytes = layout.format.row_nbytes
    shape = store_PB.shape[0], layout.kv_heads, layout.positions, row_nbytes
    strides = store_PB.stride(0), layout.head_bytes, row_nbytes, 1
    first = store_PB.storage_offset() + layout.layer_offset
    keys, values = (store_PB.as_strided(shape, strides, first + offset) for offset in (0, layout.value_bytes))
    return keys, values
