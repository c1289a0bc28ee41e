"""Causal attention of one segment against its keys and values, by torch in f32, with bounded scratch memory.

T new tokens, N query heads, K KV heads, g query heads of one KV head, S cached positions, d head width.
"""

import math
from collections.abc import Iterator
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from tpiedge.kernels.kv_format import KV_GROUP
from tpiedge.kernels.kv_rows import QuantisedRows

__all__ = ["Rows", "attention"]

Rows = Tensor | QuantisedRows
"""Keys or values [K, S, d] of some heads at successive positions."""

# Bound on the mask of one query tile: a long prompt must not need T x S floats.
_MASK_ELEMENTS = 1 << 21
# Up to this size the bf16 keys of all KV heads are widened and computed at once; else one head at a time.
_WIDENED_ELEMENTS = 1 << 20
# Quantised keys, and as many values, of one KV head that are numbers at once; scores of them that are there at once,
# and numbers of the queries that they are of.
_DECODED_ELEMENTS = 1 << 19
_SCORE_ELEMENTS = 1 << 20


def attention(
    q_TNd: Tensor,
    k_KSd: Rows,
    v_KSd: Rows,
    kv_of_head: tuple[int, ...],
    first_position: int,
    *,
    first_key: int = 0,
    window: int | None = None,
    scale: float | None = None,
) -> Tensor:
    """[T, N, d] f32 of f32 queries at positions first_position, first_position + 1, ...

    k and v (f32, bf16 or quantised, any strides with a contiguous last dimension) hold positions first_key,
    first_key + 1, ... and include the new tokens. A query sees keys up to its own position, and with `window`
    only those at a position greater than its own minus `window` (Hugging Face's meaning). `kv_of_head` is
    non-decreasing, one entry per query head. `scale` is 1 / sqrt(d) unless given.

    Scratch: 12 MiB, and the widened keys and values of one KV head (8 S d bytes) where they are bf16; 12 MiB where they
    are quantised, and two numbers for each query of a KV head's group.
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
    if isinstance(k_KSd, QuantisedRows) or isinstance(v_KSd, QuantisedRows):
        scale = 1 / math.sqrt(width) if scale is None else scale
        for kv, heads in _runs(kv_of_head, whole=False):
            k_1Sd, v_1Sd = k_KSd[kv, :], v_KSd[kv, :]
            _decoding(q_TNd[:, heads], k_1Sd, v_1Sd, offset - low, window, scale, result[:, heads])
        return result
    whole = k_KSd.dtype is torch.float32 or k_KSd.numel() <= _WIDENED_ELEMENTS
    for kv, heads in _runs(kv_of_head, whole):
        q_TKgd = q_TNd[:, heads].view(tokens, kv.stop - kv.start, -1, width)
        out_TKgd = result[:, heads].view(tokens, kv.stop - kv.start, -1, width)
        _group(q_TKgd, k_KSd[kv].float(), v_KSd[kv].float(), offset - low, window, scale, out_TKgd)
    return result


def _decoding(
    q_Tgd: Tensor,
    k_1Sd: Rows,
    v_1Sd: Rows,
    offset: int,
    window: int | None,
    scale: float,
    out_Tgd: Tensor,
) -> None:
    """Fill `out_Tgd` of the query heads of one KV head; its cache is decoded once, a part at a time.

    What a query has seen is kept as the largest score and the sum of the weights so far, relative to it (online
    softmax), and in `out_Tgd`.
    """
    tokens, group, width = q_Tgd.shape
    most_Tg1 = torch.full((tokens, group, 1), -math.inf)
    sum_Tg1 = torch.zeros((tokens, group, 1))
    out_Tgd.zero_()
    # Rows are whole groups while they are decoded, and no query's scores alone may be too many.
    padded_width = -(-width // KV_GROUP) * KV_GROUP
    step = max(1, min(_DECODED_ELEMENTS // padded_width, _SCORE_ELEMENTS // group))
    for start in range(0, k_1Sd.shape[1], step):
        stop = min(start + step, k_1Sd.shape[1])
        k_sd, v_sd = _numbers(k_1Sd, slice(start, stop)), _numbers(v_1Sd, slice(start, stop))
        tile = max(1, _SCORE_ELEMENTS // (group * max(width, stop - start)))
        for some in _seeing(start, stop, offset, tokens, window, tile):
            seen_ts = _mask(offset + some.start - start, some.stop - some.start, stop - start, window)
            _add_part(q_Tgd[some], k_sd, v_sd, seen_ts, scale, most_Tg1[some], sum_Tg1[some], out_Tgd[some])
        del k_sd, v_sd  # before the next ones are decoded
    out_Tgd /= sum_Tg1


def _seeing(
    start: int, stop: int, offset: int, tokens: int, window: int | None, tile: int
) -> Iterator[slice]:
    """The queries, by tiles, that see any of the keys [start, stop); query t is at key index offset + t."""
    first = max(0, start - offset)
    last = tokens if window is None else min(tokens, stop + window - 1 - offset)
    return (slice(at, min(at + tile, last)) for at in range(first, last, tile))


def _add_part(
    q_tgd: Tensor,
    k_sd: Tensor,
    v_sd: Tensor,
    seen_ts: Tensor,
    scale: float,
    most_tg1: Tensor,
    sum_tg1: Tensor,
    out_tgd: Tensor,
) -> None:
    """Take some keys and values into what the queries have seen of earlier ones."""
    weights_tgs = (q_tgd @ k_sd.T).mul_(scale).masked_fill_(~seen_ts[:, None], -math.inf)
    now_tg1 = torch.maximum(most_tg1, weights_tgs.amax(-1, keepdim=True))
    base_tg1 = now_tg1.masked_fill(now_tg1 == -math.inf, 0)  # of a query that sees none of them
    weights_tgs.sub_(base_tg1).exp_()
    kept_tg1 = (most_tg1 - base_tg1).exp_()
    sum_tg1.mul_(kept_tg1).add_(weights_tgs.sum(-1, keepdim=True))
    out_tgd.mul_(kept_tg1).add_(weights_tgs @ v_sd)
    most_tg1.copy_(now_tg1)


def _numbers(x_1Sd: Rows, part: slice) -> Tensor:
    """[S, d] f32."""
    some = x_1Sd[0:1, part]
    return (some.numbers() if isinstance(some, QuantisedRows) else some.float())[0]


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
