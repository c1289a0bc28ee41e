"""An FFN and experts side by side, each with tiles of its own axis: a node may have tiles of one and none of the other.
Both sums travel in one message."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path

import pytest
import torch

from tests.cluster.alone import AloneOf
from tests.cluster.packs import Packs, References, split_of
from tests.cluster.test_exactness import assert_close
from tests.cluster.test_page_moves import CHANGES, assert_continued
from tests.fakes.cluster import InProcessCluster
from tpiedge.collectives.communicator import Route
from tpiedge.engine.forward import kv_cache
from tpiedge.engine.steps import StepLimits
from tpiedge.kernels.shared_library import kernel_library
from tpiedge.model.spec import config_of_pack
from tpiedge.pack.reader import Pack
from tpiedge.pack.share import NodeShare, Share
from tpiedge.pack.specs import Precision
from tpiedge.planner.needs import LayerShape, NodeFacts, model_facts, whole_need
from tpiedge.wire.fields import WirePrecision

NAME = "gemma4-a4b"
#: Six query heads, one KV head at least, three tiles of the FFN and four of each expert.
SHAPE = LayerShape(6, 1, 3, 4, 4)
#: The heads, tiles of the FFN and tiles of each expert of each node.
APART = (
    ((6, 3, 0), (0, 0, 4)),
    ((0, 0, 4), (6, 3, 0)),
    ((2, 0, 3), (2, 3, 0), (2, 0, 1)),
    ((0, 0, 0), (3, 1, 0), (0, 0, 1), (0, 2, 3), (3, 0, 0)),
)

native = pytest.mark.skipif(
    kernel_library() is None, reason="native: without its kernels bits depend on the split"
)


def shares(counts: Sequence[Sequence[int]]) -> tuple[NodeShare, ...]:
    ends = (pairwise(accumulate(axis, initial=0)) for axis in zip(*counts, strict=True))
    return tuple(SHAPE.share(*(Share(*own) for own in of_node)) for of_node in zip(*ends, strict=True))


@pytest.mark.parametrize("counts", APART, ids=str)
def test_tokens_are_those_of_transformers(
    counts: Sequence[Sequence[int]], references: References, packs: Packs
) -> None:
    reference = references(NAME)
    with InProcessCluster(packs(reference), shares(counts), limits=StepLimits(7, 3)) as cluster:
        tokens = cluster.greedy(reference.prompt_ids, len(reference.greedy_ids))
        logits_TV = cluster.logits(reference.prompt_ids)
    assert tuple(tokens) == reference.greedy_ids
    assert_close(logits_TV, reference.logits_TV)


@native
@pytest.mark.parametrize("way", ["star", "mesh", "two-shot"])
@pytest.mark.parametrize("precision", [Precision.Q8, Precision.Q4])
def test_bits_are_those_of_one_node(precision: Precision, way: str, alone: AloneOf) -> None:
    expected = alone(NAME, precision)
    for counts in APART:
        route = Route(small=way, bulk=way)  # type: ignore[arg-type]
        with InProcessCluster(expected.pack, shares(counts), route=route) as cluster:
            assert torch.equal(cluster.logits(expected.text), expected.logits_TV), counts


@pytest.mark.parametrize(("wire", "bound"), [("bf16", 0.03), ("int8", 0.08)])
def test_rounded_messages_stay_near(
    wire: WirePrecision, bound: float, references: References, packs: Packs
) -> None:
    """Most rows stay near. A few choose other experts for it."""
    reference = references(NAME)
    expected_TV = torch.from_numpy(reference.logits_TV)
    for counts in APART:
        with InProcessCluster(packs(reference), shares(counts), route=Route(wire=wire)) as cluster:
            error_TV = cluster.logits(reference.prompt_ids) - expected_TV
        error_T = error_TV.norm(dim=1) / expected_TV.norm(dim=1)
        assert bound / 10 < error_T.median() < bound, counts


@native
@pytest.mark.parametrize("change", ["a machine joins", "one leaves", "the master has no heads"])
def test_answers_continue_from_transferred_kv_pages(
    change: str, references: References, packs: Packs, tmp_path: Path
) -> None:
    assert change in CHANGES
    reference = references(NAME)
    assert_continued(reference.prompt_ids, packs(reference, Precision.Q4), change, 6, tmp_path)


@pytest.mark.parametrize("counts", APART, ids=str)
@pytest.mark.parametrize("precision", [None, Precision.Q4])
def test_planned_bytes_are_those_that_nodes_have(
    counts: Sequence[Sequence[int]], precision: Precision | None, references: References, packs: Packs
) -> None:
    pack, parts = Pack.open(packs(references(NAME), precision)), shares(counts)
    config = config_of_pack(pack)
    facts = replace(model_facts(pack, compute="f32", kv="f32"), capacity_tokens=256)
    assert facts.shape == SHAPE
    assert split_of(config, "1") == (SHAPE.whole,)
    assert (facts.exchanges, facts.second_sums) == (8, 4)
    with InProcessCluster(pack.path, parts) as cluster:
        for rank, (share, weights) in enumerate(zip(parts, cluster.weights, strict=True)):
            need = whole_need(facts, rank, share, NodeFacts(1.0))
            assert need.weight_bytes == weights.weight_bytes
            assert need.kv_bytes == kv_cache(config, share, "f32", 1, 256).reserved_bytes
