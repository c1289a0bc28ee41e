"""The borders between neighbours at which disks lack the fewest bytes: laws over random clusters, and one by hand."""

from collections.abc import Iterator
from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.planner.test_arrangement import MODEL, NODE, TOKENS, clusters, model, of, parts, share
from tpiedge.pack.held import HeldUnits
from tpiedge.pack.share import NodeShare, Share
from tpiedge.planner.arrangement import Arrangement, Part
from tpiedge.planner.needs import NodeFacts
from tpiedge.units import GIB


def borders(shares: list[NodeShare]) -> list[tuple[int, int]]:
    """Where each machine but the last ends."""
    return [(one.attention.stop, one.ffn.stop) for one in shares[:-1]]


@pytest.mark.parametrize(
    ("speeds", "moved", "lacking"),
    [
        ((1.0, 1.0, 1.0), [(2, 6), (4, 12)], 2 * 900),
        ((1.0, 1.0, 1.05), [(2, 6), (4, 12)], 2 * 900),
        ((1.0, 1.1, 1.0), [(2, 6), (4, 13)], 900),
        ((1.0, 2.0, 1.0), [(2, 5), (4, 14)], 0),
    ],
)
def test_who_has_the_tiles_of_a_lost_neighbour_gets_them_as_far_as_it_is_fast_enough(
    speeds: tuple[float, ...], moved: list[tuple[int, int]], lacking: int
) -> None:
    """The third has six of sixteen tiles, and the most heads: its time decides. The first has the whole pack."""
    held = [HeldUnits(), of(share((2, 4), (5, 14))), of(share((4, 8), (14, 16)))]
    shares = [share((0, 2), (0, 5)), share((2, 4), (5, 10)), share((4, 8), (10, 16))]
    given = [
        Part(NodeFacts(speed, 4 * GIB), one, disk)
        for speed, one, disk in zip(speeds, shares, held, strict=True)
    ]
    line = Arrangement(MODEL, TOKENS, given)
    found = line.moved(line.own)
    assert (borders(found), line.lacking(line.own, found)) == (moved, lacking)


def test_shares_that_the_user_gave_keep_their_amounts() -> None:
    held = [HeldUnits(), of(share((2, 8), (4, 16)))]
    line = Arrangement(MODEL, TOKENS, parts([1, 1], held), movable=False)
    assert line.moved(line.own) == line.shares(line.own)


def test_where_nothing_is_lacking_borders_stay() -> None:
    line = Arrangement(MODEL, TOKENS, parts([1, 2, 3], [of(share((0, 8), (0, 16)))] * 3))
    assert line.moved(line.own) == line.shares(line.own)


@given(clusters(), st.randoms())
def test_no_step_is_longer_no_more_is_lacking_and_each_unit_is_one_machines(cluster, random) -> None:
    facts, given = cluster
    line = Arrangement(facts, TOKENS, given)
    order = (0, *random.sample(line.own[1:], len(given) - 1))
    if line.needs(order) is None:
        order = line.own
    plain, found = line.shares(order), line.moved(order)
    assert line.lacking(order, found) <= line.lacking(order)
    assert line.seconds(order, found) <= max(line.seconds(line.own), line.seconds(order))
    assert len(line.needs(order, found) or []) == len(given)
    for kind, units in (("attention", facts.shape.heads), ("ffn", facts.shape.ffn_tiles)):
        shares, before = ([getattr(one, kind) for one in some] for some in (found, plain))
        assert [one.start for one in shares] == [0, *(one.stop for one in shares[:-1])]
        assert shares[-1].stop == units
        assert [bool(one) for one in shares] == [bool(one) for one in before], "who takes part"
    group = facts.shape.group_size
    if all(one.attention.start % group == 0 for one in plain):
        assert all(one.attention.start % group == 0 for one in found)
    assert line.moved(order) == found, "the same again"


@given(clusters())
def test_with_what_it_needs_on_disk_a_plan_stays_where_it_was_moved(cluster) -> None:
    facts, given = cluster
    line = Arrangement(facts, TOKENS, given)
    found = line.moved(line.own)
    fetched = [
        Part(one.node, one.share, one.held.with_share(moved)) for one, moved in zip(given, found, strict=True)
    ]
    again = Arrangement(facts, TOKENS, fetched)
    assert again.lacking(again.own, found) == again.lacking(again.own, again.moved(again.own)) == 0


def every_cut(units: int, count: int, low: int = 0) -> Iterator[tuple[int, ...]]:
    """All ways to give each of `count` machines one unit at least: where they end."""
    if count == 1:
        yield (units,)
        return
    for stop in range(low + 1, units):
        for rest in every_cut(units, count - 1, stop):
            yield (stop, *rest)


@given(
    st.lists(st.sampled_from([1.0, 1.3, 2.0, 3.1]), min_size=2, max_size=3),
    st.lists(st.tuples(st.integers(0, 15), st.integers(0, 63)), min_size=3, max_size=3),
    st.sampled_from([2, 4]),
    st.sampled_from([30, 300]),
)
def test_no_borders_are_better(
    speeds: list[float], held: list[tuple[int, int]], kv_heads: int, last: int
) -> None:
    """Of all that make no step longer."""
    facts = model(4, kv_heads, 6, last)
    count = min(len(speeds), kv_heads)
    given = [
        Part(NodeFacts(speed, 4 * GIB), one.share, HeldUnits(heads, tiles))
        for speed, (heads, tiles), one in zip(
            speeds, held, parts([1.0] * count, [HeldUnits()] * count, facts), strict=False
        )
    ]
    line = Arrangement(facts, TOKENS, given)
    limit_s, group = line.seconds(line.own), facts.shape.group_size
    least = line.lacking(line.own)
    for heads, tiles in product(every_cut(kv_heads, count), every_cut(6, count)):
        shares = [
            NodeShare(Share(group * start, group * stop), Share(first, behind))
            for (start, stop), (first, behind) in zip(
                pairwise((0, *heads)), pairwise((0, *tiles)), strict=True
            )
        ]
        if line.seconds(line.own, shares) <= limit_s:
            least = min(least, line.lacking(line.own, shares))
    assert line.lacking(line.own, line.moved(line.own)) == least


@pytest.mark.parametrize(("more", "moved"), [(0, [(4, 8), (6, 12)]), (1 << 20, [(4, 8), (6, 13)])])
def test_memory_is_a_limit_too(more: int, moved: list[tuple[int, int]]) -> None:
    """The second has a tile of the third's on its disk, and the time for it."""
    shares = [share((0, 4), (0, 8)), share((4, 6), (8, 12)), share((6, 8), (12, 16))]
    (_, need, _) = Arrangement(MODEL, TOKENS, [Part(NODE, one) for one in shares]).needs((0, 1, 2)) or []
    second = Part(NodeFacts(1e9, need.total_bytes + more), shares[1], of(share((4, 6), (8, 13))))
    third = Part(NODE, shares[2], of(share((6, 8), (13, 16))))
    line = Arrangement(MODEL, TOKENS, [Part(NODE, shares[0]), second, third])
    assert borders(line.moved(line.own)) == moved
