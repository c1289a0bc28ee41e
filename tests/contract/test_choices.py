"""The digest of chosen experts is part of the place of a summand: nodes that disagree end the step."""

from typing import Any

import pytest
import torch

from tests.contract.ranks import HUB, Ranks, each_link, part
from tpiedge.collectives.communicator import Tag
from tpiedge.errors import Misconduct, PeerLost

SIZE = 3


def outcomes(ranks: Ranks, choices: list[int], block: int = 0) -> list[Any]:
    def work(one: Any) -> Any:
        own = choices[one.rank]
        return one.all_reduce(part(one.rank), Tag(1, block, 0, own), contributes=own > 0)

    return ranks.outcomes(work)


@pytest.mark.fault("W11", "a node that chooses other experts than the others ends the step and is named")
@each_link
def test_nodes_that_choose_other_experts_end_the_step(network: Any, way: str) -> None:
    ranks = Ranks(network, way, SIZE).begun()
    same = outcomes(ranks, [7, 7, 7])  # over sockets by native calls
    assert all(torch.equal(found, same[0]) for found in same)
    found = outcomes(ranks, [7, 7, 8], block=1)
    assert all(isinstance(one, Misconduct | PeerLost) for one in found), (
        "a rank added what does not go together"
    )
    complaints = {str(one) for one in found if isinstance(one, Misconduct)}
    assert complaints
    assert all("node 2" in words and "step 1, block 1, chunk 0" in words for words in complaints)
    if way in (HUB, "star"):
        (words,) = complaints
        assert words.startswith("node 2 chose other experts than node 0 in step 1, block 1, chunk 0: install")


@pytest.mark.parametrize("silent", range(SIZE))
@each_link
def test_node_that_chooses_nothing_agrees_with_others_that_agree(network: Any, way: str, silent: int) -> None:
    ranks = Ranks(network, way, SIZE).begun()
    agreed = outcomes(ranks, [0 if rank == silent else 7 for rank in range(SIZE)])
    assert all(torch.equal(found, agreed[0]) for found in agreed)
    differing = outcomes(ranks, [0 if rank == silent else 7 + rank for rank in range(SIZE)], block=1)
    assert all(isinstance(found, Misconduct | PeerLost) for found in differing)
    first, second = (rank for rank in range(SIZE) if rank != silent)
    words = {str(found).partition(" in step")[0] for found in differing if isinstance(found, Misconduct)}
    pair = (
        f"node {second} chose other experts than node {first}",
        f"node {first} chose other experts than node {second}",
    )
    assert words
    assert words.issubset(pair)
