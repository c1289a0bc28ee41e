"""Causal attention of one segment against its keys and values in f32 or bf16, by torch with bounded scratch memory, and
copying those from and to the pages of a KV cache.

T new tokens, N query heads, K KV heads, g query heads of one KV head, S cached positions, P positions of a page, d head
width, B bytes of a row.
"""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from tpiedge.kernels.kv_pages import PageLayout, Span, Spans
from tpiedge.kernels.shared_library import MAX_HEAD_WIDTH

_DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}

# Bound on the mask of one query tile: a long prompt must not need T x S floats.
_MASK_ELEMENTS = 1 << 21
# Up to this size the bf16 keys of all KV heads are widened and computed at once; else one head at a time.
_WIDENED_ELEMENTS = 1 << 20


def attention(
    q_TNd: Tensor,
    k_KSd: Tensor,
    v_KSd: Tensor,
    kv_of_head: tuple[int, ...],
    first_position: int,
    *,
    first_key: int = 0,
    window: int | None = None,
    scale: float | None = None,
) -> Tensor:
    """[T, N, d] f32 of f32 queries at positions first_position, first_position + 1, ...

    k and v (f32 or bf16, any strides with a contiguous last dimension) hold positions first_key,
    first_key + 1, ... and include the new tokens. A query sees keys up to its own position, and with `window`
    only those at a position greater than its own minus `window` (Hugging Face's meaning). `kv_of_head` is
    non-decreasing, one entry per query head. `scale` is 1 / sqrt(d) unless given.

    Scratch: 12 MiB, and the widened keys and values of one KV head (8 S d bytes) where they are bf16.
    """
    tokens, _, width = q_TNd.shape
    offset = first_position - first_key
    if k_KSd.shape != v_KSd.shape or offset < 0 or k_KSd.shape[1] != offset + tokens:
        raise ValueError(
            f"keys {list(k_KSd.shape)}, values {list(v_KSd.shape)} for {offset} + {tokens} positions"
        )
    result = torch.empty(q_TNd.shape)
    low = 0 if window is None else max(0, offset + 1 - window)
    k_KSd, v_KSd = k_KSd[:, low:], v_KSd[:, low:]
    whole = k_KSd.dtype is torch.float32 or k_KSd.numel() <= _WIDENED_ELEMENTS
    for kv, heads in _runs(kv_of_head, whole):
        q_TKgd = q_TNd[:, heads].view(tokens, kv.stop - kv.start, -1, width)
        out_TKgd = result[:, heads].view(tokens, kv.stop - kv.start, -1, width)
        _group(q_TKgd, k_KSd[kv].float(), v_KSd[kv].float(), offset - low, window, scale, out_TKgd)
    return result


def _group(
    q_TKgd: Tensor,
    k_KSd: Tensor,
    v_KSd: Tensor,
    offset: int,
    window: int | None,
    scale: float | None,
    out_TKgd: Tensor,
) -> None:
    """Fill `out_TKgd`: g query heads for each KV head; query t is at key index offset + t."""
    tokens = q_TKgd.shape[0]
    if tokens == 1:
        # One query sees every key: the heads of a group stand where tokens do and share one pass over them.
        out = F.scaled_dot_product_attention(
            q_TKgd.transpose(0, 1), k_KSd[:, None], v_KSd[:, None], scale=scale
        )
        out_TKgd.copy_(out.transpose(0, 1))
        return
    tile = max(1, _MASK_ELEMENTS // k_KSd.shape[1])
    for first in range(0, tokens, tile):
        last = min(tokens, first + tile)
        high = offset + last
        low = 0 if window is None else max(0, offset + first + 1 - window)
        q_Kgtd = q_TKgd[first:last].permute(1, 2, 0, 3)
        k_Kgsd = k_KSd[:, None, low:high].expand(-1, q_Kgtd.shape[1], -1, -1)
        v_Kgsd = v_KSd[:, None, low:high].expand(-1, q_Kgtd.shape[1], -1, -1)
        mask = _mask(offset + first - low, last - first, high - low, window)
        out = F.scaled_dot_product_attention(q_Kgtd, k_Kgsd, v_Kgsd, attn_mask=mask, scale=scale)
        out_TKgd[first:last] = out.permute(2, 0, 1, 3)


def _mask(offset: int, tokens: int, keys: int, window: int | None) -> Tensor:
    """True where query t, at key index offset + t, sees a key."""
    query = torch.arange(offset, offset + tokens)[:, None]
    key = torch.arange(keys)[None, :]
    seen = key <= query
    return seen if window is None else seen & (key > query - window)


def _runs(kv_of_head: tuple[int, ...], whole: bool) -> list[tuple[slice, slice]]:
    """(KV heads, query heads) of each computation: only one where `whole` and all groups are equal."""
    runs: list[tuple[slice, slice]] = []
    for head, kv in enumerate(kv_of_head):
        start = runs.pop()[1].start if runs and runs[-1][0].start == kv else head
        runs.append((slice(kv, kv + 1), slice(start, head + 1)))
    sizes = {heads.stop - heads.start for _, heads in runs}
    adjacent = all(after[0].start == before[0].stop for before, after in pairwise(runs))
    if whole and len(runs) > 1 and len(sizes) == 1 and adjacent:
        return [(slice(runs[0][0].start, runs[-1][0].stop), slice(0, len(kv_of_head)))]
    return runs


def rows_in_pages(span: Span, layout: PageLayout, first: int) -> tuple[Tensor, Tensor]:
    """Copies of the sequence's keys and values [K, S, d] from position `first`, a multiple of P, to the span's end."""
    dtype = _dtype(layout)
    pages = _page_numbers(span, layout)[first // layout.positions : -(-span.stop // layout.positions)]
    keys, values = (
        part_pKPB[pages].transpose(0, 1).flatten(1, 2)[:, : span.stop - first].view(dtype)
        for part_pKPB in _parts(layout)
    )
    return keys, values


def append_by_torch(k_TKd: Tensor, v_TKd: Tensor, spans: Spans, layout: PageLayout) -> None:
    """Store every span's rows at its positions, rounded as the cache keeps them."""
    dtype = _dtype(layout)
    for rows, span in spans:
        positions = torch.arange(span.start, span.stop)
        pages = _page_numbers(span, layout)[positions // layout.positions]
        for part_pKPB, x_TKd in zip(_parts(layout), (k_TKd, v_TKd), strict=True):
            x_TKB = x_TKd[rows].to(dtype).contiguous().view(torch.uint8)
            part_pKPB[pages, :, positions % layout.positions] = x_TKB


def _dtype(layout: PageLayout) -> torch.dtype:
    """Raises ValueError where keys and values are quantised."""
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
    """Views [pages, K, P, B] of all pages' keys and values."""
    store_PB = layout.store_PB
    shape = store_PB.shape[0], layout.kv_heads, layout.positions, layout.row_bytes
    strides = store_PB.stride(0), layout.head_bytes, layout.row_bytes, 1
    first = store_PB.storage_offset() + layout.layer_offset
    keys, values = (store_PB.as_strided(shape, strides, first + offset) for offset in (0, layout.value_bytes))
    return keys, values
