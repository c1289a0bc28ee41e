import pytest

from tests.cluster.packs import Packs, References, split
from tests.fakes.cluster import InProcessCluster
from tpiedge.collectives.communicator import Route
from tpiedge.engine.steps import StepLimits

CHUNKS = StepLimits(9, 4)
"""Several chunks of a step are under way at once."""


def route(way: str) -> Route:
    return Route(small=way, bulk=way)  # type: ignore[arg-type]


@pytest.mark.parametrize(("small", "bulk"), [("mesh", "two-shot"), ("star", "mesh")])
def test_tokens_go_one_way_and_prompts_another(
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
