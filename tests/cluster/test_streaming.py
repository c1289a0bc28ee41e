from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.cluster.packs import Packs, References, split
from tests.fakes.cluster import InProcessCluster, greedy_request
from tests.unit.memory.conftest import narrow
from tpiedge.engine.steps import StepLimits
from tpiedge.memory.residency import smallest_ring
from tpiedge.memory.sweep import Placement, Sweep, place
from tpiedge.wire.control import Token

NAMES = ["llama-gqa-odd", "qwen2-tied", "qwen3", "mistral-sliding"]


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
    "smallest": narrow,
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
def test_tokens_are_the_same_for_every_weight_placement(
    name: str, placement: str, shares: str, references: References, packs: Packs
) -> None:
    reference = references(name)
    limits = StepLimits(7, 3)  # steps without a head end a sweep early
    with InProcessCluster(
        packs(reference), split(reference, shares), limits=limits, placement=PLACEMENTS[placement]
    ) as cluster:
        assert tuple(cluster.greedy(reference.prompt_ids, 10)) == reference.greedy_ids[:10]


def tight(part: float) -> Callable[[Sweep], Placement]:
    def placement(sweep: Sweep) -> Placement:
        least = smallest_ring(sweep.sizes, frozenset())
        found = place(sweep.sizes, least + round(part * max(0, sweep.nbytes - least)), window_bytes=least)
        assert isinstance(found, Placement)
        return found

    return placement


def tokens(
    cluster: InProcessCluster, prompt_ids: tuple[int, ...], count: int, *, keep: bool = False
) -> list[int]:
    request = replace(greedy_request(prompt_ids, count), keep_prefix=keep)
    return [event.token for event in cluster.generate(request) if isinstance(event, Token)]


@pytest.mark.parametrize(
    ("name", "part", "shares"),
    [
        ("llama-gqa-odd", 0.0, "1"),
        ("mistral-sliding", 0.0, "2,1"),
        ("mistral-sliding", 0.4, "1,0:1,3"),
        ("llama-gqa-odd", 0.9, "2,1"),
    ],
)
def test_tokens_are_the_same_while_the_cache_grows_and_shrinks(
    name: str, part: float, shares: str, references: References, packs: Packs
) -> None:
    reference = references(name)
    prompt, answer = tuple(reference.prompt_ids), tuple(reference.greedy_ids)
    with InProcessCluster(
        packs(reference),
        split(reference, shares),
        limits=StepLimits(7, 3),
        placement=tight(part),
        grain_pages=1,
    ) as cluster:
        held = []
        for repeats in (1, 6, 1):
            long = (prompt * repeats)[: 256 - 8]
            continued = tokens(cluster, long, 8)
            assert tokens(cluster, (*long, *continued[:4]), 4, keep=True) == continued[4:]
            assert tuple(tokens(cluster, prompt, len(answer))) == answer
            held.append(cluster.weights[0].weight_bytes)
        page_bytes = cluster.page_bytes
        largest = max(piece.nbytes for piece in cluster.weights[0].sweep.pieces)
        assert max(held) - min(held) <= 2 * page_bytes + largest  # whatever came before the same text
