"""A value that is not finite ends the step; rank 0 names its sender where it can, and no other rank names one.

It can where all ranks got the same bytes. In a mesh of three, one rank may send another something that makes the
other's part not finite.
"""

from typing import Any

import pytest
import torch

from tests.contract.ranks import HUB, Ranks, each_link, same
from tpiedge.errors import Misconduct, PeerLost, ProtocolError

STARS = [HUB, "star"]
SIZE = 4


def outcomes(ranks, values, at=(slice(None), slice(None))):
    def given(rank: int) -> tuple[torch.Tensor, bool]:
        ones, value = torch.ones(4, 64), values[rank]
        ones[at] = 0.0 if value is None else value
        return ones, value is not None

    return ranks.refusals(given)


def complaint(results: list[Any]) -> ProtocolError:
    assert isinstance(results[0], ProtocolError)
    for other in results[1:]:
        assert (
            isinstance(other, torch.Tensor)
            or (isinstance(other, PeerLost) and other.rank == 0)
            or (isinstance(other, ProtocolError) and not isinstance(other, Misconduct))
        ), other
    return results[0]


@pytest.mark.parametrize(
    ("way", "size", "faulty", "value"),
    [
        *((HUB, SIZE, faulty, float("nan")) for faulty in range(SIZE)),
        *(("star", SIZE, 2, value) for value in (float("nan"), float("inf"), -float("inf"))),
        *((way, 2, faulty, float("inf")) for way in ("mesh", "two-shot") for faulty in range(2)),
    ],
)
@pytest.mark.fault("W11", "every collective names the sender of a value that is not finite")
def test_non_finite_value_is_blamed_on_its_sender(
    network: Any, way: str, size: int, faulty: int, value: float
) -> None:
    ranks = Ranks(network, way, size).begun()
    error = complaint(outcomes(ranks, [value if rank == faulty else 1.0 for rank in range(size)]))
    assert f"node {faulty} contributed a value that is not finite to the all-reduce" in str(error)
    assert isinstance(error, Misconduct)
    assert error.rank == faulty


@pytest.mark.parametrize("faulty", range(SIZE))
@pytest.mark.parametrize("way", ["mesh", "two-shot"])
def test_non_finite_value_without_star_blames_no_node(network: Any, way: str, faulty: int) -> None:
    ranks = Ranks(network, way, SIZE).begun()
    values = [float("nan") if rank == faulty else 1.0 for rank in range(SIZE)]
    results = outcomes(ranks, values)
    error = complaint(results)
    assert "is not finite where node 0 adds it up" in str(error)
    assert f"node {faulty} contributed a value that is not finite" in str(error)
    assert "--collective star" in str(error)
    assert not isinstance(error, Misconduct)
    assert not any(isinstance(other, torch.Tensor) for other in results[1:])


LAST = (slice(3, 4), slice(63, 64))
"""An element of the slice that rank 3 adds up in a two-shot."""


@pytest.mark.parametrize("faulty", range(SIZE))
def test_non_finite_two_shot_slice_blames_no_node(network: Any, faulty: int) -> None:
    ranks = Ranks(network, "two-shot", SIZE).begun()
    values = [float("nan") if rank == faulty else 1.0 for rank in range(SIZE)]
    error = complaint(outcomes(ranks, values, LAST))
    assert "in the slice that node 3 added up" in str(error)
    assert "--collective star" in str(error)
    assert not isinstance(error, Misconduct)


@pytest.mark.parametrize("way", STARS)
def test_non_finite_values_of_all_nodes_blame_no_node(network: Any, way: str) -> None:
    ranks = Ranks(network, way, SIZE).begun()
    error = complaint(outcomes(ranks, [float("nan"), None, float("nan"), float("nan")]))
    assert "every node contributed a value that is not finite" in str(error)
    assert not isinstance(error, Misconduct)


@pytest.mark.fault("W5", "numbers of this step are believed if they are finite")
@pytest.mark.fault("W11", "finite numbers are believed, however large; a sum that overflows is an error")
@each_link
def test_f32_overflow_of_a_sum_is_an_error(network: Any, way: str) -> None:
    ranks = Ranks(network, way, SIZE).begun()
    fine = outcomes(ranks, [3e38, None, -1e38, 1e37])
    assert same(fine)
    assert torch.isfinite(fine[0]).all()
    error = complaint(outcomes(Ranks(network, way, SIZE).begun(), [3e38, None, 3e38, 3e38]))
    assert not isinstance(error, Misconduct)
    assert "overflows" in str(error) or "is not finite in the" in str(error)
