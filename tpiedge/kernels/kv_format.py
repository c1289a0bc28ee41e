"""How the KV cache stores the numbers of one head at one position: a row of bytes, the same on every machine.

- f32, bf16: the numbers, one after the other.
- q8, q4: groups of 32 numbers along the head's dimension; the last may be short. The groups' scales come first, then
  their codes, group by group: a position is read as one piece (FlexGen's compression, with groups inside a head).
- q8: a group has one f16, its scale s: the least one with 127 s >= max |x|. The code of x is x / s rounded to the
  nearest integer, halves to even, as int8; it stands for s * code.
- q4: a group has two f16, its scale s and then its floor m: m is the greatest f16 that is not above min x, s the least
  one with 15 s >= max x - m. The code of x is (x - m) / s rounded likewise, 0 to 15; it stands for m + s * code. In a
  group of n numbers byte j holds code j in its lower four bits and code ceil(n / 2) + j in its upper four (zeros where
  there is none).
- All of it is computed in f32, every operation rounded by itself; x / s is x * (1 / s), or 0 where s = 0.
- A group with a NaN or an infinity, or with numbers too large for an f16 scale or floor, has the scale NaN (0x7e00) and
  zeros otherwise: all of it is NaN from then on.

What is read differs from what was written by s / 2 at most (and f32 rounding): both f16 are rounded to the safe side.

Positions lie in pages. A page's part of one layer and KV head is one run of bytes: the rows of its keys, then those of
its values, then what is left of the last 4 KiB.
"""

from dataclasses import dataclass
from functools import cached_property

from tpiedge.wire.fields import Compute, KVPrecision

KV_GROUP = 32
"""Numbers that share a scale."""

KEYS = 64
"""Attention takes so many keys at a time, from a multiple of it on: none of these blocks may straddle pages."""
NUMBER_BYTES = {"f32": 4, "bf16": 2}

_ALIGN = 4096
_SCALES_BYTES = {"q8": 2, "q4": 4}  # of a group


@dataclass(frozen=True)
class KVFormat:
    """How heads that are `width` numbers wide are stored."""

    precision: KVPrecision
    width: int

    @property
    def quantised(self) -> bool:
        return self.precision in _SCALES_BYTES

    @property
    def bits(self) -> int:
        """Bits of a code."""
        return 8 if self.precision == "q8" else 4

    @cached_property
    def groups(self) -> int:
        return -(-self.width // KV_GROUP)

    @cached_property
    def scales_nbytes(self) -> int:
        """Where the codes of a row begin."""
        return self.groups * _SCALES_BYTES.get(self.precision, 0)

    @cached_property
    def row_nbytes(self) -> int:
        """Bytes of one position of a head, keys or values."""
        if not self.quantised:
            return self.width * NUMBER_BYTES[self.precision]
        return self.scales_nbytes + -(-self.width * self.bits // 8)

    @cached_property
    def page_positions(self) -> int:
        """Positions of a page: as few whole blocks of attention as fill the 4 KiB of a part but for a sixteenth, at
        most 512."""
        counts = range(KEYS, 512 + 1, KEYS)
        fitting = (count for count in counts if self._padding(count) <= 1 / 16)
        return next(fitting, min(counts, key=self._padding))

    @cached_property
    def part_nbytes(self) -> int:
        """Bytes of a page's part of one layer and KV head."""
        return _whole(2 * self.page_positions * self.row_nbytes)

    def pages_of(self, positions: int) -> int:
        """How many pages so many positions take."""
        return -(-positions // self.page_positions)

    def _padding(self, positions: int) -> float:
        used = 2 * positions * self.row_nbytes
        return 1 - used / _whole(used)


def _whole(nbytes: int) -> int:
    return -(-nbytes // _ALIGN) * _ALIGN


def usual_kv(compute: Compute) -> KVPrecision:
    """The precision that goes with an arithmetic by default: no finer than the products that keys come from."""
    return "f32" if compute == "f32" else "bf16"
