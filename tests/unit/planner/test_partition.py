from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpiedge.errors import UserError
from tpiedge.planner.needs import LayerShape
from tpiedge.planner.solve import ShareWeight, apportion, apportion_within, parse_shares, partition


def both(*weights: float) -> list[ShareWeight]:
    return [ShareWeight(weight, weight) for weight in weights]


@pytest.mark.parametrize(
    ("weights", "units", "expected"),
    [
        ([1, 1], 4, [2, 2]),
        ([1, 1, 1], 4, [2, 1, 1]),
        ([3, 1], 8, [6, 2]),
        ([3, 1, 2], 44, [22, 7, 15]),
        ([0, 1], 5, [0, 5]),
        ([1, 0, 1], 3, [2, 0, 1]),
        ([1e-3, 1000], 7, [0, 7]),
        ([1] * 5, 3, [1, 1, 1, 0, 0]),
    ],
)
def test_apportion_gives_expected_unit_counts(weights: list[float], units: int, expected: list[int]) -> None:
    assert apportion(weights, units) == expected


weight_lists = st.lists(st.floats(0, 1e6), min_size=1, max_size=12).filter(lambda w: sum(w) > 1e-3)


@given(weights=weight_lists, kv_heads=st.integers(1, 16), group=st.integers(1, 8), tiles=st.integers(1, 300))
def test_every_unit_is_covered_once(weights: list[float], kv_heads: int, group: int, tiles: int) -> None:
    shape = LayerShape(kv_heads * group, kv_heads, tiles, 1)
    shares = partition(shape, both(*weights))
    for part, total in (("attention", shape.heads), ("ffn", shape.ffn_tiles)):
        intervals = [share.along(part) for share in shares]
        assert intervals[0].start == 0
        assert intervals[-1].stop == total
        assert all(a.stop == b.start for a, b in pairwise(intervals))
    takers = sum(weight > 0 for weight in weights)
    if takers <= kv_heads:
        assert all(share.along("attention").start % group == 0 for share in shares)
    assert all(
        not share.along("attention") and not share.along("ffn")
        for share, w in zip(shares, weights, strict=True)
        if w == 0
    )


@pytest.mark.parametrize(
    ("text", "nodes", "complaint"),
    [
        ("1,2", 3, "gives 2 weights for 3 nodes"),
        ("1,2", 1, "gives 2 weights for 1 node:"),
        ("1", 2, "gives 1 weight for 2 nodes"),
        ("", 1, "is not a weight"),
        ("1,-2", 2, "out of range"),
        ("0,0", 2, "to nobody"),
        ("0:1,0:1", 2, "attention to nobody"),
        ("1:0,1:0", 2, "FFN to nobody"),
        ("a,b", 2, "is not a weight"),
        ("1:2:3,1", 2, "is not a weight"),
        ("nan,1", 2, "out of range"),
        ("inf,1", 2, "out of range"),
    ],
)
def test_bad_shares_are_refused_in_words(text: str, nodes: int, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        parse_shares(text, nodes)


@given(
    weights=st.lists(st.floats(0, 1e9), min_size=1, max_size=6).filter(any),
    caps=st.lists(st.integers(0, 50), min_size=6, max_size=6),
    units=st.integers(1, 100),
)
def test_apportioning_within_caps_fails_only_if_units_are_left(weights, caps, units):
    caps = caps[: len(weights)]
    counts = apportion_within(weights, units, lambda index, count: min(count, caps[index]))
    room = sum(cap for weight, cap in zip(weights, caps, strict=True) if weight > 0)
    assert (counts is None) == (room < units)
    if counts is not None:
        assert sum(counts) == units
        assert all(count <= cap for count, cap in zip(counts, caps, strict=True))
