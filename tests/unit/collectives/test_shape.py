"""Who sends to whom: tables of trees, and laws for any size."""

from itertools import chain
from typing import get_args

import pytest

from tpiedge.collectives.shape import phases, tree_children, tree_parent
from tpiedge.errors import InternalError
from tpiedge.wire.fields import CollectiveName

SIZES = range(1, 40)


@pytest.mark.parametrize(
    ("size", "tree"),
    [
        (1, {}),
        (2, {0: (1,)}),
        (3, {0: (1,), 1: (2,)}),  # figure 7 of the paper: worker 1 by way of worker 2
        (4, {0: (1,), 1: (2, 3)}),
        (5, {0: (1, 3), 1: (2,), 3: (4,)}),
        (8, {0: (1, 4), 1: (2, 3), 4: (5, 6, 7)}),
        (10, {0: (1, 4, 7), 1: (2, 3), 4: (5, 6), 7: (8, 9)}),
    ],
)
def test_trees(size, tree):
    found = {rank: children for rank in range(size) if (children := tree_children(rank, size))}
    assert found == tree


@pytest.mark.parametrize("size", SIZES)
def test_a_tree_has_depth_two_and_every_rank_once(size):
    parents = {rank: tree_parent(rank, size) for rank in range(size)}
    assert parents.pop(0) is None
    for rank, parent in parents.items():
        assert rank in tree_children(parent, size)
        assert parent == 0 or parents[parent] == 0
    assert sorted(chain(*(tree_children(rank, size) for rank in range(size)))) == sorted(parents)


@pytest.mark.parametrize("size", SIZES)
def test_the_ranks_below_a_head_follow_it_so_that_a_sum_is_in_their_order(size):
    order = [0]
    for head in tree_children(0, size):
        order += [head, *tree_children(head, size)]
    assert order == list(range(size))


def test_no_node_of_a_tree_has_many_more_children_than_the_square_root():
    for size in SIZES:
        most = max(len(tree_children(rank, size)) for rank in range(size))
        assert most <= size**0.5 + 1


@pytest.mark.parametrize("rank", [-1, 4])
def test_a_rank_that_is_not_there_is_our_own_mistake(rank):
    with pytest.raises(InternalError, match="among 4 ranks"):
        tree_parent(rank, 4)
    with pytest.raises(InternalError, match="among 4 ranks"):
        tree_children(rank, 4)


@pytest.mark.parametrize(
    ("collective", "messages"), [("star", 14), ("mesh", 56), ("two-shot", 112), ("tree", 14), ("ring", 112)]
)
def test_messages_of_eight_nodes(collective, messages):
    assert sum(len(phase) for phase in phases(collective, 8)) == messages


@pytest.mark.parametrize("collective", get_args(CollectiveName))
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8, 9])
def test_every_node_hears_of_every_other_and_no_message_is_for_its_sender(collective, size):
    """Slices apart: what a message carries includes all that its sender has heard by then."""
    heard = {rank: {rank} for rank in range(size)}
    for phase in phases(collective, size):
        before = {rank: set(known) for rank, known in heard.items()}
        for hop in phase:
            assert hop.source != hop.target
            heard[hop.target] |= before[hop.source]
    assert all(known == set(range(size)) for known in heard.values())
