"""GGUF files of Gemma 4: arrays of a number for each layer, keys of earlier layers, inputs per layer."""

import json
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from tests.cluster.packs import split_of
from tests.fakes.cluster import InProcessCluster
from tests.unit.model.gguf_files import Array, write_gguf
from tests.unit.model.test_gguf import checkpoint_numbers, losses, name_of, packed
from tests.unit.model.test_spec import stacked
from tpiedge.errors import UserError
from tpiedge.kernels.shared_library import kernel_library
from tpiedge.model.config import ModelConfig
from tpiedge.model.gguf.config import huggingface_config
from tpiedge.model.gguf.model import GgufModel
from tpiedge.model.spec import model_spec
from tpiedge.pack.panel_writer import load_quality
from tpiedge.pack.source import TensorSource
from tpiedge.pack.specs import Precision
from tpiedge.wire.fields import Compute

FULL, SLIDING = "full_attention", "sliding_attention"
TYPES = [SLIDING if letter == "s" else FULL for letter in "ssfsssf"]
SIZES: dict[str, Any] = {
    "model_type": "gemma4_text", "vocab_size": 300, "hidden_size": 256, "intermediate_size": 256,
    "num_hidden_layers": 7, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "global_head_dim": 64,
    "max_position_embeddings": 128, "sliding_window": 8, "layer_types": TYPES, "final_logit_softcapping": 30.0,
    "bos_token_id": None, "eos_token_id": [],
    "rope_parameters": {
        FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
        SLIDING: {"rope_type": "default", "rope_theta": 1e4},
    },
}  # fmt: skip
SMALL = SIZES | {
    "num_kv_shared_layers": 3, "use_double_wide_mlp": True, "hidden_size_per_layer_input": 256,
    "vocab_size_per_layer_input": 300,
}  # fmt: skip
LARGE = SIZES | {
    "attention_k_eq_v": True, "num_global_key_value_heads": 1, "hidden_size_per_layer_input": 0,
    "tie_word_embeddings": False, "vocab_size_per_layer_input": 300,
}  # fmt: skip
MIXTURE = LARGE | {
    "enable_moe_block": True,
    "num_experts": 5,
    "top_k_experts": 2,
    "moe_intermediate_size": 128,
}
MODELS = {"small": SMALL, "large": LARGE, "mixture": MIXTURE}
#: As llama.cpp writes E2B: tables of two types, and a projection that it does not quantise.
MIXED = {"": "Q4_0", "token_embd": "Q6_K", "per_layer_token_embd": "Q5_K", "per_layer_model_proj": "BF16"}


def keys_of(config: ModelConfig) -> dict[str, Any]:
    """Returns the keys of llama.cpp's converter."""
    attention = [layer.attention for layer in config.layers]
    heads, columns = [one.kv_heads for one in attention], [layer.ffn.columns for layer in config.layers]
    wide, narrow = config.layers[-1].attention.width, config.layers[0].attention.width
    keys = {
        "block_count": config.num_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": columns if len(set(columns)) > 1 else columns[0],
        "attention.head_count": config.num_heads,
        "attention.head_count_kv": heads if len(set(heads)) > 1 else heads[0],
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "attention.sliding_window": 8,
        "attention.sliding_window_pattern": [one.window is not None for one in attention],
        "attention.shared_kv_layers": sum(one.keys_of is not None for one in attention),
        "embedding_length_per_layer_input": config.input_columns // config.num_layers,
        "final_logit_softcapping": 30.0,
        "rope.freq_base": 1e6,
        "rope.freq_base_swa": 1e4,
    }
    if experts := config.first.experts:
        keys["expert_count"], keys["expert_used_count"] = experts.count, experts.chosen
        keys["expert_feed_forward_length"] = experts.columns
    for end, width in (("", wide), ("_swa", narrow)):
        for key in ("attention.key_length", "attention.value_length", "rope.dimension_count"):
            keys[key + end] = width
    return {f"gemma4.{key}": value for key, value in keys.items()}


def numbers_of(config: ModelConfig) -> dict[str, Array]:
    """Returns random tensors, by the names of the `gguf` package."""
    random = np.random.default_rng(5)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GEMMA4, config.num_layers)
    found = {"rope_freqs.weight": np.where(np.arange(32) < 8, 1, 1e30).astype(np.float32)}
    for source, shape in stacked(model_spec(config).source_shapes).items():
        name = name_of(source, names)
        numbers = random.standard_normal(shape, np.float32)
        numbers = numbers / np.sqrt(np.float32(shape[-1])) if len(shape) > 1 else 1 + numbers / 10
        numbers *= 16 if source.endswith("router.scale") else 1
        found[name if name.endswith((".weight", ".scale")) else f"{name}.weight"] = numbers
    return found


