import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.contract.networks import linked
from tests.contract.ranks import HUB, LINKS, Ranks, part, parts, same
from tpiedge.collectives.communicator import Communicator, Tag
from tpiedge.wire.fields import INT8_GROUP

SIZE = 4
ROUNDINGS = 2
"""How often a value of the sum is rounded at most."""


@pytest.fixture(params=itertools.product(LINKS, ("bf16", "int8")), ids=str)
def ranks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ranks]:
    (kind, way), wire = request.param
    with linked(kind, monkeypatch) as network:
        yield Ranks(network, way, SIZE, wire=wire).begun()


def step_of_rounding(wire: str, magnitude: torch.Tensor) -> torch.Tensor:
    if wire == "bf16":
        return magnitude * 2.0**-8
    bound = torch.empty_like(magnitude)
    for first in range(0, magnitude.shape[1], INT8_GROUP):
        group = magnitude[:, first : first + INT8_GROUP]
        bound[:, first : first + INT8_GROUP] = group.amax(1, keepdim=True) / 127 / 2
    return bound


def test_rounded_sums_are_identical_on_all_ranks_and_accurate(ranks: Ranks) -> None:
    for block, shape in enumerate([(1, 256), (3, 192), (5, 96), (2, 33), (0, 64), (100, 640)]):
        results = ranks.reduce(block, tokens=shape[0], hidden=shape[1])
        assert same(results)
        given = [one.double() for one in parts(SIZE, *shape)]
        magnitude = torch.stack(given).abs().sum(0)
        error = (results[0] - torch.stack(given).sum(0)).abs()
        assert (error <= 1.01 * ROUNDINGS * step_of_rounding(ranks.wire, magnitude)).all()
        assert not shape[0] or error.max() > 1e-6 * magnitude.max()  # it was rounded indeed


def test_rows_are_rounded_independently(ranks: Ranks) -> None:
    """The sum of a row is the same whatever other rows go with it: a batch changes no answer."""
    together = ranks.reduce(0, tokens=3, hidden=192)[0]

    def one_row(one: Communicator) -> torch.Tensor:
        return one.all_reduce(part(one.rank, 3, 192)[1:2].contiguous(), Tag(1, 1, 0))

    alone = ranks.run(one_row)[0]
    assert torch.equal(alone[0], together[1])


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("wire", ["f32", "bf16", "int8"])
def test_star_mesh_and_two_shot_give_the_same_bits(network: Any, wire: str, size: int) -> None:
    for tokens, hidden in [(1, 256), (5, 192), (3, 100), (2, 33)]:
        results = [
            Ranks(network, way, size, wire=wire).begun().reduce(tokens=tokens, hidden=hidden)
            for way in (HUB, "star", "mesh", "two-shot")
        ]
        assert same([one for of_way in results for one in of_way])
