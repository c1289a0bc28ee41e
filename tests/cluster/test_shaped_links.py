"""Over links that are late, uneven and lose one frame in twenty, the tokens are still those of transformers.

In one process: what a lost frame costs here is a wait, as on a reliable connection. tests/process/lab/testbed does the
same with real connections.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import torch

from tests.cluster.packs import split
from tests.cluster.test_collectives import CHUNKS, EXACT, WAYS, route
from tests.cluster.test_exactness import assert_close
from tests.reference import Reference
from tests.shaped_links import LinkModel, LinkSettings, ShapedNetwork
from tpiedge.collectives.communicator import Tag
from tpiedge.collectives.group import Group
from tpiedge.engine.steps import StepLimits
from tpiedge.testing.cluster import InProcessCluster

LINK = LinkSettings(latency_s=0.0002, jitter_s=0.0018, loss=0.05)
AGAIN_S = 0.008
"""A lost frame is sent again after so much: many of them in one test."""
TOKENS = 5

# Two to eight nodes; "0:1" helps with the FFN only, "1:0" with attention only.
SPLITS = [
    "3,1",
    "1:0,0:1,2",
    "1,1,1,1",
    "1,0:3,1,0:1,1",
    "2,1,0:1,1,1:0,3,1",
]
CASES = [
    *zip(WAYS, SPLITS, strict=True),
    *((way, "3,1,0:2,1,1:0,2,0:1,1") for way in WAYS),
]
"""Eight nodes for each collective, and fewer."""


@contextmanager
def shaped(
    reference: Reference,
    pack: Path,
    shares: str,
    way: str,
    *,
    seed: int,
    limits: StepLimits = CHUNKS,
    wire: str = "f32",
) -> Iterator[InProcessCluster]:
    """A cluster of a link per pair and direction. Fails at its end where nothing was lost on them."""
    seeds = itertools.count(1000 * seed)
    with (
        closing(ShapedNetwork(lambda *_: LinkModel(LINK, next(seeds)), AGAIN_S)) as network,
        InProcessCluster(pack, split(reference, shares), limits=limits, route=route(way, wire)) as cluster,
    ):
        network.join(*cluster.endpoints)
        yield cluster
        assert network.lost > 0


@pytest.mark.parametrize(("way", "shares"), CASES)
def test_tokens_are_those_of_transformers(
    way: str, shares: str, references: Callable[[str], Reference], packs: Callable[[Reference], Path]
) -> None:
    reference = references("llama-gqa-odd")
    with shaped(reference, packs(reference), shares, way, seed=len(shares)) as cluster:
        assert tuple(cluster.greedy(reference.prompt_ids, TOKENS)) == reference.greedy_ids[:TOKENS]


def unshaped_logits(reference: Reference, pack: Path, shares: str, way: str, wire: str) -> torch.Tensor:
    path = route(way, wire)
    with InProcessCluster(pack, split(reference, shares), limits=CHUNKS, route=path) as cluster:
        return cluster.logits(reference.prompt_ids)


@pytest.mark.parametrize("shares", ["2,1", "1,0:3,1,0:1,1", "1,1,1,1,1,1,1,1"])
@pytest.mark.fault("P10", "the same bits as without")
def test_logits_are_the_bits_of_links_without_a_fault(
    shares: str, references: Callable[[str], Reference], packs: Callable[[Reference], Path]
) -> None:
    """Whatever arrives first, sums are in the same order: that of ranks in a star, a mesh and two shots."""
    reference = references("yi")
    pack = packs(reference)
    logits_TV = {}
    for seed, way in enumerate(WAYS):
        with shaped(reference, pack, shares, way, seed=seed) as cluster:
            logits_TV[way] = cluster.logits(reference.prompt_ids)
        assert_close(logits_TV[way], reference.logits_TV)
        assert torch.equal(logits_TV[way], unshaped_logits(reference, pack, shares, way, "f32"))
    assert all(torch.equal(logits_TV[way], logits_TV["star"]) for way in EXACT)


@pytest.mark.parametrize(
    ("way", "wire"), list(zip(WAYS, ("bf16", "int8", "int8", "bf16", "int8"), strict=True))
)
def test_rounded_parts_are_rounded_alike(
    way: str, wire: str, references: Callable[[str], Reference], packs: Callable[[Reference], Path]
) -> None:
    reference = references("llama2-mha")
    pack = packs(reference)
    with shaped(reference, pack, "1,2,1", way, seed=7, wire=wire) as cluster:
        found_TV = cluster.logits(reference.prompt_ids)
    assert torch.equal(found_TV, unshaped_logits(reference, pack, "1,2,1", way, wire))


class _UnderWay:
    """How many all-reduces of a rank have begun and are not finished, and the most of them."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.most: Counter[int] = Counter()
        self._open: Counter[int] = Counter()
        begin, finish = Group.begin_all_reduce, Group.finish_all_reduce

        def begun(group: Group, partial: torch.Tensor, tag: Tag, *, contributes: bool = True) -> None:
            self._open[group.rank] += 1
            self.most[group.rank] = max(self.most[group.rank], self._open[group.rank])
            begin(group, partial, tag, contributes=contributes)

        def finished(group: Group, tag: Tag) -> torch.Tensor:
            total = finish(group, tag)
            self._open[group.rank] -= 1
            return total

        patch.setattr(Group, "begin_all_reduce", begun)
        patch.setattr(Group, "finish_all_reduce", finished)


@pytest.mark.parametrize(
    ("way", "limits", "shares"),
    [
        ("star", StepLimits(8, 4), "1,2,1"),
        ("mesh", StepLimits(1000, 2), "1,1"),
        ("two-shot", StepLimits(6, 1), "1,1,1,1"),
        ("tree", StepLimits(8, 4), "1,2,1"),
        ("ring", StepLimits(6, 1), "1,1,1,1"),
    ],
)
def test_two_chunks_under_way_do_not_mix(
    way: str,
    limits: StepLimits,
    shares: str,
    references: Callable[[str], Reference],
    packs: Callable[[Reference], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reference = references("llama-gqa-odd")
    under_way = _UnderWay(monkeypatch)
    with shaped(reference, packs(reference), shares, way, seed=11, limits=limits) as cluster:
        assert tuple(cluster.greedy(reference.prompt_ids, 2)) == reference.greedy_ids[:2]
    assert len(under_way.most) == shares.count(",") + 1
    assert min(under_way.most.values()) >= 2
