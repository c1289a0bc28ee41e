import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from tests.contract.ranks import TAG, Ranks
from tpiedge.collectives.communicator import Tag
from tpiedge.collectives.summation import LARGEST
from tpiedge.errors import InternalError

HIDDEN = 96
# Rows that groups fill and rows that they do not, fewer units than ranks, no rows, more than libzmq sends in one go.
SHAPES = [(0, 96), (1, 1), (1, 192), (3, 96), (7, 33), (700, 96)]
WIDTHS = {
    "narrow": lambda _: False,
    "wide": lambda _: True,
    "first wide": lambda rank: rank == 0,
    "second wide": lambda rank: rank == 1,
    "mixed": lambda rank: rank % 2 == 0,
}
"""Whether a rank's part is wide."""
Width = Callable[[int], bool]


def whole(rank: int, wide: bool, size: int, shape: tuple[int, int] = (3, HIDDEN)) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rank)
    largest = LARGEST if wide else (2**31 - 1) // size
    made = torch.randint(-largest, largest + 1, shape, generator=generator)
    if made.numel():
        made[0, 0], made[-1, -1] = largest, -largest
    return made if wide else made.to(torch.int32)


def parts(size: int, width: Width, shape: tuple[int, int] = (3, HIDDEN)) -> list[torch.Tensor]:
    return [whole(rank, width(rank), size, shape) for rank in range(size)]


def check_sum(results: Sequence[torch.Tensor], given: Sequence[torch.Tensor | None]) -> None:
    contributed = [one for one in given if one is not None]
    summed = [sum(values) for values in zip(*(one.flatten().tolist() for one in contributed), strict=True)]
    wide = any(one.dtype == torch.int64 for one in contributed)
    for result in results:
        assert result.flatten().tolist() == (summed if contributed else [0] * result.numel())
        assert not result.numel() or result.dtype == (torch.int64 if wide else torch.int32)


def reduce(ranks: Ranks, given: Sequence[torch.Tensor], block: int = 0) -> list[torch.Tensor]:
    tag = Tag(1, block, 0)
    return ranks.run(lambda one: one.all_reduce(given[one.rank].clone(), tag))


def test_integer_all_reduces_are_exact(ranks: Ranks) -> None:
    for block, (shape, width) in enumerate(itertools.product(SHAPES, WIDTHS.values())):
        given = parts(ranks.size, width, shape)
        results = reduce(ranks, given, block)
        check_sum(results, given)
        assert all(result.shape == shape for result in results)


@pytest.mark.parametrize("wire", ["bf16", "int8"])
def test_integer_all_reduce_refuses_a_rounding_wire_format(network: Any, wire: str) -> None:
    ranks = Ranks(network, "mesh", 2, wire=wire).begun()
    for take in (ranks.groups[0].all_reduce, ranks.groups[1].begin_all_reduce):
        with pytest.raises(InternalError, match=f"not rounded to {wire}"):
            take(whole(0, False, 2), TAG)
