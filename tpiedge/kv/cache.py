"""Keys and values of a node's own KV heads, preallocated, as numbers or quantised (kernels/kv_format.py).

Laws: positions are appended without holes; a slot's length changes only by `begin` (which may cut it back) and
`commit`; the memory is address space until sequences reach it, and what `held_bytes` does not count has gone back to
the system.

Shapes: K local KV heads, S positions, T new tokens, d head dimension, B bytes of a quantised row.
"""

from functools import cached_property

import torch
from torch import Tensor

from tpiedge.errors import InternalError, ProtocolError
from tpiedge.kernels.attention import Rows
from tpiedge.kernels.attention_block import CacheMemory
from tpiedge.kernels.kv_format import KVFormat
from tpiedge.kernels.kv_rows import QuantisedRows, encode_into
from tpiedge.kernels.library import Pool
from tpiedge.kv.room import KVRoom
from tpiedge.memory.arena import Arena, Extent
from tpiedge.pack.layout import whole_pages
from tpiedge.wire.fields import KVPrecision

__all__ = ["KVCache"]

_QUANTUM_BYTES = 4 << 20
_QUANTA = 16  # of a slot, where they are larger
_DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


class KVCache:
    """`slots` sequences of up to `capacity` tokens in each of `num_layers` layers.

    Storage is one tensor [slot, layer, key or value, K, capacity, d or B]: a head's positions lie next to each other,
    as attention reads them, and begin at a page. Raises OutOfMemory if the system refuses the address space.
    """

    def __init__(
        self,
        *,
        num_layers: int,
        kv_heads: int,
        head_dim: int,
        slots: int,
        capacity: int,
        precision: KVPrecision,
        quantum_bytes: int | None = None,
    ) -> None:
        """Memory is taken and given back by `quantum_bytes`; `reserved_bytes` is the address space."""
        self.capacity = capacity
        self.format = KVFormat(precision, head_dim)
        self._row_bytes = self.format.row_nbytes
        self._run_bytes = whole_pages(capacity * self._row_bytes)
        self._runs = num_layers * 2 * kv_heads  # of a slot
        self.reserved_bytes = slots * self._runs * self._run_bytes
        self._arena = Arena(self.reserved_bytes, "the KV cache", "choose a shorter context", committed=True)
        everything = Extent(0, self.reserved_bytes)
        dtype = _DTYPES.get(precision, torch.uint8)
        row = self._row_bytes // dtype.itemsize
        runs = self._arena.matrix(everything, slots * self._runs, capacity * row, self._run_bytes, dtype)
        self._store = runs.view(slots, num_layers, 2, kv_heads, capacity, row)
        self._lengths = [0] * slots
        slot_bytes = self._runs * capacity * self._row_bytes
        quantum = max(_QUANTUM_BYTES, slot_bytes // _QUANTA) if quantum_bytes is None else quantum_bytes
        self._room = KVRoom(slots, capacity, quantum * capacity // max(1, slot_bytes))

    @cached_property
    def memory(self) -> CacheMemory:
        """How the keys and the values of one layer and slot lie at their `addresses`."""
        kv_heads, capacity, _ = self._store.shape[3:]
        return CacheMemory(self.format, kv_heads, capacity, *self._store.stride()[3:5])

    def addresses(self, layer: int, slot: int) -> tuple[int, int]:
        """The addresses of the keys and of the values at position 0."""
        slot_stride, layer_stride, kind_stride = self._store.stride()[:3]
        keys = self._store.data_ptr() + self._store.itemsize * (slot * slot_stride + layer * layer_stride)
        return keys, keys + self._store.itemsize * kind_stride

    @property
    def held_bytes(self) -> int:
        """The most that can be resident: whole pages of the positions that slots keep memory for."""
        return self._runs * sum(whole_pages(held * self._row_bytes) for held in self._room.held)

    def begin(self, slot: int, start: int, stop: int, reach: int = 0) -> None:
        """Prepare to append the positions [start, stop): what was kept beyond `start` is dropped.

        `reach`: how long the sequence is known to become, so that memory for it is not given back before.
        Raises ProtocolError for an unknown slot, a hole, or more than the capacity: the positions come from a plan.
        """
        if not 0 <= slot < len(self._lengths):
            raise ProtocolError(f"the plan names cache slot {slot}, but there are {len(self._lengths)}")
        if not 0 <= start <= stop:
            raise ProtocolError(f"the plan names positions [{start}, {stop}), which is no interval")
        if start > self._lengths[slot]:
            raise ProtocolError(
                f"the plan leaves a hole: slot {slot} holds {self._lengths[slot]}, not {start}"
            )
        if stop > self.capacity:
            raise ProtocolError(f"the plan needs {stop} positions, the cache has {self.capacity}")
        self._lengths[slot] = start
        self._give_back(slot, self._room.ask(slot, stop, reach))

    def commit(self, slot: int, length: int) -> None:
        """Every layer has appended up to `length`: the tokens are part of the sequence from now on."""
        self._lengths[slot] = length

    def append(
        self, layer: int, slot: int, start: int, k_TKd: Tensor, v_TKd: Tensor, pool: Pool | None = None
    ) -> None:
        """Store the keys and values of positions [start, start + T), rounded to the cache's precision: quantised by
        the native kernels of `pool`, or by torch to the same bytes."""
        stop = start + k_TKd.shape[0]
        if stop > self.capacity:
            raise InternalError(f"append up to {stop} in a cache of {self.capacity}")
        for kind, x_TKd in enumerate((k_TKd, v_TKd)):
            rows_TK = self._store[slot, layer, kind, :, start:stop].transpose(0, 1)
            if self.format.quantised:
                encode_into(rows_TK, x_TKd, self.format, pool)
            else:
                rows_TK.copy_(x_TKd)

    def keys(self, layer: int, slot: int, stop: int) -> Rows:
        """A view [K, stop, d]."""
        return self._rows(self._store[slot, layer, 0, :, :stop])

    def values(self, layer: int, slot: int, stop: int) -> Rows:
        """A view [K, stop, d]."""
        return self._rows(self._store[slot, layer, 1, :, :stop])

    def _rows(self, rows_KS: Tensor) -> Rows:
        return QuantisedRows(self.format, rows_KS) if self.format.quantised else rows_KS

    def _give_back(self, slot: int, positions: range) -> None:
        first, last = (whole_pages(at * self._row_bytes) for at in (positions.start, positions.stop))
        if first == last:
            return
        for run in range(slot * self._runs, (slot + 1) * self._runs):
            self._arena.discard(Extent(run * self._run_bytes + first, last - first))
