"""Stores keys and values of a node's own KV heads, in pages that rank 0 assigns."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tpiedge.errors import ProtocolError
from tpiedge.kernels.kv_format import KVFormat
from tpiedge.kernels.kv_pages import PageLayout, Span
from tpiedge.memory.arena import Arena
from tpiedge.wire.data import Segment, TableChange


class KVCache:
    """Keys and values of `slots` sequences, with `capacity` tokens in all. Raises OutOfMemory."""

    def __init__(
        self, num_layers: int, kv_heads: int, stored: KVFormat, *, slots: int, capacity: int
    ) -> None:
        self.format = stored
        self.pages = self.format.pages_of(capacity)
        self._num_layers = num_layers
        self._kv_heads = kv_heads
        self.page_bytes = num_layers * kv_heads * self.format.part_nbytes
        self.reserved_bytes = self.pages * self.page_bytes
        self._arena = Arena(self.reserved_bytes, "the KV cache", "choose a shorter context", committed=True)
        store = self._arena.bytes(0, self.reserved_bytes)
        self._store_PB = store.view(self.pages, self.page_bytes)
        self._base = store.data_ptr()
        self._tables = np.zeros((slots, self.pages), np.int64)
        self._counts = [0] * slots  # of pages in each table
        self._lengths = [0] * slots
        self._in_memory: set[int] = set()

    @property
    def capacity(self) -> int:
        return self.pages * self.format.page_positions

    @property
    def held_bytes(self) -> int:
        """The most bytes that can be resident."""
        return len(self._in_memory) * self.page_bytes

    @cached_property
    def parts(self) -> NDArray[np.uint8]:
        """The memory, [pages, layers, KV heads, bytes of a part]. Touch only resident pages."""
        shape = (self.pages, self._num_layers, self._kv_heads, self.format.part_nbytes)
        return self._store_PB.numpy().reshape(shape)

    def hold(self, pages: int) -> None:
        """Counts the first `pages` pages as resident."""
        self._in_memory.update(range(pages))

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
            if change.filled > count * self.format.page_positions:
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
            room = self._counts[slot] * self.format.page_positions
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

    @cached_property
    def layouts(self) -> tuple[PageLayout, ...]:
        positions = self.format.page_positions
        return tuple(
            PageLayout(self.format, self._kv_heads, positions, layer, self._store_PB)
            for layer in range(self._num_layers)
        )

    def _check_slot(self, slot: int) -> None:
        if not 0 <= slot < len(self._lengths):
            raise ProtocolError(f"the plan names cache slot {slot}, but there are {len(self._lengths)}")

    def _check_page(self, page: int) -> None:
        if not 0 <= page < self.pages:
            raise ProtocolError(f"the plan names page {page} of the KV cache, but there are {self.pages}")
