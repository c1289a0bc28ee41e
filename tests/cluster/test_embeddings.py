from collections.abc import Sequence

import numpy as np
import pytest

from tests.cluster.packs import Packs, References, split
from tests.fakes.cluster import InProcessCluster
from tests.reference import hidden_states
from tpiedge.engine.runner import Leader
from tpiedge.engine.steps import StepLimits
from tpiedge.wire.control import AnswerPart, Embedding
from tpiedge.wire.requests import GenerationRequest, Pooling

RELATIVE = 1e-4


def asking(prompt_ids: Sequence[int], pooling: Pooling, name: str = "embedded") -> GenerationRequest:
    return GenerationRequest(name, tuple(prompt_ids), 0, keep_prefix=True, pooling=pooling)


def vector(events: Sequence[AnswerPart]) -> np.ndarray:
    (found,) = events
    assert isinstance(found, Embedding)
    return np.array(found.values)


def played(leader: Leader, *requests: GenerationRequest) -> list[list[AnswerPart]]:
    told: list[list[AnswerPart]] = [[] for _ in requests]
    for request, events in zip(requests, told, strict=True):
        leader.submit(request, events.append)
    while not leader.idle:
        leader.step()
    return told


@pytest.mark.parametrize("shares", ["1", "2,1", "1,5,2"])
@pytest.mark.parametrize("name", ["llama-gqa-odd", "qwen2-tied"])
def test_embeddings_match_pooled_hidden_states_of_transformers(
    name: str, shares: str, references: References, packs: Packs
) -> None:
    reference = references(name)
    states_TH = hidden_states(reference.folder, reference.prompt_ids)
    with InProcessCluster(packs(reference), split(reference, shares), limits=StepLimits(7, 3)) as cluster:
        mean = vector(cluster.generate(asking(reference.prompt_ids, "mean")))
        last = vector(cluster.generate(asking(reference.prompt_ids, "last")))
    for found, expected in ((mean, states_TH.mean(0)), (last, states_TH[-1])):
        assert np.abs(found - expected).max() < RELATIVE * np.abs(expected).max()
