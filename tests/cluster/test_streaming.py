from collections.abc import Callable

import pytest

from tests.cluster.packs import Packs, References, split
from tests.fakes.cluster import InProcessCluster
from tpiedge.engine.steps import StepLimits
from tpiedge.memory.residency import smallest_ring
from tpiedge.memory.sweep import Placement, Sweep, place

NAMES = ["llama-gqa-odd", "qwen2-tied", "qwen3", "mistral-sliding"]


def smallest(sweep: Sweep) -> Placement:
    return Placement(smallest_ring(sweep.sizes, frozenset()), frozenset())


def part_of(part: float) -> Callable[[Sweep], Placement]:
    def placement(sweep: Sweep) -> Placement:
        least = smallest_ring(sweep.sizes, frozenset())
        found = place(sweep.sizes, max(least, round(part * sweep.nbytes)))
        assert isinstance(found, Placement)
        return found

    return placement


def only_the_head_streams(sweep: Sweep) -> Placement:
    pinned = {
        number
        for block, first in sweep.first_piece.items()
        if block not in sweep.head_tiles
        for number in range(first, first + len(sweep.blocks[block]))
    }
    return Placement(smallest_ring(sweep.sizes, pinned), frozenset(pinned))


PLACEMENTS = {
    "smallest": smallest,
    "a third": part_of(0.34),
    "two thirds": part_of(0.67),
    "nearly all": part_of(0.97),
    "all": part_of(1.0),
    "only the head streams": only_the_head_streams,
}


#: Every two of the three, not all three.
TRIED = [
    (name, placement, shares)
    for i, name in enumerate(NAMES)
    for j, placement in enumerate(PLACEMENTS)
    for k, shares in enumerate(["1", "2,1", "1,0:1,3"])
    if (i + j + k) % 3 == 0
]


@pytest.mark.parametrize(("name", "placement", "shares"), TRIED)
def test_tokens_are_the_same_whatever_fits(
    name: str, placement: str, shares: str, references: References, packs: Packs
) -> None:
    reference = references(name)
    limits = StepLimits(7, 3)  # steps without a head end a sweep early
    with InProcessCluster(
        packs(reference), split(reference, shares), limits=limits, placement=PLACEMENTS[placement]
    ) as cluster:
        assert tuple(cluster.greedy(reference.prompt_ids, 10)) == reference.greedy_ids[:10]
