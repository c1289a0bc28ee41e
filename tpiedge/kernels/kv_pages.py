"""Where the keys and values of a KV cache lie in its pages, and which positions of which sequences a call takes.

A page is the memory of P positions of all layers and KV heads. In it each layer and KV head has a part, which begins
with the keys of the P positions; their values follow. Position x of a sequence is row x % P of its page x // P.

The native kernels read raw memory: what they are given is checked and packed here, but for the addresses in a table.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tpiedge.kernels.kv_format import KEYS, NUMBER_BYTES, KVFormat

# The numbering of KVFormat in native/kv.h.
_FORMATS = {"f32": 0, "bf16": 1, "q8": 2, "q4": 3}
# As PageLayout and Span of native/interface.h.
_LAYOUT = struct.Struct("=8q")
_SPAN = struct.Struct("=4q")


@dataclass(frozen=True, slots=True)
class PageLayout:
    """How one layer's keys and values lie in the pages of a cache. Raises ValueError for what does not fit together.

    `positions`: of a page, a multiple of KEYS. In bytes: `layer_offset` from a page's address to the layer's part of KV
    head 0, `head_bytes` from one KV head's part to the next, `row_bytes` from one position's row to the next, and
    `value_bytes` from a key to its value. `store_PB`: the memory of all pages, uint8 [pages, bytes of a page]; torch
    reads and writes pages there.
    """

    format: KVFormat
    kv_heads: int
    positions: int
    layer_offset: int
    head_bytes: int
    row_bytes: int
    value_bytes: int
    store_PB: Tensor = field(repr=False, compare=False)
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
        rows_bytes = self.positions * self.row_bytes
        strides = self.layer_offset, self.head_bytes, self.row_bytes, self.value_bytes
        unit = NUMBER_BYTES.get(self.format.precision, 1)
        if not (
            self.positions > 0
            and self.positions % KEYS == 0
            and self.row_bytes == self.format.row_nbytes
            and self.value_bytes >= rows_bytes
            and self.head_bytes >= self.value_bytes + rows_bytes
            and self.kv_heads >= 0
            and 0 <= self.layer_offset <= store_PB.shape[1] - self.kv_heads * self.head_bytes
            and not any(stride % unit for stride in strides)
        ):
            raise ValueError(f"pages of {store_PB.shape[1]} bytes cannot have {self}")
        width = self.format.width
        packed = _LAYOUT.pack(_FORMATS[self.format.precision], self.kv_heads, width, self.positions, *strides)
        object.__setattr__(self, "packed", packed)


@dataclass(frozen=True, slots=True)
class Span:
    """Successive positions of one sequence. `start`: the first; `table`: the addresses of the sequence's pages from
    position 0 on, at least as far as the last position's."""

    tokens: int
    start: int
    table: NDArray[np.int64]

    @property
    def stop(self) -> int:
        return self.start + self.tokens


class Spans:
    """The spans of a call, checked and packed once for all layers: their tokens are the call's rows, in this order.

    Several may be of one sequence, but of different positions. Raises ValueError for a table that ends too early, or
    is no contiguous int64. Tables must neither be written to nor freed as long as calls are made with them.
    """

    def __init__(self, spans: Sequence[Span], positions: int) -> None:
        """`positions`: of a page."""
        self.positions = positions
        self.tokens = 0
        self._spans = tuple(spans)
        # Attended in the order of `packed`: what takes longest first, so that threads end at the same time.
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
        """Each span with its rows."""
        first = 0
        for span in self._spans:
            yield slice(first, first + span.tokens), span
            first += span.tokens

    def check_pages(self, layout: PageLayout) -> None:
        """Raises ValueError where the tables are of pages of another size."""
        if self.positions != layout.positions:
            raise ValueError(f"tables of pages of {self.positions} positions for pages of {layout.positions}")
