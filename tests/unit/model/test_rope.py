"""Rope frequencies against transformers, for every kind and many parameters."""

import hashlib
from typing import Any

import numpy as np
import pytest
import torch

from tpiedge.errors import UserError
from tpiedge.model.config import ModelConfig
from tpiedge.model.rope import ROPE_KINDS, RopeConfig, rope_frequencies

BASE: dict[str, Any] = {
    "hidden_size": 512,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 100,
    "max_position_embeddings": 4096,
    "bos_token_id": None,
    "eos_token_id": None,
}

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 1024,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}

GOLDEN = {
    "default": "dde15c3172417735",
    "linear": "dafa461e569f51c4",
    "dynamic": "a8d4316097eb84ac",
    "yarn": "68154371a989441c",
    "llama3": "82a777bea83b6c60",
}

SCALINGS: list[dict[str, Any]] = [
    {"rope_type": "default"},
    {"rope_type": "linear", "factor": 2.0},
    {"type": "linear", "factor": 3},
    {"rope_type": "dynamic", "factor": 4.0},
    LLAMA3,
    LLAMA3 | {"factor": 32.0, "low_freq_factor": 2},
    YARN,
    YARN | {"attention_factor": 0.7},
    YARN | {"mscale": 1.0, "mscale_all_dim": 0.5},
    YARN | {"mscale": 0.7},
    YARN | {"beta_fast": 16, "beta_slow": 2, "truncate": False},
    YARN | {"beta_fast": 1e-3, "beta_slow": 1e-4},
    {"rope_type": "yarn", "factor": 1.0},
]


def our_rope(values: dict[str, Any]) -> tuple[RopeConfig, int]:
    config = ModelConfig.from_huggingface({"model_type": "llama", "hidden_act": "silu"} | BASE | values)
    return config.rope, config.head_dim


