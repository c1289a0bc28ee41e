"""Units on a disk as bits and as intervals."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpiedge.pack.held import MOST_UNITS, HeldUnits
from tpiedge.pack.share import NodeShare, Share

BITS = st.integers(0, (1 << 200) - 1)


@given(BITS, BITS)
def test_intervals_say_it_all_in_order_and_do_not_touch(attention: int, ffn: int) -> None:
    held = HeldUnits(attention, ffn)
    assert HeldUnits.of(*held.intervals) == held
    for found in held.intervals:
        edges = [edge for interval in found for edge in interval]
        assert edges == sorted(set(edges))


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ([(0, 2), (5, 6)], ((0, 2), (5, 6))),
        ([(0, 4), (2, 3), (4, 5)], ((0, 5),)),
        ([(3, 3), (9, 2)], ()),
        ([(7, 2**32 - 1)], ((7, MOST_UNITS),)),
        ([(2**31, 2**32 - 1)], ()),
    ],
)
def test_whatever_is_said_takes_little_memory(
    said: list[tuple[int, int]], meant: tuple[tuple[int, int], ...]
) -> None:
    assert HeldUnits.of(said, []).intervals == (meant, ())


def test_kv_heads_and_the_middle() -> None:
    held = HeldUnits(0b0010_1100).with_share(NodeShare(Share(4, 6), Share(8, 8)))
    assert held == HeldUnits(0b0011_1100)
    assert (held.kv_heads(2), held.kv_heads(4), held.kv_heads(8)) == (0b110, 0b11, 0b1)
    assert held.within(4, 1) == HeldUnits(0b1100)
    assert (HeldUnits().middle, held.middle, HeldUnits(1, 0b1100).middle) == (None, 4.0, 3.0)
