"""Parts that travel rounded: every rank goes on with the same bits, which are near the sum."""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from tests.contract.networks import linked
from tests.contract.ranks import HUB, LINKS, TAG, Ranks, each_link, part, parts, same
from tpiedge.collectives.communicator import Communicator, Tag
from tpiedge.wire.tensors import INT8_GROUP

SIZE = 4
ROUNDINGS = {HUB: 2, "star": 2, "mesh": 2, "two-shot": 2, "tree": 3, "ring": SIZE}
"""How often a value of the sum is rounded at most."""
BYTES = {"bf16": 0.55, "int8": 0.35}
"""Bytes as a part of those that f32 takes, with the headers."""


@pytest.fixture(params=itertools.product(LINKS, ("bf16", "int8")), ids=str)
def ranks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ranks]:
    (kind, way), wire = request.param
    with linked(kind, monkeypatch) as network:
        yield Ranks(network, way, SIZE, wire=wire).begun()


def step_of_rounding(wire: str, magnitude: torch.Tensor) -> torch.Tensor:
    """The largest error of one rounding of values up to `magnitude`."""
    if wire == "bf16":
        return magnitude * 2.0**-8
    bound = torch.empty_like(magnitude)
    for first in range(0, magnitude.shape[1], INT8_GROUP):
        group = magnitude[:, first : first + INT8_GROUP]
        bound[:, first : first + INT8_GROUP] = group.amax(1, keepdim=True) / 127 / 2
    return bound


def test_all_ranks_have_the_same_bits_near_the_sum(ranks: Ranks) -> None:
    for block, shape in enumerate([(1, 256), (3, 192), (5, 96), (2, 33), (0, 64), (100, 640)]):
        results = ranks.reduce(block, tokens=shape[0], hidden=shape[1])
        assert same(results)
        given = [one.double() for one in parts(SIZE, *shape)]
        magnitude = torch.stack(given).abs().sum(0)
        error = (results[0] - torch.stack(given).sum(0)).abs()
        assert (error <= 1.01 * ROUNDINGS[ranks.name] * step_of_rounding(ranks.wire, magnitude)).all()
        assert not shape[0] or error.max() > 1e-6 * magnitude.max()  # it was rounded indeed


def test_what_the_precision_holds_is_exact(ranks: Ranks) -> None:
    """Whole numbers that use all of int8, and sums that are as many times as large."""
    whole = torch.from_numpy(np.random.default_rng(3).integers(-60, 61, (3, 192)).astype(np.float32))
    whole[:, ::INT8_GROUP] = 127 if ranks.wire == "int8" else 64
    for total in ranks.run(lambda one: one.all_reduce(whole.clone(), TAG)):
        assert torch.equal(total, whole * SIZE)


def test_a_lone_share_and_none(ranks: Ranks) -> None:
    def work(one: Communicator) -> tuple[torch.Tensor, torch.Tensor]:
        nothing = one.all_reduce(part(one.rank), TAG, contributes=False)
        return nothing, one.all_reduce(part(one.rank), Tag(1, 1, 0), contributes=one.rank == 2)

    results = ranks.run(work)
    assert all(torch.equal(nothing, torch.zeros(3, 96)) for nothing, _ in results)
    assert same([lone for _, lone in results])
    error = (results[0][1] - part(2)).abs()
    assert (error <= 1.01 * ROUNDINGS[ranks.name] * step_of_rounding(ranks.wire, part(2).abs())).all()


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
    """A sum has the same bits whichever rank adds it up, and whichever part does not travel."""
    for tokens, hidden in [(1, 256), (5, 192), (3, 100), (2, 33)]:
        results = [
            Ranks(network, way, size, wire=wire).begun().reduce(tokens=tokens, hidden=hidden)
            for way in (HUB, "star", "mesh", "two-shot")
        ]
        assert same([one for of_way in results for one in of_way])


def test_a_row_of_a_ring_is_the_same_with_others_in_f32_too(network: Any) -> None:
    """Its order of summation depends on the column alone."""
    ranks = Ranks(network, "ring", SIZE).begun()
    together = ranks.reduce(0, tokens=3, hidden=512)[0]
    for row in range(3):

        def one_row(one: Communicator, row: int = row) -> torch.Tensor:
            return one.all_reduce(part(one.rank, 3, 512)[row : row + 1].contiguous(), Tag(1, 1 + row, 0))

        assert torch.equal(ranks.run(one_row)[0][0], together[row])


def test_several_under_way(ranks: Ranks) -> None:
    def work(one: Communicator) -> list[torch.Tensor]:
        for block in range(3):
            one.begin_all_reduce(part(one.rank) * 2**block, Tag(1, block, 0))
        return [one.finish_all_reduce(Tag(1, block, 0)) for block in range(3)]

    per_rank = ranks.run(work)
    for block in range(3):
        # Powers of two change no rounding.
        assert same([results[block] for results in per_rank])
        assert torch.equal(per_rank[0][block], per_rank[0][0] * 2**block)


@each_link
def test_fewer_bytes_travel(network: Any, way: str) -> None:
    sent = {}
    for wire in ("f32", *BYTES):
        ranks = Ranks(network, way, 2, wire=wire).begun()
        before = ranks.bare[1].bytes_sent
        ranks.reduce(tokens=8, hidden=512)
        sent[wire] = ranks.bare[1].bytes_sent - before
    assert sent["f32"] >= 4 * 8 * 512
    assert all(sent[wire] < share * sent["f32"] for wire, share in BYTES.items())
