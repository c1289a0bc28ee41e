"""Embeddings are the pooled hidden states of transformers, for every number of nodes and whatever runs beside them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.cluster.packs import split
from tests.cluster.test_batching import page_of
from tests.reference import Reference, hidden_states
from tpiedge.engine.runner import Leader
from tpiedge.engine.steps import StepLimits
from tpiedge.pack.layout import Precision
from tpiedge.testing.cluster import InProcessCluster, greedy_request
from tpiedge.wire.control import AnswerPart, Embedding
from tpiedge.wire.requests import GenerationRequest, Pooling

RELATIVE = 1e-4


def asking(prompt_ids: Sequence[int], pooling: Pooling, name: str = "embedded") -> GenerationRequest:
    return GenerationRequest(name, tuple(prompt_ids), 0, keep_prefix=True, pooling=pooling)


def vector(events: Sequence[AnswerPart]) -> np.ndarray:
    """The one thing that came."""
    (found,) = events
    assert isinstance(found, Embedding)
    return np.array(found.values)


def played(leader: Leader, *requests: GenerationRequest) -> list[list[AnswerPart]]:
    """What comes of each of them, all of which run at once."""
    told: list[list[AnswerPart]] = [[] for _ in requests]
    for request, events in zip(requests, told, strict=True):
        leader.submit(request, events.append)
    while not leader.idle:
        leader.step()
    return told


@pytest.mark.parametrize("shares", ["1", "2,1", "1,5,2"])
@pytest.mark.parametrize("name", ["llama-gqa-odd", "qwen2-tied", "llama-rope-dynamic-beyond"])
def test_they_are_the_pooled_hidden_states_of_transformers(
    name: str, shares: str, references: Callable[[str], Reference], packs: Callable[[Reference], Path]
) -> None:
    reference = references(name)
    states_TH = hidden_states(reference.folder, reference.prompt_ids)
    with InProcessCluster(packs(reference), split(reference, shares), limits=StepLimits(7, 3)) as cluster:
        mean = vector(cluster.generate(asking(reference.prompt_ids, "mean")))
        last = vector(cluster.generate(asking(reference.prompt_ids, "last")))
    for found, expected in ((mean, states_TH.mean(0)), (last, states_TH[-1])):
        assert np.abs(found - expected).max() < RELATIVE * np.abs(expected).max()


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_company_and_kept_prefixes_change_no_bit_of_them(
    pooling: Pooling, references: Callable[[str], Reference], packs: Callable[..., Path]
) -> None:
    reference = references("yi")
    pack, page = packs(reference, Precision.Q8), page_of(reference, "bf16")
    prompt = (tuple(reference.prompt_ids) * page)[: page + 9]
    with InProcessCluster(pack, split(reference, "1"), capacity_tokens=8 * page) as cluster:
        alone = cluster.generate(asking(prompt, pooling))
    with InProcessCluster(
        pack, split(reference, "2,1"), capacity_tokens=8 * page, context_tokens=2 * page, sequences=3
    ) as cluster:
        answered = replace(greedy_request(prompt[:-4], 12), keep_prefix=True)
        beside, again = (
            played(cluster.leader, answered, asking(prompt, pooling), asking(prompt[:9], "mean", "other"))[1]
            for _ in range(2)
        )
    assert vector(beside).tolist() == vector(again).tolist() == vector(alone).tolist()


def test_a_prompt_that_gives_up_its_pages_counts_once(
    references: Callable[[str], Reference], packs: Callable[..., Path]
) -> None:
    reference = references("yi")
    pack, page = packs(reference, Precision.Q8), page_of(reference, "bf16")
    prompt = (tuple(reference.prompt_ids) * page)[: page - 4]
    request = asking(prompt, "mean")
    with InProcessCluster(
        pack, split(reference, "2,1"), capacity_tokens=2 * page, context_tokens=2 * page, sequences=2
    ) as cluster:
        (alone,) = played(cluster.leader, request)
        # Its answer needs the other page while the prompt is still computed.
        answer: list[AnswerPart] = []
        cluster.leader.submit(greedy_request(prompt[:-2], 12), answer.append)
        cluster.leader.step()
        (beside,) = played(cluster.leader, request)
    assert len(answer) == 12
    assert vector(beside).tolist() == vector(alone).tolist()
