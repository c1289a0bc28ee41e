"""Keys and values of a node's own KV heads, preallocated.

Laws: positions are appended without holes; a slot's length changes only by `begin` (which may cut it back) and
`commit`; the memory is reserved at the start and touched only as far as sequences reach, so an unused context costs
nothing.

Shapes: K local KV heads, S positions, T new tokens, d head dimension.
"""

import math

import torch
from torch import Tensor

from tpiedge.errors import InternalError, OutOfMemory, ProtocolError
from tpiedge.units import format_bytes

__all__ = ["KVCache"]


class KVCache:
    """`slots` sequences of up to `capacity` tokens in each of `num_layers` layers.

    Storage is one tensor [slot, layer, key or value, K, capacity, d]: a head's positions lie next to each other, as
    attention reads them. Raises OutOfMemory if the system refuses the address space.
    """

    def __init__(
        self, *, num_layers: int, kv_heads: int, head_dim: int, slots: int, capacity: int, dtype: torch.dtype
    ) -> None:
        self._store = _reserve((slots, num_layers, 2, kv_heads, capacity, head_dim), dtype)
        self._lengths = [0] * slots
        self.capacity = capacity
        self.kv_heads = kv_heads

    @property
    def reserved_bytes(self) -> int:
        """Address space of the whole cache; pages become resident as sequences grow."""
        return self._store.numel() * self._store.element_size()

    def length(self, slot: int) -> int:
        """Committed tokens of the sequence in `slot`."""
        return self._lengths[slot]

    def begin(self, slot: int, start: int, stop: int) -> None:
        """Prepare to append the positions [start, stop): what was kept beyond `start` is dropped.

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

    def commit(self, slot: int, length: int) -> None:
        """Every layer has appended up to `length`: the tokens are part of the sequence from now on."""
        self._lengths[slot] = length

    def append(self, layer: int, slot: int, start: int, k_TKd: Tensor, v_TKd: Tensor) -> None:
        """Store the keys and values of positions [start, start + T), rounded to the cache's precision."""
        stop = start + k_TKd.shape[0]
        if stop > self.capacity:
            raise InternalError(f"append up to {stop} in a cache of {self.capacity}")
        self._store[slot, layer, 0, :, start:stop] = k_TKd.transpose(0, 1)
        self._store[slot, layer, 1, :, start:stop] = v_TKd.transpose(0, 1)

    def keys(self, layer: int, slot: int, stop: int) -> Tensor:
        """A view [K, stop, d]."""
        return self._store[slot, layer, 0, :, :stop]

    def values(self, layer: int, slot: int, stop: int) -> Tensor:
        """A view [K, stop, d]."""
        return self._store[slot, layer, 1, :, :stop]


def _reserve(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    try:
        return torch.empty(shape, dtype=dtype)
    except RuntimeError:
        nbytes = format_bytes(math.prod(shape) * dtype.itemsize)
        raise OutOfMemory(f"cannot reserve {nbytes} for the KV cache: choose a shorter context") from None
