"""Stores keys and values of a node's own KV heads, in pages that rank 0 assigns."""

import math
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tpiedge.errors import ProtocolError
from tpiedge.kernels.kv_format import KVFormat, page_positions
from tpiedge.kernels.kv_pages import PageLayout, Span
from tpiedge.memory.arena import Arena
from tpiedge.wire.data import Segment, TableChange


class LayerKV(NamedTuple):
    """A node's own KV heads of a layer, and their format."""

    kv_heads: int
    format: KVFormat


class KVCache:
    """Keys and values of `slots` sequences, with `capacity` tokens in all. An item of `layers` is what a layer keeps,
    or the number of the earlier layer whose keys and values it uses. Raises OutOfMemory."""

    def __init__(self, layers: Sequence[LayerKV | int], *, slots: int, capacity: int) -> None:
        kept = [one for one in layers if not isinstance(one, int)]
        self.page_positions = page_positions([one.format for one in kept])
        self.pages = -(-capacity // self.page_positions)
        self.page_bytes = sum(heads * stored.part_bytes(self.page_positions) for heads, stored in kept)
        self.reserved_bytes = self.pages * self.page_bytes
        self._arena = Arena(self.reserved_bytes, "the KV cache", "choose a shorter context", committed=True)
        store = self._arena.bytes(0, self.reserved_bytes)
        self._store_PB = store.view(self.pages, self.page_bytes)
        self._base = store.data_ptr()
        self._tables = np.zeros((slots, self.pages), np.int64)
        self._counts = [0] * slots  # of pages in each table
        self._lengths = [0] * slots
        self._in_memory: set[int] = set()
        #: Of the layers that keep keys, and of all layers.
        self.kept: list[PageLayout] = []
        self.layouts: list[PageLayout] = []
        offset = 0
        for layer, one in enumerate(layers):
            if isinstance(one, int):
                self.layouts.append(self.layouts[one])
                continue
            layout = PageLayout(one.format, one.kv_heads, self.page_positions, layer, self._store_PB, offset)
            self.kept.append(layout)
            self.layouts.append(layout)
            offset += one.kv_heads * layout.head_bytes

    @property
    def capacity(self) -> int:
        return self.pages * self.page_positions

    @property
    def held_bytes(self) -> int:
        """The most bytes that can be resident."""
        return len(self._in_memory) * self.page_bytes

    @cached_property
    def extents(self) -> NDArray[np.uint8]:
        """The memory, [pages, extents, bytes of an extent]. Every part is one or more whole extents, as many on every
        node. Touch only resident pages."""
        nbytes = math.gcd(*(layout.head_bytes for layout in self.kept))
        return self._store_PB.numpy().reshape(self.pages, self.page_bytes // nbytes, nbytes)

    def hold(self, pages: Iterable[int]) -> None:
        """Counts `pages` as resident."""
        self._in_memory.update(pages)

    def change(self, changes: Sequence[TableChange], discarded: Sequence[int]) -> None:
        """Applies a plan's changes of tables, and frees the memory of `discarded` pages. Raises ProtocolError."""
        for change in changes:
            slot = change.slot
            self._check_slot(slot)
            count = change.kept + len(change.pages)
            if change.kept > self._counts[slot] or count > self.pages:
                raise ProtocolError(
                    f"the plan keeps {change.kept} pages of slot {slot}, which has {self._counts[slot]}, and "
                    f"adds {len(change.pages)} of {self.pages}"
                )
            if change.filled > count * self.page_positions:
                raise ProtocolError(
                    f"the plan fills {change.filled} positions of slot {slot} in {count} pages"
                )
            for page in change.pages:
                self._check_page(page)
            new = [self._base + page * self.page_bytes for page in change.pages]
            self._tables[slot][change.kept : count] = new
            self._in_memory.update(change.pages)
            self._counts[slot], self._lengths[slot] = count, change.filled
        for page in discarded:
            self._check_page(page)
            self._in_memory.discard(page)
            self._arena.discard(page * self.page_bytes, self.page_bytes)

    def truncate(self, segments: Sequence[Segment]) -> None:
        """Checks that `segments` fit. Drops positions from the start of each segment on. Raises ProtocolError."""
        lengths = self._lengths.copy()
        for segment in segments:
            slot, start, stop = segment.slot, segment.start, segment.start + segment.length
            self._check_slot(slot)
            if start > lengths[slot]:
                raise ProtocolError(f"the plan leaves a hole: slot {slot} holds {lengths[slot]}, not {start}")
            room = self._counts[slot] * self.page_positions
            if stop > room:
                raise ProtocolError(f"the plan needs {stop} positions, the pages of slot {slot} have {room}")
            lengths[slot] = stop
        for segment in reversed(segments):
            self._lengths[segment.slot] = segment.start

    def commit(self, segments: Sequence[Segment]) -> None:
        """Counts the segments' positions as present. Call it after all layers are computed."""
        for segment in segments:
            self._lengths[segment.slot] = segment.start + segment.length

    def span(self, slot: int, start: int, tokens: int) -> Span:
        """Returns the place of positions that `truncate` has checked."""
        return Span(tokens, start, self._tables[slot, : self._counts[slot]])

    def close(self) -> None:
        """Frees the memory, which must not be in use."""
        self._arena.close()

    def _check_slot(self, slot: int) -> None:
        if not 0 <= slot < len(self._lengths):
            raise ProtocolError(f"the plan names cache slot {slot}, but there are {len(self._lengths)}")

    def _check_page(self, page: int) -> None:
        if not 0 <= page < self.pages:
            raise ProtocolError(f"the plan names page {page} of the KV cache, but there are {self.pages}")
