import hashlib
import math
from decimal import Context, FloatOperation, localcontext
from typing import Any

import numpy as np
import pytest
import torch

from tpiedge.errors import UserError
from tpiedge.model.config import ModelConfig
from tpiedge.model.folder import ConfigFields
from tpiedge.model.rope import USUAL_KINDS, RopeConfig
from tpiedge.model.rotation import rope_frequencies

BASE: dict[str, Any] = {
    "hidden_size": 512, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 4, "vocab_size": 100, "max_position_embeddings": 4096, "bos_token_id": None,
    "eos_token_id": None,
}  # fmt: skip
_TURNS = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 1024, **_TURNS}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}

GOLDEN = {
    "default": "dde15c3172417735",
    "linear": "dafa461e569f51c4",
    "dynamic": "dde15c3172417735",
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
    ours, scale = rope_frequencies(rope, dim)
    embedding = LlamaRotaryEmbedding(theirs)
    check_close(ours, embedding.inv_freq)
    assert scale == pytest.approx(embedding.attention_scaling, rel=1e-12)
    if rope.kind != "default":
        check_close(ours, ROPE_INIT_FUNCTIONS[rope.kind](theirs)[0])


def test_yarn_without_factor_stretches_to_the_claimed_context() -> None:
    from transformers import Qwen2Config
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaling = {"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 1024}
    rope, dim = our_rope({"rope_scaling": scaling})
    theirs = Qwen2Config(**BASE)
    theirs.rope_parameters = scaling | {"rope_theta": 10000.0}
    expected, factor = ROPE_INIT_FUNCTIONS["yarn"](theirs)
    ours, scale = rope_frequencies(rope, dim)
    check_close(ours, expected)
    assert scale == pytest.approx(factor)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        *(({"rope_theta": theta}, "rope_theta") for theta in (0, math.nan, math.inf, True, "big")),
        ({"rope_scaling": {"rope_type": "longrope"}}, "longrope"),
        ({"rope_scaling": {"type": "mrope"}}, "default, linear, dynamic, yarn, llama3"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor is missing"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 0}}, "factor"),
        ({"rope_scaling": [1]}, "rope_scaling"),
        ({"rope_scaling": LLAMA3 | {"high_freq_factor": 1.0}}, "high_freq_factor"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "low_freq_factor"),
        ({"rope_scaling": YARN | {"original_max_position_embeddings": 0}}, "original_max_position"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rope_parameters": {"partial_rotary_factor": 0.25}}, "partial_rotary_factor"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "layer types"),
    ],
)
def test_impossible_parameters_are_named(values: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError, match=named) as raised:
        our_rope(values)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("kind", USUAL_KINDS)
def test_rope_frequencies_match_golden_hashes(kind: str) -> None:
    """SHA-256 of all kinds, f32 in little-endian order, whatever the thread's decimal context."""
    of_kind = {"llama3": LLAMA3, "yarn": YARN}.get(kind, {"rope_type": kind, "factor": 4.0})
    rope, dim = our_rope({"rope_scaling": of_kind, "rope_theta": 5e5})
    with localcontext(Context(prec=3, traps=[FloatOperation])):
        found, _ = rope_frequencies.__wrapped__(rope, dim)
    assert hashlib.sha256(found.astype("<f4").tobytes()).hexdigest()[:16] == GOLDEN[kind]


@pytest.mark.parametrize(
    ("width", "part", "factor"), [(32, 0.25, 1), (512, 0.25, 1), (20, 0.35, 8), (16, 0.01, 1)]
)
def test_proportional_rotation_turns_the_first_columns_of_each_half(
    width: int, part: float, factor: int
) -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    values = {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": part, "factor": factor}
    rope = RopeConfig.of(ConfigFields("rope", values), 512, 1e4, ["proportional"])
    found, scale = rope_frequencies(rope, width)
    turning = int(part * width // 2)
    expected = [1e6 ** (-2 * j / width) / factor if j < turning else 0.0 for j in range(width // 2)]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    theirs = LlamaConfig(**(BASE | {"head_dim": width}), rope_parameters=dict(values))
    check_close(found, ROPE_INIT_FUNCTIONS["proportional"](theirs)[0])
    assert (scale, rope.rotated(width)) == (1.0, width)


@pytest.mark.parametrize("part", [0.05, 0.25, 0.7, 1.0])
def test_two_columns_are_rotated_for_each_frequency(part: float) -> None:
    rope = RopeConfig("default", 1e4, 64, 64, part=part)
    for width in (10, 12, 96):
        assert rope.rotated(width) == 2 * len(rope_frequencies(rope, width)[0])