def write(
    folder: Path,
    values: Mapping[str, Any],
    kinds: Mapping[str, str],
    keys: Mapping[str, Any] | None = None,
    extra: Mapping[str, Array] | None = None,
    without: tuple[str, ...] = (),
) -> Path:
    config = ModelConfig.from_huggingface(values)
    tensors = {name: one for name, one in numbers_of(config).items() if name not in without} | dict(
        extra or {}
    )
    named = {key: value for key, value in (keys_of(config) | dict(keys or {})).items() if value is not None}

    def kind(name: str, tensor: Array) -> str:
        known = [part for part in kinds if name.startswith(part) or f".{part}" in name]
        return "F32" if tensor.ndim == 1 else kinds[max(known, key=len)]

    return write_gguf(folder / "f.gguf", "gemma4", named, tensors, kind)


@pytest.mark.parametrize("name", list(MODELS))
def test_config_equals_the_checkpoints(tmp_path: Path, name: str) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    model = GgufModel.open(write(tmp_path, MODELS[name], {"": "F32"}))
    expected = ModelConfig.from_huggingface(MODELS[name])
    assert model.config == expected
    saved = huggingface_config(model.header)
    with torch.device("meta"):
        theirs = AutoModelForCausalLM.from_config(AutoConfig.for_model(**saved))
    shapes = {one: tuple(value.shape) for one, value in theirs.state_dict().items()}
    if expected.tie_word_embeddings:
        del shapes["lm_head.weight"]
    assert stacked(model_spec(model.config).source_shapes) == shapes


@pytest.mark.parametrize("name", list(MODELS))
@pytest.mark.parametrize(
    ("kinds", "layers", "rounded"),
    [
        ({"": "F32"}, Precision.F32, []),
        ({"": "F16"}, Precision.F32, []),
        ({"": "Q8_0"}, Precision.Q8, []),
        ({"": "Q4_0", "token_embd": "Q8_0", "per_layer": "Q8_0"}, Precision.Q4, []),
        (MIXED, Precision.Q4, ["1 matrix of BF16 is rounded to q8"]),
        (MIXED | {"token_embd": "BF16"}, Precision.Q4, ["1 matrix of BF16 is rounded to q8"]),
    ],
)
def test_import_keeps_every_number(
    tmp_path: Path, name: str, kinds: Mapping[str, str], layers: Precision, rounded: list[str]
) -> None:
    path = write(tmp_path, MODELS[name], kinds)
    model = GgufModel.open(path)
    pack, back = packed(path, None, tmp_path)
    assert pack.precision is layers
    expected = checkpoint_numbers(path, model)
    assert set(back) == set(expected)
    for source, values in expected.items():
        if not rounded or source != "model.per_layer_model_projection.weight":
            np.testing.assert_array_equal(back[source], values, err_msg=source)
    assert losses(model, None) == (rounded if name == "small" else [])
    quality = load_quality(pack.path)
    assert [line.partition(" (")[0] for line in losses(model, quality)] == losses(model, None)


@pytest.mark.parametrize("name", list(MODELS))
def test_logits_are_those_of_transformers_with_the_files_numbers(tmp_path: Path, name: str) -> None:
    from transformers import AutoModelForCausalLM

    path = write(tmp_path, MODELS[name], MIXED)
    model, (pack, _) = GgufModel.open(path), packed(path, None, tmp_path)
    config = huggingface_config(model.header) | {"pad_token_id": 0}
    (tmp_path / "back" / "config.json").write_text(json.dumps(config))
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "back", attn_implementation="eager")
    ids = [5, 9, 100, 33, 7, 250, 11, 12, 13, 90, 17, 210, 45, 5]
    with torch.inference_mode():
        expected_TV = theirs(torch.tensor([ids])).logits[0]

    def logits(compute: Compute, shares: str) -> torch.Tensor:
        with InProcessCluster(pack.path, split_of(model.config, shares), compute=compute) as cluster:
            return cluster.logits(ids)

    assert (logits("f32", "1:0,0:1,2") - expected_TV).abs().max() < 1e-4 * expected_TV.abs().max()
    if kernel_library() is not None:
        found_TV = logits("int8", "1")
        assert (found_TV - expected_TV).norm() < 0.1 * expected_TV.norm()
        assert found_TV.equal(logits("int8", "1:0,0:1,2"))


def test_keys_that_no_layer_uses_are_ignored(tmp_path: Path) -> None:
    """Google's checkpoints and their files have them."""
    unused = {
        f"blk.{layer}.{part}.weight": np.ones((64, 256) if len(part) == 6 else 32, np.float32)
        for layer in (4, 5)
        for part in ("attn_k", "attn_v", "attn_k_norm")
    }
    plain, more = (tmp_path / name for name in ("plain", "more"))
    for folder in (plain, more):
        folder.mkdir()
    one = GgufModel.open(write(plain, SMALL, {"": "F32"}))
    other = GgufModel.open(write(more, SMALL, {"": "F32"}, extra=unused))
    assert (one.config, set(one.tensors)) == (other.config, set(other.tensors))


