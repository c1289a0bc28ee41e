"""A KV cache in pages that lie anywhere, in no order, for tests of the kernels that read and write them."""

import random

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tests.unit.kernels.kv_rows import QuantisedRows, Rows
from tpiedge.kernels.attention import attention_pages
from tpiedge.kernels.kv_format import KEYS, KVFormat
from tpiedge.kernels.kv_pages import PageLayout, Span, Spans
from tpiedge.kernels.library import Pool
from tpiedge.pack.layout import whole_pages
from tpiedge.wire.fields import KVPrecision

# In f32, bf16 and f16 such bytes are NaN.
_NO_NUMBER = 0xFF


class PagedCache:
    def __init__(
        self, format_: KVFormat, kv_heads: int, *, layers: int = 1, positions: int = KEYS, pages: int = 16
    ) -> None:
        head_bytes = whole_pages(2 * positions * format_.row_nbytes)
        self.store_PB = torch.full((pages, layers * kv_heads * head_bytes), _NO_NUMBER, dtype=torch.uint8)
        self.positions = positions
        self.layouts = [
            PageLayout(format_, kv_heads, positions, layer, self.store_PB) for layer in range(layers)
        ]
        self._free = list(range(pages))
        random.Random(pages).shuffle(self._free)

    @property
    def layout(self) -> PageLayout:
        return self.layouts[0]

    def table(self, length: int) -> NDArray[np.int64]:
        numbers = [self._free.pop() for _ in range(-(-length // self.positions))]
        base, step = self.store_PB.data_ptr(), self.store_PB.stride(0)
        return np.array([base + number * step for number in numbers], dtype=np.int64)

    def spans(self, *spans: tuple[int, int, NDArray[np.int64]]) -> Spans:
        return Spans([Span(*span) for span in spans], self.positions)

    def rows(self, table: NDArray[np.int64], length: int, layer: int = 0) -> tuple[Tensor, Tensor]:
        """The bytes [K, S, B] of a sequence's keys and values, one position after the other."""
        keys, values = (
            torch.stack([self._row(table, at, layer, kind) for at in range(length)], 1)
            for kind in (False, True)
        )
        return keys, values

    def write(self, table: NDArray[np.int64], keys_KSB: Tensor, values_KSB: Tensor, layer: int = 0) -> None:
        for kind, x_KSB in ((False, keys_KSB), (True, values_KSB)):
            for at in range(x_KSB.shape[1]):
                self._row(table, at, layer, kind)[:] = x_KSB[:, at]

    def _row(self, table: NDArray[np.int64], at: int, layer: int, of_values: bool) -> Tensor:
        layout, store_PB = self.layouts[layer], self.store_PB
        row_bytes = layout.format.row_nbytes
        page = (int(table[at // self.positions]) - store_PB.data_ptr()) // store_PB.stride(0)
        first = layout.layer_offset + at % self.positions * row_bytes + of_values * layout.value_bytes
        offset = store_PB[page].storage_offset() + first
        return store_PB[page].as_strided((layout.kv_heads, row_bytes), (layout.head_bytes, 1), offset)


def format_of(x_KSd: Rows) -> KVFormat:
    if isinstance(x_KSd, QuantisedRows):
        return x_KSd.format
    precisions: dict[torch.dtype, KVPrecision] = {torch.float32: "f32", torch.bfloat16: "bf16"}
    return KVFormat(precisions[x_KSd.dtype], x_KSd.shape[2])


def attend(
    q_TNd: Tensor,
    k_KSd: Rows,
    v_KSd: Rows,
    kv_of_head: tuple[int, ...],
    first_position: int,
    *,
    window: int | None = None,
    scale: float | None = None,
    cap: float = 0.0,
    sinks: Tensor | None = None,
    pool: Pool | None = None,
) -> Tensor:
    kv_heads, length, _ = k_KSd.shape
    cache = PagedCache(format_of(k_KSd), kv_heads, pages=-(-length // KEYS) + 3)
    table = cache.table(length)
    cache.write(table, _bytes_of(k_KSd), _bytes_of(v_KSd))
    spans = cache.spans((q_TNd.shape[0], first_position, table))
    return attention_pages(
        q_TNd, spans, cache.layout, kv_of_head, window=window, scale=scale, cap=cap, sinks_N=sinks, pool=pool
    )


def _bytes_of(x_KSd: Rows) -> Tensor:
    return x_KSd.data_KSB if isinstance(x_KSd, QuantisedRows) else x_KSd.contiguous().view(torch.uint8)
