"""Who is linked with whom: a table, and that both sides of a link agree."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpiedge.planner.linking import are_linked, connects_to, listens
from tpiedge.wire.fields import CollectiveChoice

CHOICES: tuple[CollectiveChoice, ...] = ("auto", "star", "mesh", "two-shot", "tree", "ring")


@pytest.mark.parametrize(
    ("size", "collective", "connections", "listeners"),
    [
        (1, "auto", [[]], []),
        (2, "auto", [[], [0]], [0]),
        (2, "star", [[], [0]], [0]),
        (3, "auto", [[], [0], [0, 1]], [0, 1]),
        (3, "star", [[], [0], [0]], [0]),
        (4, "mesh", [[], [0], [0, 1], [0, 1, 2]], [0, 1, 2]),
        (4, "star", [[], [0], [0], [0]], [0]),
    ],
)
def test_who_connects_to_whom(
    size: int, collective: CollectiveChoice, connections: list[list[int]], listeners: list[int]
) -> None:
    assert [list(connects_to(rank, size, collective)) for rank in range(size)] == connections
    assert [rank for rank in range(size) if listens(rank, size, collective)] == listeners


@given(st.integers(1, 128), st.sampled_from(CHOICES))
def test_those_listen_to_whom_somebody_connects_and_every_pair_has_one_link(
    size: int, collective: CollectiveChoice
) -> None:
    links = [(other, rank) for rank in range(size) for other in connects_to(rank, size, collective)]
    assert len(set(links)) == len(links)
    assert {low for low, _ in links} == {rank for rank in range(size) if listens(rank, size, collective)}
    if are_linked(size, collective):
        assert set(links) == {(low, high) for high in range(size) for low in range(high)}
    else:
        assert set(links) == {(0, rank) for rank in range(1, size)}
