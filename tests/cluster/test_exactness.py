"""The heart of the promise: every family, every number of nodes, every split gives transformers' own tokens.

Ranks are threads here and the links queues; tests/process does the same with processes and ZeroMQ.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.cluster.packs import SPLITS, Packs, References, sampled, split
from tests.fakes.cluster import InProcessCluster, greedy_request
from tests.reference import CASES, FAMILIES, case
from tests.unit.memory.conftest import narrow
from tpiedge.engine.steps import StepLimits
from tpiedge.wire.control import PromptScores

RELATIVE = 1e-4


def assert_close(actual: torch.Tensor, expected: np.ndarray) -> None:
    """Every row within RELATIVE of its own largest logit."""
    error = np.abs(actual.numpy() - expected).max(-1) / np.abs(expected).max(-1)
    assert error.max() < RELATIVE, f"relative error {error.max():.2e}"


#: One case by all splits, and every family in every way.
TRIED = dict.fromkeys(
    [
        *(
            (name, shares, False)
            for name in ("llama-gqa-odd", "qwen3-moe", "gpt-oss", "gemma4-a4b")
            for group in SPLITS
            for shares in group
        ),
        *(one[:3] for one in sampled((*CASES, *FAMILIES))),
    ]
)


@pytest.mark.parametrize(("name", "shares", "streamed"), TRIED)
def test_tokens_and_logits_are_those_of_transformers(
    name: str, shares: str, streamed: bool, references: References, packs: Packs
) -> None:
    reference, placement = references(name), narrow if streamed else None
    with InProcessCluster(packs(reference), split(reference, shares), placement=placement) as cluster:
        tokens = cluster.greedy(reference.prompt_ids, len(reference.greedy_ids))
        logits_TV = cluster.logits(reference.prompt_ids)
    assert tuple(tokens) == reference.greedy_ids
    assert_close(logits_TV, reference.logits_TV)


def test_sample_has_every_family_in_every_way() -> None:
    ways: dict[object, list[tuple[int, bool, bool, int]]] = {}
    for name, shares, streamed, number in sampled((*CASES, *FAMILIES)):
        text: Any = case(name).config.get("text_config", case(name).config)
        nodes = shares.count(",") + 1
        way = nodes, len({*shares.split(",")}) == 1, streamed, number
        ways.setdefault(text["model_type"], []).append(way)
    for found in ways.values():
        assert {way[0] for way in found} == {1, 2, 3, 5}
        assert {way[1] for way in found if way[0] > 1} == {False, True}
        assert {way[2:] for way in found} == {(False, 0), (False, 1), (True, 0), (True, 1)}


@pytest.mark.parametrize(
    ("name", "limits"),
    [
        ("llama-gqa-odd", StepLimits(5, 2)),
        ("mistral-sliding", StepLimits(5, 2)),
        ("mistral-sliding", StepLimits(1000, 3)),
        ("llama-gqa-odd", StepLimits(1, 1)),
        ("mistral-sliding", StepLimits(4, 1000)),
        ("phi4-mini-long", StepLimits(5, 2)),
        ("phi4-mini-turning", StepLimits(5, 2)),
    ],
)
def test_prompt_step_and_chunk_sizes_do_not_change_tokens(
    name: str, limits: StepLimits, references: References, packs: Packs
) -> None:
    reference = references(name)
    with InProcessCluster(packs(reference), split(reference, "2,1"), limits=limits) as cluster:
        assert tuple(cluster.greedy(reference.prompt_ids, 16)) == reference.greedy_ids


@pytest.mark.parametrize("shares", ["1", "1,1"])
@pytest.mark.parametrize("name", ["phi4-mini-long", "phi4-mini-turning"])
def test_longrope_beyond_its_original_context(
    name: str, shares: str, references: References, packs: Packs
) -> None:
    reference = references(name)
    count = len(reference.greedy_ids)
    with InProcessCluster(packs(reference), split(reference, shares)) as cluster:
        assert tuple(cluster.greedy(reference.prompt_ids, count)) == reference.greedy_ids
        anew = 32 if name == "phi4-mini-turning" else 0
        assert cluster.computed == len(reference.prompt_ids) + count - 1 + anew
        logits_TV = cluster.logits((*reference.prompt_ids, *reference.greedy_ids[:-1]))
    assert_close(logits_TV[-1:], reference.greedy_logits_GV[-1:])


def test_prompt_scores_are_the_log_probabilities_of_the_prompt(references: References, packs: Packs) -> None:
    reference = references("qwen2-tied")
    request = replace(greedy_request(reference.prompt_ids, 1), prompt_scores=True)
    limits = StepLimits(7, 3)
    with InProcessCluster(packs(reference), split(reference, "1,1"), limits=limits) as cluster:
        events = [event for event in cluster.generate(request) if isinstance(event, PromptScores)]
    scores = [score for event in events for score in event.scores]
    expected = torch.log_softmax(torch.from_numpy(reference.logits_TV), -1)[:-1]
    own = expected.gather(1, torch.tensor(reference.prompt_ids[1:])[:, None])[:, 0]
    assert [event.first for event in events] == sorted(event.first for event in events)
    assert torch.allclose(torch.tensor(scores), own, rtol=RELATIVE, atol=RELATIVE)


#: A dense case, and mixtures whose weights are of bf16; the bound, in parts of the largest logit.
BF16 = [
    (next(one.name for one in CASES if one.dtype == "bf16"), 0.03),
    *((name, 0.05) for name in ("qwen3-moe", "olmoe", "mixtral")),
]


@pytest.mark.parametrize(("name", "part"), BF16)
def test_bf16_arithmetic_stays_near_f32_for_every_split(
    name: str, part: float, references: References, packs: Packs
) -> None:
    """The stated bound of bf16, and any two splits within it of each other."""
    reference = references(name)
    bound = part * np.abs(reference.logits_TV).max()
    seen = []
    for shares in ("1", "1,1", "1,5,2"):
        with InProcessCluster(packs(reference), split(reference, shares), compute="bf16") as cluster:
            seen.append(cluster.logits(reference.prompt_ids).numpy())
        assert np.abs(seen[-1] - reference.logits_TV).max() < bound
        assert np.abs(seen[-1] - seen[0]).max() < bound
