"""A value that is not finite ends the step at rank 0, which names the node where it can; nobody else accuses."""

from typing import Any

import pytest
import torch

from tests.contract.ranks import HUB, TAG, WAYS, Ranks, same
from tpiedge.errors import Misconduct, PeerLost, ProtocolError

# Rank 0 has the parts of all; or a sum of several.
SEES_ALL = [HUB, "star", "mesh"]
SIZE = 4


def outcomes(
    ranks: Ranks, values: list[float | None], at: tuple[slice, slice] = (slice(None), slice(None))
) -> list[Any]:
    """Every rank's part is ones, but `values` at `at`; None: no share."""

    def work(one: Any) -> torch.Tensor:
        given = torch.ones(4, 64)
        value = values[one.rank]
        given[at] = 0.0 if value is None else value
        return one.all_reduce(given, TAG, contributes=value is not None)

    return ranks.outcomes(work)


def complaint(results: list[Any]) -> ProtocolError:
    """Rank 0's; the others have a sum or learn of the end."""
    assert isinstance(results[0], ProtocolError)
    for other in results[1:]:
        assert isinstance(other, torch.Tensor) or (isinstance(other, PeerLost) and other.rank == 0), other
    return results[0]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("guilty", range(SIZE))
@pytest.mark.parametrize("way", [*SEES_ALL, "two-shot"])
def test_it_is_blamed_on_its_sender(network: Any, way: str, guilty: int, value: float) -> None:
    """In a two-shot as well, where it is in what rank 0 adds up."""
    ranks = Ranks(network, way, SIZE).begun()
    error = complaint(outcomes(ranks, [value if rank == guilty else 1.0 for rank in range(SIZE)]))
    assert f"node {guilty} contributed a value that is not finite to the all-reduce" in str(error)
    assert isinstance(error, Misconduct)
    assert error.rank == guilty


LAST = (slice(3, 4), slice(63, 64))
"""Of the slice that rank 3 adds up in a two-shot, and rank 2 in a ring."""


@pytest.mark.parametrize(
    ("way", "guilty", "words"),
    [
        *(("two-shot", guilty, "in the slice that node 3 added up") for guilty in range(SIZE)),
        *(("ring", guilty, "in the slice that node 2 added up") for guilty in range(SIZE)),
        *(
            ("tree", guilty, "in the part that node 1 added up for itself and 2 others")
            for guilty in range(1, 4)
        ),
    ],
)
def test_in_a_sum_of_several_nobody_is_blamed(network: Any, way: str, guilty: int, words: str) -> None:
    ranks = Ranks(network, way, SIZE).begun()
    values = [float("nan") if rank == guilty else 1.0 for rank in range(SIZE)]
    error = complaint(outcomes(ranks, values, LAST))
    assert words in str(error)
    assert "--collective star" in str(error)
    assert not isinstance(error, Misconduct)


@pytest.mark.parametrize(("size", "guilty"), [(4, 0), (2, 1), (2, 0)])
def test_the_root_of_a_tree_knows_its_own_part_and_that_of_a_lone_child(
    network: Any, size: int, guilty: int
) -> None:
    ranks = Ranks(network, "tree", size).begun()
    error = complaint(outcomes(ranks, [float("nan") if rank == guilty else 1.0 for rank in range(size)]))
    assert isinstance(error, Misconduct)
    assert error.rank == guilty


@pytest.mark.parametrize("way", SEES_ALL)
def test_where_all_are_guilty_it_is_what_rank_0_sent_before(network: Any, way: str) -> None:
    ranks = Ranks(network, way, SIZE).begun()
    error = complaint(outcomes(ranks, [float("nan"), None, float("nan"), float("nan")]))
    assert "every node contributed a value that is not finite" in str(error)
    assert not isinstance(error, Misconduct)


@pytest.mark.parametrize("way", WAYS)
def test_a_sum_beyond_f32_is_an_error_and_a_large_one_is_not(network: Any, way: str) -> None:
    ranks = Ranks(network, way, SIZE).begun()
    fine = outcomes(ranks, [3e38, None, -1e38, 1e37])
    assert same(fine)
    assert torch.isfinite(fine[0]).all()
    error = complaint(outcomes(Ranks(network, way, SIZE).begun(), [3e38, None, 3e38, 3e38]))
    assert not isinstance(error, Misconduct)
    assert "overflows" in str(error) or "is not finite in the" in str(error)


@pytest.mark.parametrize("wire", ["bf16", "int8"])
@pytest.mark.parametrize("way", WAYS)
def test_rounding_hides_nothing(network: Any, way: str, wire: str) -> None:
    ranks = Ranks(network, way, SIZE, wire=wire).begun()
    values: list[float | None] = [1.0, 1.0, float("inf"), 1.0]
    assert "finite" in str(complaint(outcomes(ranks, values, LAST)))
