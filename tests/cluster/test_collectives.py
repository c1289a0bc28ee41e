"""By whichever collective the nodes' parts are summed, the tokens are those of transformers."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.cluster.packs import split
from tests.cluster.test_exactness import assert_close
from tests.fakes.cluster import InProcessCluster
from tests.reference import Reference
from tpiedge.collectives.communicator import Route
from tpiedge.collectives.group import COLLECTIVES
from tpiedge.engine.steps import StepLimits

WAYS = tuple(COLLECTIVES)
EXACT = ("star", "mesh", "two-shot")
CHUNKS = StepLimits(9, 4)
"""Several chunks of a step are under way at once."""


def route(way: str) -> Route:
    return Route(small=way, bulk=way)  # type: ignore[arg-type]


@pytest.mark.parametrize("shares", ["2,1", "1,5,2", "1,0:3,1,0:1,1"])
def test_logits(
    shares: str, references: Callable[[str], Reference], packs: Callable[[Reference], Path]
) -> None:
    """The same bits where sums are in the order of ranks; near the reference, and again the same, elsewhere."""
    reference = references("yi")
    logits_TV = {}
    for way in (*WAYS, *WAYS):
        with InProcessCluster(
            packs(reference), split(reference, shares), limits=CHUNKS, route=route(way)
        ) as cluster:
            found_TV = cluster.logits(reference.prompt_ids)
        assert_close(found_TV, reference.logits_TV)
        assert torch.equal(logits_TV.setdefault(way, found_TV), found_TV)
    assert all(torch.equal(logits_TV[way], logits_TV["star"]) for way in EXACT)


@pytest.mark.parametrize(("small", "bulk"), [("mesh", "two-shot"), ("star", "mesh")])
def test_tokens_go_one_way_and_prompts_another(
    small: str, bulk: str, references: Callable[[str], Reference], packs: Callable[[Reference], Path]
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
