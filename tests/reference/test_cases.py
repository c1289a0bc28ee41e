"""Every case is worth comparing with: its answer varies, has no near ties, and shows what it is about."""

import json

import numpy as np
import pytest
import torch
from safetensors import safe_open

from tests.reference.cases import CASES, MIN_MARGIN, Case
from tests.reference.huggingface import GENERATED, logits


def each(cases):
    return pytest.mark.parametrize("case", cases, ids=lambda case: case.name)


DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def tensors(folder):
    found = {}
    for path in folder.glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            found |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    return found


def test_there_is_a_case_of_every_family():
    families = ("llama2", "llama3", "openllama", "yi", "mistral", "qwen2", "qwen3")
    assert [name for name in families if not any(case.name.startswith(name) for case in CASES)] == []


@each(CASES)
def test_reference_answer_varies_and_has_no_near_ties(case: Case, references):
    found = references(case.name)
    assert len(found.prompt_ids) == case.prompt_length
    assert len(found.greedy_ids) == GENERATED
    assert len(set(found.greedy_ids)) >= 8
    assert found.min_margin > MIN_MARGIN


@each(CASES)
def test_stepwise_logits_match_whole_sequence_logits(case: Case, references):
    found = references(case.name)
    at_once_TV = logits(found.folder, found.prompt_ids + found.greedy_ids[:-1], {})
    assert found.logits_TV.shape == (case.prompt_length, case.config["vocab_size"])
    assert found.logits_TV.dtype == np.float32
    np.testing.assert_allclose(at_once_TV[: case.prompt_length], found.logits_TV, atol=1e-4)
    np.testing.assert_allclose(at_once_TV[case.prompt_length - 1 :], found.greedy_logits_GV, atol=1e-4)


@each([case for case in CASES if case.ablation])
def test_ablating_a_feature_changes_the_logits(case: Case, references):
    found = references(case.name)
    changed_TV = logits(found.folder, found.prompt_ids, case.ablation)
    assert np.abs(changed_TV - found.logits_TV)[-1].max() > 0.3


@each(CASES)
def test_the_checkpoint_is_as_the_case_says(case: Case, references):
    folder = references(case.name).folder
    config, found = json.loads((folder / "config.json").read_text()), tensors(folder)
    assert {tensor.dtype for tensor in found.values()} == {DTYPES[case.dtype]}
    assert ("lm_head.weight" in found) == (not case.config["tie_word_embeddings"])
    assert (folder / "model.safetensors.index.json").exists() == (case.shard_size is not None)
    assert ("rope_theta" in config) == case.published_keys
    assert ("rope_parameters" in config) != case.published_keys
    for name, tensor in found.items():
        assert float(tensor.float().std()) > 0.01, f"{name} is constant: an engine that ignores it would pass"
