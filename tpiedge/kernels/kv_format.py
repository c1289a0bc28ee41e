"""How the KV cache stores the numbers of one head at one position: a row of bytes, the same on every machine.

- f32, bf16: the numbers, one after the other.
- q8, q4: groups of 32 numbers along the head's dimension (the last may be short): first all scales, then all codes
  (FlexGen's compression, with groups inside a head).
- q8: a group has one f16 scale s, the least with 127 s >= max |x|. Code: x / s to the nearest integer, halves to even,
  int8; it stands for s * code.
- q4: a group has two f16, scale s and floor m: m is the greatest f16 not above min x, s the least with 15 s >= max x -
  m. Code: (x - m) / s likewise, 0 to 15; it stands for m + s * code. Of n numbers byte j holds code j in its lower four
  bits and code ceil(n / 2) + j in its upper four (zeros beyond the end).
- All is computed in f32, every operation rounded by itself; x / s is x * (1 / s), or 0 where s = 0.
- A group with a NaN or an infinity, or too large for f16, has the scale NaN (0x7e00) and zeros: it is NaN from then on.

What is read differs from what was written by s / 2 at most (and f32 rounding): both f16 are rounded to the safe side. A
page's part of one layer and KV head is the rows of its keys, those of its values, and padding to 4 KiB.
"""

from dataclasses import dataclass
from functools import cached_property

from tpiedge.wire.fields import Compute, KVPrecision

KV_GROUP = 32

KEYS = 64
"""Attention takes aligned blocks of so many keys, which must not straddle pages."""
_NUMBER_BYTES = {"f32": 4, "bf16": 2}

_ALIGN = 4096
_SCALES_BYTES = {"q8": 2, "q4": 4}  # of a group


@dataclass(frozen=True)
class KVFormat:
    """How heads of `width` numbers are stored."""

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
        """Bytes of one position of a head, keys or values."""
        if not self.quantised:
            return self.width * _NUMBER_BYTES[self.precision]
        return self.scales_nbytes + -(-self.width * self.bits // 8)

    @cached_property
    def page_positions(self) -> int:
        """The least multiple of KEYS, at most 512, that pads a part by a sixteenth at most; else the best."""
        counts = range(KEYS, 512 + 1, KEYS)
        fitting = (count for count in counts if self._padding(count) <= 1 / 16)
        return next(fitting, min(counts, key=self._padding))

    @cached_property
    def part_nbytes(self) -> int:
        """Bytes of a page's part of one layer and KV head."""
        return whole(2 * self.page_positions * self.row_nbytes)

    def pages_of(self, positions: int) -> int:
        return -(-positions // self.page_positions)

    def _padding(self, positions: int) -> float:
        used = 2 * positions * self.row_nbytes
        return 1 - used / whole(used)


def whole(nbytes: int) -> int:
    return -(-nbytes // _ALIGN) * _ALIGN


def usual_kv(compute: Compute) -> KVPrecision:
    """The default precision: no finer than the products that keys come from."""
    return "f32" if compute == "f32" else "bf16"
