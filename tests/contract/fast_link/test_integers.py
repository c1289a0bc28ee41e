"""All ranks sum integers in one native call; a wide part among narrow ones is Python's."""

from typing import Any

import pytest
import torch

from tests.contract.fast_link.cluster import SHAPE, WAIT_S, Cluster, every_way, needs_native
from tpiedge.collectives.summation import LARGEST
from tpiedge.transport.native_reducer import DONE

pytestmark = needs_native


def whole(rank: int, block: int = 0, wide: bool = False) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * block + rank)
    largest = LARGEST if wide else (2**31 - 1) // 5
    made = torch.randint(-largest, largest + 1, SHAPE, generator=generator)
    return made if wide else made.to(torch.int32)


def total(given: list[torch.Tensor]) -> torch.Tensor:
    wide = any(one.dtype == torch.int64 for one in given)
    summed = torch.stack([one.to(torch.int64) for one in given]).sum(0)
    return summed if wide else summed.to(torch.int32)


def reduce(cluster: Cluster, given: list[torch.Tensor], block: int) -> None:
    expected = total(given)
    futures = [cluster.start(rank, block, own=one.clone()) for rank, one in enumerate(given)]
    for future in futures:
        result = future.result(WAIT_S)
        assert result.dtype == expected.dtype
        assert torch.equal(result, expected)


@every_way
def test_the_steady_state_is_one_call(make: Any, way: str, size: int) -> None:
    cluster = make(way, size)
    for block in range(30):
        reduce(cluster, [whole(rank, block) for rank in range(size)], block)
    for rank in range(size):
        assert cluster.outcomes(rank).count(DONE) > 10


@pytest.mark.parametrize(("way", "left_off"), [("star", 0), ("mesh", 3)])
def test_a_wide_part_in_the_middle_of_a_call(make: Any, way: str, left_off: int) -> None:
    """Rank 1's narrow part is in the sum already, and rank 3's comes once rank 0 goes on in Python."""
    cluster = make(way, 4).meet()
    cluster.patient(0)
    given = [whole(rank, 5, rank == 2) for rank in range(4)]
    for rank in (1, 2):
        cluster.send(rank, 0, 5, given=given[rank])
    waiting = cluster.start(0, 5, own=given[0].clone())
    assert cluster.outcome(0) == left_off
    cluster.send(3, 0, 5, given=given[3])
    assert torch.equal(waiting.result(WAIT_S), total(given))
