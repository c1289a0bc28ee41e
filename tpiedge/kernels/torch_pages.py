"""Keys and values in the pages of a KV cache, read and written by torch where there are no native kernels.

T tokens, K KV heads, S positions, P positions of a page, d head width, B bytes of a row.
"""

import torch
from torch import Tensor

from tpiedge.kernels.kv_pages import PageLayout, Span, Spans
from tpiedge.kernels.kv_rows import QuantisedRows, encode
from tpiedge.kernels.torch_attention import Rows

__all__ = ["append_by_torch", "rows_in_pages"]

_DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


def rows_in_pages(span: Span, layout: PageLayout, first: int) -> tuple[Rows, Rows]:
    """Copies of the sequence's keys and values [K, S, d] from position `first`, a multiple of P, to the span's end."""
    pages = _page_numbers(span, layout)[first // layout.positions : -(-span.stop // layout.positions)]
    keys, values = (
        part_pKPB[pages].transpose(0, 1).flatten(1, 2)[:, : span.stop - first] for part_pKPB in _parts(layout)
    )
    return _as_numbers(keys, layout), _as_numbers(values, layout)


def append_by_torch(k_TKd: Tensor, v_TKd: Tensor, spans: Spans, layout: PageLayout) -> None:
    """Store every span's rows at its positions, rounded as the cache keeps them."""
    for rows, span in spans:
        positions = torch.arange(span.start, span.stop)
        pages = _page_numbers(span, layout)[positions // layout.positions]
        for part_pKPB, x_TKd in zip(_parts(layout), (k_TKd, v_TKd), strict=True):
            part_pKPB[pages, :, positions % layout.positions] = _as_bytes(x_TKd[rows], layout)


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


def _as_numbers(rows_KSB: Tensor, layout: PageLayout) -> Rows:
    if layout.format.quantised:
        return QuantisedRows(layout.format, rows_KSB)
    return rows_KSB.view(_DTYPES[layout.format.precision])


def _as_bytes(x_TKd: Tensor, layout: PageLayout) -> Tensor:
    """[T, K, B]."""
    if layout.format.quantised:
        return encode(x_TKd, layout.format)
    return x_TKd.to(_DTYPES[layout.format.precision]).contiguous().view(torch.uint8)
