"""Who is linked with whom: both sides of a link agree."""

from hypothesis import given
from hypothesis import strategies as st

from tpiedge.planner.network import are_linked, connects_to, listens
from tpiedge.wire.fields import CollectiveChoice

CHOICES: tuple[CollectiveChoice, ...] = ("auto", "star", "mesh", "two-shot")


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
