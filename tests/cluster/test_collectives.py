"""By whichever collective the nodes' parts are summed, the tokens are those of transformers."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.cluster.packs import split
from tests.cluster.test_exactness import assert_close
from tests.reference import Reference
from tpiedge.collectives.group import COLLECTIVES
from tpiedge.collectives.job import Route
from tpiedge.engine.steps import StepLimits
from tpiedge.testing.cluster import InProcessCluster, greedy_request
from tpiedge.wire.control import Token

WAYS = tuple(COLLECTIVES)
EXACT = ("star", "mesh", "two-shot")
# Two to eight nodes, uneven ones among them; "0:1" helps with the FFN only, "1:0" with attention only.
SPLITS = [
    "3,1",
    "1,0:1",
    "1:0,0:1,2",
    "1,1,1,1",
    "1,0:3,1,0:1,1",
    "1,1,1,1,1,1",
    "2,1,0:1,1,1:0,3,1",
    "3,1,0:2,1,1:0,2,0:1,1",
]
CHUNKS = StepLimits(9, 4)
"""Several chunks of a step are under way at once."""


def route(way: str, wire: str = "f32") -> Route:
    return Route(small=way, bulk=way, wire=wire)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("way", "shares"),
    [(way, shares) for i, way in enumerate(WAYS) for j, shares in enumerate(SPLITS) if (i + j) % 2 == 0],
)
def test_tokens_are_those_of_transformers(
    way: str, shares: str, references: Callable[[str], Reference], packs: Callable[[Reference], Path]
) -> None:
    reference = references("llama-gqa-odd")
    with InProcessCluster(
        packs(reference), split(reference, shares), limits=CHUNKS, route=route(way)
    ) as cluster:
        assert tuple(cluster.greedy(reference.prompt_ids, 16)) == reference.greedy_ids[:16]


@pytest.mark.parametrize(
    ("way", "name"),
    list(zip(WAYS, itertools.cycle(("mistral-sliding", "qwen2-tied", "llama3-new-keys")), strict=False)),
)
def test_other_families(
    way: str, name: str, references: Callable[[str], Reference], packs: Callable[[Reference], Path]
) -> None:
    reference = references(name)
    with InProcessCluster(packs(reference), split(reference, "1,2,0:1"), route=route(way)) as cluster:
        assert tuple(cluster.greedy(reference.prompt_ids, 16)) == reference.greedy_ids[:16]


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


@pytest.mark.parametrize(
    ("small", "bulk"), [("mesh", "two-shot"), ("star", "ring"), ("tree", "star"), ("mesh", "tree")]
)
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


@pytest.mark.parametrize(("wire", "bound"), [("bf16", 0.03), ("int8", 0.1)])
@pytest.mark.parametrize("way", WAYS)
def test_rounded_parts_stay_near(
    way: str,
    wire: str,
    bound: float,
    references: Callable[[str], Reference],
    packs: Callable[[Reference], Path],
) -> None:
    """The stated bounds, of the largest logit. How a prompt is cut into chunks changes no bit, but in a ring, where the
    order of summation depends on where a slice ends."""
    reference = references("llama2-mha")
    seen = []
    for limits in (CHUNKS, StepLimits(100, 3)):
        with InProcessCluster(
            packs(reference), split(reference, "1,2,1"), limits=limits, route=route(way, wire)
        ) as cluster:
            seen.append(cluster.logits(reference.prompt_ids).numpy())
    errors = [np.abs(one - reference.logits_TV).max() / np.abs(reference.logits_TV).max() for one in seen]
    assert 1e-6 < max(errors) < bound
    assert way == "ring" or np.array_equal(*seen)


def cancelled_at(call: int) -> Callable[[], bool]:
    calls: Iterator[bool] = iter([False] * (call - 1))
    return lambda: next(calls, True)


@pytest.mark.parametrize(("way", "call"), list(zip(WAYS, (1, 2, 5, 1, 2), strict=True)))
def test_a_cancel_leaves_a_cluster_that_answers_exactly(
    way: str, call: int, references: Callable[[str], Reference], packs: Callable[[Reference], Path]
) -> None:
    reference = references("llama-gqa-odd")
    with InProcessCluster(
        packs(reference), split(reference, "1,1,2,0:1"), limits=CHUNKS, route=route(way)
    ) as cluster:
        events: list[object] = []
        request = greedy_request(reference.prompt_ids, 16)
        finished = cluster.leader.generate(request, events.append, cancelled_at(call))
        tokens = [event.token for event in events if isinstance(event, Token)]
        assert finished.reason == "cancel"
        assert tuple(tokens) == reference.greedy_ids[: len(tokens)]
        assert tuple(cluster.greedy(reference.prompt_ids, 16)) == reference.greedy_ids[:16]
