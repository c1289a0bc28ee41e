"""Defines the bytes of a KV cache's rows. The bytes are the same on every machine. A row has the numbers of one head at
one position.

Storing in q8 or q4 changes a number by at most half a scale (and f32 rounding). A page's part for one layer and KV head
has rows of keys, rows of values, then padding to 4 KiB.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from tpiedge.wire.fields import Compute, KVPrecision

KV_GROUP = 32

KEYS = 64  # keys of an aligned block of attention, which must not straddle pages
_NUMBER_BYTES = {"f32": 4, "bf16": 2}

_ALIGN = 4096
_SCALES_BYTES = {"q8": 2, "q4": 4}  # of one group


@dataclass(frozen=True)
class KVFormat:
    precision: KVPrecision
    width: int

    @property
    def quantised(self) -> bool:
        return self.precision in _SCALES_BYTES

    @property
    def bits(self) -> int:
        return 8 if self.precision == "q8" else 4

    @cached_property
    def groups(self) -> int:
        return -(-self.width // KV_GROUP)

    @cached_property
    def scales_nbytes(self) -> int:
        return self.groups * _SCALES_BYTES.get(self.precision, 0)

    @cached_property
    def row_nbytes(self) -> int:
        if not self.quantised:
            return self.width * _NUMBER_BYTES[self.precision]
        return self.scales_nbytes + -(-self.width * self.bits // 8)

    @cached_property
    def page_positions(self) -> int:
        """Positions of a page that has this format only."""
        return page_positions([self])

    @cached_property
    def part_nbytes(self) -> int:
        """Bytes of such a page's part."""
        return self.part_bytes(self.page_positions)

    def part_bytes(self, positions: int) -> int:
        """Returns the bytes of a part of a page with so many positions."""
        return whole(2 * positions * self.row_nbytes)


def page_positions(formats: Sequence[KVFormat]) -> int:
    """Returns the positions of a page that has a part of each format: a multiple of KEYS with little padding."""

    def padding(positions: int) -> float:
        used = 2 * positions * sum(one.row_nbytes for one in formats)
        return 1 - used / sum(one.part_bytes(positions) for one in formats)

    counts = range(KEYS, 512 + 1, KEYS)
    return next((count for count in counts if padding(count) <= 1 / 16), min(counts, key=padding))


def whole(nbytes: int) -> int:
    return -(-nbytes // _ALIGN) * _ALIGN


def usual_kv(compute: Compute) -> KVPrecision:
    """Returns the KV cache's default precision. `compute`: the arithmetic of the model."""
    return "f32" if compute == "f32" else "bf16"
