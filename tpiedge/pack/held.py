"""Which units of a pack's layers a machine has on its disk. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from tpiedge.pack.share import NodeShare

#: More than any model has.
MOST_UNITS: Final = 1 << 14


@dataclass(frozen=True, slots=True)
class HeldUnits:
    """Bit u says of unit u that all of its bytes are there, in every layer: in `attention` of a query head with the KV
    head that it uses, in `ffn` of a tile."""

    attention: int = 0
    ffn: int = 0

    @staticmethod
    def of(attention: Iterable[tuple[int, int]], ffn: Iterable[tuple[int, int]]) -> "HeldUnits":
        """From intervals (start, stop), of which units from MOST_UNITS on are left out."""
        return HeldUnits(_bits(attention), _bits(ffn))

    @property
    def intervals(self) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]]:
        """(attention, ffn) as intervals (start, stop), in order and as long as can be."""
        return tuple(_intervals(self.attention)), tuple(_intervals(self.ffn))

    @property
    def middle(self) -> float | None:
        """Where in a layer they lie: the middle of the FFN's tiles, or else of the heads; None where there are none."""
        bits = self.ffn or self.attention
        return (_lowest(bits) + bits.bit_length()) / 2 if bits else None

    def kv_heads(self, group_size: int) -> int:
        """The KV heads as bits; `group_size` query heads use one."""
        group = (1 << group_size) - 1
        count = -(-self.attention.bit_length() // group_size)
        return sum(1 << head for head in range(count) if self.attention >> head * group_size & group)

    def within(self, heads: int, tiles: int) -> "HeldUnits":
        """Those of a layer with so many units: a machine may say anything."""
        return HeldUnits(self.attention & (1 << heads) - 1, self.ffn & (1 << tiles) - 1)

    def with_share(self, share: NodeShare) -> "HeldUnits":
        """These and those of `share`."""
        attention, ffn = share.attention, share.ffn
        more = HeldUnits.of([(attention.start, attention.stop)], [(ffn.start, ffn.stop)])
        return HeldUnits(self.attention | more.attention, self.ffn | more.ffn)


def _bits(intervals: Iterable[tuple[int, int]]) -> int:
    bits = 0
    for start, stop in intervals:
        stop = min(stop, MOST_UNITS)
        if start < stop:
            bits |= (1 << stop) - (1 << start)
    return bits


def _intervals(bits: int) -> Iterator[tuple[int, int]]:
    while bits:
        start = _lowest(bits)
        stop = _lowest(~(bits >> start)) + start
        yield start, stop
        bits &= -1 << stop


def _lowest(bits: int) -> int:
    """The lowest bit that is set."""
    return (bits & -bits).bit_length() - 1
