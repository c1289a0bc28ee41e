"""Says where keys and values lie in a KV cache's pages, and which positions a call computes.

A page has P positions. For each layer and KV head, a page has a part: keys, then values. A sequence's position x is row
x % P of its page x // P. This module checks everything except the addresses in tables.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tpiedge.kernels.kv_format import KEYS, KVFormat

# The numbering of KVFormat in native/kv.h.
_FORMATS = {"f32": 0, "bf16": 1, "q8": 2, "q4": 3}
# As PageLayout and Span of native/interface.h.
_LAYOUT = struct.Struct("=8q")
_SPAN = struct.Struct("=4q")


@dataclass(frozen=True, slots=True)
class PageLayout:
    """The place of one layer's keys and values in a cache's pages. `offset` is the layer's first byte in a page; None
    means that all layers before it have its format and heads. Raises ValueError."""

    format: KVFormat
    kv_heads: int
    #: Of a page, a multiple of KEYS.
    positions: int
    layer: int
    #: All pages, uint8 [pages, bytes of a page], with parts sorted by layer, then KV head.
    store_PB: Tensor = field(repr=False, compare=False)
    offset: int | None = None
    packed: bytes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        store_PB = self.store_PB
        if (
            store_PB.dim() != 2
            or store_PB.dtype is not torch.uint8
            or not store_PB.is_cpu
            or (store_PB.numel() and store_PB.stride(1) != 1)
        ):
            raise ValueError(
                f"the memory of pages is {list(store_PB.shape)} {store_PB.dtype}, not rows of uint8"
            )
        layers_bytes = self.layer_offset + self.kv_heads * self.head_bytes
        if not (
            self.positions > 0
            and self.positions % KEYS == 0
            and min(self.kv_heads, self.layer, self.layer_offset) >= 0
            and layers_bytes <= store_PB.shape[1]
        ):
            raise ValueError(f"pages of {store_PB.shape[1]} bytes cannot have {self}")
        numbers = _FORMATS[self.format.precision], self.kv_heads, self.format.width, self.positions
        strides = self.layer_offset, self.head_bytes, self.format.row_nbytes, self.value_bytes
        object.__setattr__(self, "packed", _LAYOUT.pack(*numbers, *strides))

    @property
    def value_bytes(self) -> int:
        """Bytes from a key to its value."""
        return self.positions * self.format.row_nbytes

    @property
    def head_bytes(self) -> int:
        return self.format.part_bytes(self.positions)

    @property
    def layer_offset(self) -> int:
        return self.layer * self.kv_heads * self.head_bytes if self.offset is None else self.offset


@dataclass(frozen=True, slots=True)
class Span:
    """`tokens` positions of a sequence from `start` on. `table` has the addresses of all the sequence's pages."""

    tokens: int
    start: int
    table: NDArray[np.int64]

    @property
    def stop(self) -> int:
        return self.start + self.tokens


class Spans:
    """A call's spans, packed for all layers. The call's rows are the tokens of its spans, in order. Spans must not
    overlap. Tables must not change during calls. Raises ValueError for an invalid span."""

    def __init__(self, spans: Sequence[Span], positions: int) -> None:
        self.positions = positions
        self.tokens = 0
        self._spans = tuple(spans)
        # The longest first, so that threads end at the same time.
        packed: list[tuple[int, bytes]] = []
        for span in self._spans:
            table = span.table
            flags = table.flags
            if table.dtype != np.int64 or table.ndim != 1 or not flags.c_contiguous or not flags.aligned:
                raise ValueError(f"a table of pages is {table.shape} {table.dtype}, not contiguous int64")
            if span.tokens < 1 or span.start < 0 or span.stop > len(table) * positions:
                raise ValueError(
                    f"{span.tokens} tokens from position {span.start} on, in {len(table)} pages of {positions}"
                )
            row = _SPAN.pack(span.tokens, span.start, span.table.ctypes.data, self.tokens)
            packed.append((span.stop, row))
            self.tokens += span.tokens
        packed.sort(key=lambda one: one[0], reverse=True)
        self.packed = b"".join(row for _, row in packed)

    def __len__(self) -> int:
        return len(self._spans)

    def __iter__(self) -> Iterator[tuple[slice, Span]]:
        first = 0
        for span in self._spans:
            yield slice(first, first + span.tokens), span
            first += span.tokens

    def check_pages(self, layout: PageLayout) -> None:
        """Raises ValueError unless `layout` has the same `positions`."""
        if self.positions != layout.positions:
            raise ValueError(f"tables of pages of {self.positions} positions for pages of {layout.positions}")