def check_close(ours: np.ndarray, theirs: torch.Tensor) -> None:
    expected = theirs.numpy()
    assert ours.dtype == np.float32
    assert ours.shape == expected.shape
    # torch's vectorised power differs from numpy's in the last bit; llama3's interpolation amplifies that
    np.testing.assert_allclose(ours, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("theta", [10000.0, 500000.0, 1000000])
@pytest.mark.parametrize("head_dim", [64, 100, 128])
@pytest.mark.parametrize("scaling", SCALINGS, ids=lambda s: f"{s.get('rope_type', 'old')}-{len(s)}")
def test_frequencies_equal_transformers(scaling: dict[str, Any], head_dim: int, theta: float) -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    shape = {"head_dim": head_dim, "hidden_size": 4 * head_dim}
    rope, dim = our_rope(shape | {"rope_scaling": dict(scaling), "rope_theta": theta})
    theirs = LlamaConfig(**(BASE | shape), rope_parameters=dict(scaling) | {"rope_theta": theta})
    ours, scale = rope_frequencies(rope, dim, 1)
    embedding = LlamaRotaryEmbedding(theirs)
    check_close(ours, embedding.inv_freq)
    assert scale == pytest.approx(embedding.attention_scaling, rel=1e-12)
    if rope.kind != "default":
        check_close(ours, ROPE_INIT_FUNCTIONS[rope.kind](theirs)[0])


@pytest.mark.parametrize("length", [1, 4096, 4097, 5000, 8192, 100_000])
def test_dynamic_frequencies_grow_with_the_sequence(length: int) -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaling = {"rope_type": "dynamic", "factor": 2.0}
    rope, dim = our_rope({"rope_scaling": scaling})
    theirs = LlamaConfig(**BASE, rope_parameters=scaling | {"rope_theta": 10000.0})
    expected, _ = ROPE_INIT_FUNCTIONS["dynamic"](theirs, seq_len=torch.tensor(length))
    check_close(rope_frequencies(rope, dim, length)[0], expected)
    assert rope.depends_on_length


def test_new_and_old_keys_mean_the_same() -> None:
    old, _ = our_rope({"rope_scaling": LLAMA3, "rope_theta": 5e5})
    new, _ = our_rope({"rope_parameters": LLAMA3 | {"rope_theta": 5e5}})
    assert old == new


def test_theta_of_rope_parameters_wins_over_the_top_level() -> None:
    rope, _ = our_rope({"rope_parameters": {"rope_type": "default", "rope_theta": 7e4}, "rope_theta": 1e4})
    assert rope.theta == 7e4


def test_theta_defaults_to_ten_thousand() -> None:
    assert our_rope({})[0].theta == 10000.0


def test_yarn_without_factor_stretches_to_the_claimed_context() -> None:
    from transformers import Qwen2Config
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaling = {"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 1024}
    rope, dim = our_rope({"rope_scaling": scaling})
    theirs = Qwen2Config(**BASE)
    theirs.rope_parameters = scaling | {"rope_theta": 10000.0}
    expected, factor = ROPE_INIT_FUNCTIONS["yarn"](theirs)
    ours, scale = rope_frequencies(rope, dim, 1)
    check_close(ours, expected)
    assert scale == pytest.approx(factor)


@pytest.mark.parametrize("scaling", SCALINGS)
def test_json_round_trip(scaling: dict[str, Any]) -> None:
    rope, _ = our_rope({"rope_scaling": scaling})
    assert RopeConfig.from_json("here", rope.to_json()) == rope


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"rope_theta": 0}, "rope_theta"),
        ({"rope_theta": -1e4}, "rope_theta"),
        ({"rope_theta": float("nan")}, "rope_theta"),
        ({"rope_theta": float("inf")}, "rope_theta"),
        ({"rope_theta": True}, "rope_theta"),
        ({"rope_theta": "big"}, "rope_theta"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "longrope"),
        ({"rope_scaling": {"type": "mrope"}}, "default, linear, dynamic, yarn, llama3"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor is missing"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 0}}, "factor"),
        ({"rope_scaling": [1]}, "rope_scaling"),
        ({"rope_scaling": LLAMA3 | {"high_freq_factor": 1.0}}, "high_freq_factor"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "low_freq_factor"),
        (
            {"rope_scaling": YARN | {"original_max_position_embeddings": 0}},
            "original_max_position_embeddings",
        ),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rope_parameters": {"partial_rotary_factor": 0.25}}, "partial_rotary_factor"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "layer types"),
    ],
)
def test_impossible_parameters_are_named(values: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError, match=named) as raised:
        our_rope(values)
    assert "\n" not in str(raised.value)


def test_every_kind_has_a_case() -> None:
    covered = {scaling.get("rope_type", scaling.get("type")) for scaling in SCALINGS}
    assert covered == set(ROPE_KINDS)


def test_dynamic_frequencies_are_made_once_for_all_lengths_within_the_context() -> None:
    """Each token's step asks for those of one position more."""
    rope, dim = our_rope({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}})
    first, _ = rope_frequencies(rope, dim, 1)
    assert rope_frequencies(rope, dim, 2)[0] is first
    assert rope_frequencies(rope, dim, rope.max_positions)[0] is first
    assert (rope_frequencies(rope, dim, rope.max_positions + 1)[0][1:] != first[1:]).all()


@pytest.mark.parametrize("kind", ROPE_KINDS)
def test_frequencies_are_those_of_every_machine(kind: str) -> None:
    """SHA-256 of all kinds, f32 in little-endian order."""
    of_kind = {"llama3": LLAMA3, "yarn": YARN}.get(kind, {"rope_type": kind, "factor": 4.0})
    rope, dim = our_rope({"rope_scaling": of_kind, "rope_theta": 5e5})
    found, _ = rope_frequencies(rope, dim, 100_000)
    assert hashlib.sha256(found.astype("<f4").tobytes()).hexdigest()[:16] == GOLDEN[kind]