def test_gate_and_up_of_experts_may_be_apart(tmp_path: Path) -> None:
    fused = {
        name: values
        for name, values in numbers_of(ModelConfig.from_huggingface(MIXTURE)).items()
        if "gate_up" in name
    }
    parts = {
        name.replace("gate_up", part): np.ascontiguousarray(values[:, rows])
        for name, values in fused.items()
        for part, rows in (("gate", slice(128)), ("up", slice(128, None)))
    }
    found = []
    for name, changes in (("fused", {}), ("apart", {"extra": parts, "without": tuple(fused)})):
        (tmp_path / name).mkdir()
        model = GgufModel.open(write(tmp_path / name, MIXTURE, {"": "F32"}, **changes))
        with closing(TensorSource(model.tensors)) as source:
            found.append({one: source.read(one) for one in model.tensors})
    assert found[0].keys() == found[1].keys()
    for source, values in found[0].items():
        np.testing.assert_array_equal(found[1][source], values, err_msg=source)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"keys": {"gemma4.expert_count": 8}}, "top_k_experts is missing"),
        (
            {"extra": {"blk.0.ffn_gate_inp.weight": np.ones((8, 256), np.float32)}},
            "blk.0.ffn_gate_inp.weight has no place in a model of gemma4_text",
        ),
        ({"keys": {"gemma4.attention.head_count_kv": [2, 2, 1]}}, "head_count_kv has 3 numbers for 7 layers"),
        (
            {"keys": {"gemma4.feed_forward_length": [256, 512] * 3 + [256]}},
            r"intermediate_size is \[256, 512,",
        ),
        (
            {"keys": {"gemma4.attention.sliding_window_pattern": [True] * 5}},
            "layer_types has 5 entries for 7",
        ),
        ({"keys": {"gemma4.attention.sliding_window_pattern": 2}}, "layer_types is 2, not a list"),
        ({"keys": {"gemma4.attention.sliding_window_pattern": None}}, "no layer of full_attention"),
        ({"keys": {"gemma4.attention.sliding_window": None}}, "sliding_window is missing"),
        (
            {"keys": {"gemma4.attention.value_length_swa": 16}},
            r"value_length_swa is 16, not .* a head \(32\)",
        ),
        ({"keys": {"gemma4.attention.value_length": 32}}, r"value_length is 32, not .* a head \(64\)"),
        (
            {"keys": {"gemma4.attention.shared_kv_layers": 6, "gemma4.feed_forward_length": 256}},
            "num_kv_shared_layers is 6: no layer of full_attention",
        ),
        (
            {"keys": {"gemma4.attention.shared_kv_layers": 1 << 30, "gemma4.feed_forward_length": 256}},
            "num_kv_shared_layers is 1073741824",
        ),
        ({"keys": {"gemma4.attention.shared_kv_layers": 1 << 30}}, "intermediate_size is"),
        (
            {"keys": {"gemma4.rope.scaling.type": "linear", "gemma4.rope.scaling.factor": 8.0}},
            "only one of them",
        ),
        ({"keys": {"gemma4.attn_logit_softcapping": 50.0}}, "attn_logit_softcapping is set"),
        ({"without": ("blk.0.layer_output_scale.weight",)}, "layer_output_scale.weight is missing"),
        ({"without": ("per_layer_token_embd.weight",)}, "per_layer_token_embd.weight is missing"),
        ({"without": ("blk.0.attn_v.weight",)}, "blk.0.attn_v.weight is missing"),
        ({"without": ("rope_freqs.weight",)}, "rope_freqs.weight is missing"),
        ({"keys": {"gemma4.attention.shared_kv_layers": [3] * 7}}, "shared_kv_layers is .*, not a number"),
        ({"extra": {"rope_freqs.weight": np.full(32, 1e30, np.float32)}}, "partial_rotary_factor is 0"),
        (
            {"extra": {"rope_freqs.weight": np.where(np.arange(32) % 2, 1, 1e30).astype(np.float32)}},
            "the rule",
        ),
    ],
)
def test_what_is_not_supported_is_refused_in_one_line(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(UserError, match=words) as caught:
        GgufModel.open(write(tmp_path, SMALL, {"": "F32"}, **changes))
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("rotated", range(1, 32))
def test_parts_of_a_rotation_are_recovered_from_divisors(tmp_path: Path, rotated: int) -> None:
    divisors = np.where(np.arange(32) < rotated, 1, 1e30).astype(np.float32)
    model = GgufModel.open(write(tmp_path, SMALL, {"": "F32"}, extra={"rope_freqs.weight": divisors}))
    rope = model.config.layers[2].attention.rope
    assert rope is not None
    assert (rope.kind, int(rope.part * 64 // 2)) == ("proportional", rotated)
