"""The order of ranks in which disks lack the fewest bytes: laws over random clusters, and orders worked out by hand."""

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpiedge.pack.held import HeldUnits
from tpiedge.pack.share import NodeShare, Share
from tpiedge.planner.arrangement import Arrangement, Part
from tpiedge.planner.needs import ModelFacts, NodeFacts
from tpiedge.planner.partition import LayerShape, ShareWeight, partition
from tpiedge.units import GIB

TOKENS = 64
NODE = NodeFacts(1e9, 4 * GIB)


def model(heads: int = 8, kv_heads: int = 4, tiles: int = 16, last: int = 300) -> ModelFacts:
    """Of one layer; the last tile has matrices of `last` bytes, the others of 300."""
    shape = LayerShape(heads, kv_heads, tiles)
    return ModelFacts(shape, 1, (100, 100), (100, 100), (300,) * 3, (last,) * 3, 0, 0, 16, 16)


MODEL = model()


def share(attention: tuple[int, int], ffn: tuple[int, int]) -> NodeShare:
    return NodeShare(Share(*attention), Share(*ffn))


def parts(weights: list[float], held: list[HeldUnits], facts: ModelFacts = MODEL) -> list[Part]:
    """With shares by weights."""
    found = partition(facts.shape, [ShareWeight(weight, weight) for weight in weights])
    return [Part(NODE, one, here) for one, here in zip(found, held, strict=True)]


def of(*shares: NodeShare) -> HeldUnits:
    held = HeldUnits()
    for one in shares:
        held = held.with_share(one)
    return held


def nearest(given: list[Part], facts: ModelFacts = MODEL) -> tuple[tuple[int, ...], int]:
    """(order, bytes that are lacking)"""
    line = Arrangement(facts, TOKENS, given)
    order = line.nearest()
    return order, line.lacking(order)


def test_the_third_comes_between_the_two_that_are_there() -> None:
    """Of halves two thirds remain: the worker keeps the end of what it had."""
    ann = of(share((4, 8), (8, 16)))
    given = parts([1, 1, 2], [HeldUnits(), ann, HeldUnits()])
    assert [len(part.share.ffn) for part in given] == [4, 4, 8]
    line = Arrangement(MODEL, TOKENS, given)
    assert (line.nearest(), line.shares((0, 2, 1))[2]) == ((0, 2, 1), share((6, 8), (12, 16)))
    whole = 4 * 200 + 2 * 200 + 8 * 900
    assert line.lacking((0, 2, 1)) == whole, "the newcomer's alone"
    assert line.lacking(line.own) > whole


def test_a_place_that_lies_well_for_all_is_found_though_no_swap_of_two_helps() -> None:
    """Three have each other's intervals, around in a ring."""
    first, second, third = share((2, 4), (4, 8)), share((4, 6), (8, 12)), share((6, 8), (12, 16))
    given = parts([1, 1, 1, 1], [HeldUnits(), of(second), of(third), of(first)])
    assert nearest(given) == ((0, 3, 1, 2), 0)


def test_the_first_of_equally_good_orders_is_the_one_that_was_given() -> None:
    everything = of(share((0, 8), (0, 16)))
    line = Arrangement(MODEL, TOKENS, parts([1, 1, 1], [HeldUnits(), everything, everything]))
    assert line.nearest([(0, 2, 1)]) == (0, 2, 1)
    assert line.nearest([(0, 1, 2), (0, 2, 1)]) == (0, 1, 2)
    assert Arrangement(MODEL, TOKENS, parts([1, 1, 1], [HeldUnits()] * 3)).nearest() == (0, 1, 2)


def test_what_is_there_twice_is_counted_once_and_kv_heads_by_their_query_heads() -> None:
    one = of(share((0, 1), (0, 0)))
    line = Arrangement(
        MODEL, TOKENS, [Part(NODE, share((0, 0), (0, 0))), Part(NODE, share((0, 8), (0, 16)), one)]
    )
    assert line.lacking((0, 1)) == 7 * 200 + 3 * 200 + 16 * 900


@pytest.mark.parametrize(("speed", "order"), [(0.5, (0, 1, 2)), (5.0, (0, 2, 1))])
def test_a_place_without_the_short_last_tile_is_for_those_who_are_fast_enough(
    speed: float, order: tuple[int, ...]
) -> None:
    facts = model(heads=4, kv_heads=2, tiles=4, last=30)
    given = [
        Part(NodeFacts(100.0), share((0, 4), (0, 1))),
        Part(NodeFacts(1.6), share((4, 4), (1, 3))),
        Part(NodeFacts(speed), share((4, 4), (3, 4)), of(share((4, 4), (1, 2)))),
    ]
    line = Arrangement(facts, TOKENS, given)
    assert line.nearest() == order
    assert (line.needs((0, 2, 1)) is not None) == (order == (0, 2, 1))


