import itertools
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import torch

from tests.cluster.packs import Packs, References, split
from tests.cluster.test_exactness import assert_close
from tests.fakes.cluster import InProcessCluster
from tests.reference import Reference
from tests.shaped_links import LinkModel, LinkSettings, ShapedNetwork
from tpiedge.collectives.communicator import Route
from tpiedge.collectives.group import COLLECTIVES
from tpiedge.engine.steps import StepLimits

CHUNKS = StepLimits(9, 4)
"""Several chunks of a step are under way at once."""


def route(way: str) -> Route:
    return Route(small=way, bulk=way)  # type: ignore[arg-type]


@pytest.mark.parametrize(("small", "bulk"), [("mesh", "two-shot"), ("star", "mesh")])
def test_tokens_and_prompts_use_different_collectives(
    small: str, bulk: str, references: References, packs: Packs
) -> None:
    reference = references("llama-gqa-odd")
    hidden_bytes = 4 * 72
    path = Route(small=small, bulk=bulk, small_bytes=hidden_bytes)  # type: ignore[arg-type]
    with InProcessCluster(
        packs(reference), split(reference, "1,2,1,0:1"), limits=CHUNKS, route=path
    ) as cluster:
        assert tuple(cluster.greedy(reference.prompt_ids, 16)) == reference.greedy_ids[:16]
        counts = cluster.leader._communicator.counts  # type: ignore[attr-defined]
    assert set(counts) == {small, bulk}
    assert min(counts.values()) >= 6  # every block of a token, and of a chunk


#: A lost frame costs a wait here, as on a reliable connection; tests/process/lab/testbed has real connections.
LINK = LinkSettings(latency_s=0.0002, jitter_s=0.0018, loss=0.05)
AGAIN_S = 0.008
"""A lost frame is sent again after so much: many of them in one test."""


@contextmanager
def shaped(reference: Reference, pack: Path, shares: str, way: str, seed: int) -> Iterator[InProcessCluster]:
    seeds = itertools.count(1000 * seed)
    with (
        closing(ShapedNetwork(lambda *_: LinkModel(LINK, next(seeds)), AGAIN_S)) as network,
        InProcessCluster(pack, split(reference, shares), limits=CHUNKS, route=route(way)) as cluster,
    ):
        network.join(*cluster.endpoints)
        yield cluster
        assert network.lost > 0


@pytest.mark.parametrize("shares", ["2,1", "1,5,2", "1,0:3,1,0:1,1", "1,1,1,1,1,1,1,1"])
@pytest.mark.fault("P10", "the same bits as without")
def test_logits_are_bit_identical_over_lossy_links(shares: str, references: References, packs: Packs) -> None:
    reference = references("yi")
    pack = packs(reference)
    logits_TV = {}
    for seed, way in enumerate(COLLECTIVES):
        with shaped(reference, pack, shares, way, seed) as cluster:
            logits_TV[way] = cluster.logits(reference.prompt_ids)
        assert_close(logits_TV[way], reference.logits_TV)
        with InProcessCluster(pack, split(reference, shares), limits=CHUNKS, route=route(way)) as cluster:
            assert torch.equal(logits_TV[way], cluster.logits(reference.prompt_ids))
    assert all(torch.equal(logits_TV[way], logits_TV["star"]) for way in COLLECTIVES)
