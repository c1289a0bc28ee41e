import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpiedge.pack.share import Share
from tpiedge.planner.kv_transfer import KVHolder, plan_moves, transfer_s

NAMES = ["", "ann", "bob", "cat", "dan", "eve"]


@st.composite
def plans(draw: st.DrawFn, heads: int) -> list[KVHolder]:
    """Intervals in rank order that cover all heads: some may be empty, and with GQA neighbours may share one."""
    workers = draw(st.lists(st.sampled_from(NAMES[1:]), unique=True, max_size=5))
    size = len(workers) + 1
    cuts = sorted(draw(st.lists(st.integers(0, heads), min_size=size - 1, max_size=size - 1)))
    bounds = [0, *cuts, heads]
    shares = []
    for start, stop in itertools.pairwise(bounds):
        more = draw(st.booleans()) and start < stop < heads
        shares.append(Share(start, stop + more) if start < stop else Share(0, 0))
    return [KVHolder(name, share) for name, share in zip(["", *workers], shares, strict=True)]


def units(share: Share) -> set[int]:
    return set(range(share.start, share.stop))


def pairs(heads: int) -> st.SearchStrategy[tuple[list[KVHolder], list[KVHolder]]]:
    return st.tuples(plans(heads), plans(heads))


@given(st.integers(1, 12).flatmap(pairs))
def test_planned_moves_give_each_node_its_heads_once(both: tuple[list[KVHolder], list[KVHolder]]) -> None:
    old, new = both
    found = plan_moves(old, new)
    parked = {one.machine: units(one.heads) for one in old}
    at_0 = parked[""] | {head for _, head in found.gathered}
    for rank, one in enumerate(new):
        came = [head for to, head in found.scattered if to == rank]
        here = parked.get(one.machine, set()) if rank else at_0
        assert len(came) == len(set(came))
        assert not set(came) & parked.get(one.machine, set())
        assert units(one.heads) <= set(came) | here
        assert set(came) <= at_0
    for rank, head in found.gathered:
        assert rank, "rank 0 has what it has"
        assert head in units(old[rank].heads)
        assert head not in units(old[0].heads)
    assert len({head for _, head in found.gathered}) == len(found.gathered)


def holders(*plan: tuple[str, int, int], link: float = 1e6) -> Sequence[KVHolder]:
    return [KVHolder(name, Share(start, stop), link if name else None) for name, start, stop in plan]


@pytest.mark.parametrize(
    ("old", "new", "seconds"),
    [
        # A head goes to a machine that joins, over one link; the master's writes four heads and reads three.
        ([("", 0, 4)], [("", 0, 3), ("ann", 3, 4)], 1.0 + (4 + 3) * 1e6 / 200e6),
        # From ann by the master to bob: two links.
        ([("", 0, 1), ("ann", 1, 2)], [("", 0, 1), ("bob", 1, 2)], 2.0 + (2 + 1) * 1e6 / 200e6),
        ([("", 0, 1), ("ann", 1, 2)], [("", 0, 1), ("ann", 1, 2)], 2 * 1e6 / 200e6),
    ],
)
def test_kv_transfer_time_is_predicted(old, new, seconds):
    before, after = holders(*old), holders(*new)
    assert transfer_s(plan_moves(before, after), before, after, 1e6) == pytest.approx(seconds)