@pytest.mark.parametrize(("more", "order"), [(0, (0, 1, 2)), (1 << 20, (0, 2, 1))])
def test_a_place_with_more_kv_heads_is_for_those_with_the_memory(more: int, order: tuple[int, ...]) -> None:
    """Two query heads in the middle use both KV heads, the last two one."""
    facts = model(heads=4, kv_heads=2, tiles=4)
    shares = [share((0, 1), (0, 4)), share((1, 2), (4, 4)), share((2, 4), (4, 4))]
    (*_, need) = Arrangement(facts, TOKENS, [Part(NODE, one) for one in shares]).needs((0, 1, 2)) or []
    last = Part(NodeFacts(1e9, need.total_bytes + more), shares[2], of(share((1, 3), (4, 4))))
    line = Arrangement(facts, TOKENS, [*(Part(NODE, one) for one in shares[:2]), last])
    assert line.nearest() == order
    assert (line.needs((0, 2, 1)) is not None) == (order == (0, 2, 1))


@st.composite
def clusters(draw: st.DrawFn) -> tuple[ModelFacts, list[Part]]:
    """Machines with parts of a plan, who hold parts of other plans."""
    kv_heads = draw(st.integers(1, 8))
    facts = model(
        kv_heads * draw(st.integers(1, 4)), kv_heads, draw(st.integers(4, 40)), draw(st.integers(1, 300))
    )
    count = draw(st.integers(1, min(6, facts.shape.heads)))
    weight = st.floats(0.2, 5.0)
    weights = draw(st.lists(weight, min_size=count, max_size=count))
    held = []
    for _ in range(count):
        others = draw(st.lists(st.lists(weight, min_size=2, max_size=6), max_size=2))
        plans = [partition(facts.shape, [ShareWeight(one, one) for one in other]) for other in others]
        held.append(of(*(draw(st.sampled_from(plan)) for plan in plans)))
    speeds = draw(st.lists(st.floats(1.0, 5.0), min_size=count, max_size=count))
    given = parts(weights, held, facts)
    return facts, [
        Part(NodeFacts(speed, 4 * GIB), one.share, one.held) for speed, one in zip(speeds, given, strict=True)
    ]


@given(clusters(), st.randoms())
def test_it_is_no_slower_lacks_no_more_and_gives_each_its_units_once(cluster, random) -> None:
    facts, given = cluster
    line = Arrangement(facts, TOKENS, given)
    tried = (0, *random.sample(line.own[1:], len(given) - 1))
    order = line.nearest([tried])
    assert sorted(order) == list(line.own)
    assert order[0] == 0
    assert line.lacking(order) <= min(line.lacking(line.own), line.lacking(tried))
    assert line.seconds(order) <= 1.05 * line.seconds(line.own)
    assert len(line.needs(order) or []) == len(given)
    shares = line.shares(order)
    for kind, units in (("attention", facts.shape.heads), ("ffn", facts.shape.ffn_tiles)):
        found = [getattr(one, kind) for one in shares]
        assert [one.start for one in found] == [0, *(one.stop for one in found[:-1])]
        assert found[-1].stop == units
        sizes = [len(getattr(given[rank].share, kind)) for rank in order]
        assert [len(one) for one in found] == sizes, "each machine keeps its amount"
    assert Arrangement(facts, TOKENS, given).nearest([tried]) == order, "the same again"


@given(clusters())
def test_of_few_machines_it_is_the_best_of_all_orders(cluster) -> None:
    facts, given = cluster
    line = Arrangement(facts, TOKENS, given)
    every = [(0, *rest) for rest in permutations(line.own[1:])]
    assert line.lacking(line.nearest()) == min(map(line.lacking, every))


@given(clusters())
def test_what_is_fetched_for_an_order_leaves_it_the_best(cluster) -> None:
    """While machines fetch, and once all have, no other order takes its place."""
    facts, given = cluster
    line = Arrangement(facts, TOKENS, given)
    order = line.nearest()
    shares = dict(zip(order, line.shares(order), strict=True))
    for fetched in line.own:
        given[fetched] = Part(
            given[fetched].node, given[fetched].share, given[fetched].held.with_share(shares[fetched])
        )
        now = Arrangement(facts, TOKENS, given)
        assert now.lacking(now.nearest([order])) <= now.lacking(order)
    assert now.nearest([order]) == order
    assert now.lacking(order) == 0


@pytest.mark.parametrize("count", [128])
def test_a_hundred_machines_are_ordered_without_all_orders(count: int) -> None:
    facts = model(count, count, 4 * count)
    old = parts([1.0] * (count - 1), [HeldUnits()] * (count - 1), facts)
    held = [HeldUnits(), *(of(part.share) for part in old[1:]), HeldUnits()]
    line = Arrangement(facts, TOKENS, parts([1.0] * count, held, facts))
    assert line.lacking(line.nearest()) < 0.7 * line.lacking(line.own)
