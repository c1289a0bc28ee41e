"""GGUF files imported: the same numbers as the `gguf` package reads, and nothing lost on the way into a pack."""

import json
import os
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors.torch import load_file

from tests.unit.model.gguf_files import TinyGguf, dequantised, paired_back
from tools.fetch_model import FOLDER, MODELS
from tpiedge.errors import UserError
from tpiedge.model.config import ModelConfig
from tpiedge.model.gguf.model import GgufModel
from tpiedge.model.quantisation import rounded_matrices
from tpiedge.model.rotation import rope_frequencies
from tpiedge.model.spec import model_spec
from tpiedge.model.tokenizer import Tokenizer
from tpiedge.pack.export import export_safetensors
from tpiedge.pack.layout import Storage
from tpiedge.pack.panel_writer import Quality, load_quality
from tpiedge.pack.quantised import BLOCKS, BlockTensor, tensor_from_json
from tpiedge.pack.reader import Pack
from tpiedge.pack.source import TensorSource, tensor_to_json
from tpiedge.pack.specs import Precision, stack_source, whole_source
from tpiedge.pack.writer import write_pack

Array = np.ndarray[Any, np.dtype[Any]]

Q4, Q8, BF16, F32 = Precision.Q4, Precision.Q8, Precision.BF16, Precision.F32


PAIRED = ["llama", "granite", "smollm3", "mistral3"]
ARCHITECTURES = [*PAIRED, "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "olmo2"]


def name_of(source: str, names: gguf.TensorNameMap) -> str:
    """Returns the name in files. The package knows none of scales, which llama.cpp's converter gives to matrices."""
    for scale, matrix in (("router.scale", "router.proj"), ("router.per_expert_scale", "experts.down_proj")):
        source = source.replace(scale, f"{matrix}.scale")
    return names.get_name(source, (".weight", ".bias", ".scale")) or ""


def checkpoint_numbers(path: Path, model: GgufModel) -> dict[str, Array]:
    """Checkpoint's name -> f32, by the package alone."""
    found, architecture = dequantised(path), str(model.header.fields.raw("general.architecture"))
    kind = gguf.MODEL_ARCH[architecture.upper()]
    names = gguf.get_tensor_name_map(kind, model.config.num_layers)
    numbers: dict[str, Array] = {}
    for source in (whole_source(one)[0] for one in model.tensors):
        if item := stack_source(source):
            source = item.tensor
        name = name_of(source, names)
        values = found[name if name in found else f"{name}.weight"]
        if architecture in PAIRED and source.split(".")[-2] in ("q_proj", "k_proj"):
            values = paired_back(values, model.config.head_dim)
        if architecture in ("gemma2", "gemma3") and source.endswith("norm.weight"):
            values = values - np.float32(1)
        numbers[source] = values
    return numbers


def packed(path: Path, precision: Precision | None, out: Path) -> tuple[Pack, Mapping[str, Array]]:
    """The file's pack, and its numbers as `unpack` gives them back."""
    model = GgufModel.open(path)
    with closing(TensorSource(model.tensors)) as source:
        write_pack(model_spec(model.config), source, model.storage(precision), out / "pack")
    pack = Pack.open(out / "pack")
    export_safetensors(pack, out / "back")
    found = load_file(out / "back" / "model.safetensors")
    return pack, {name: values.float().numpy() for name, values in found.items()}


def losses(model: GgufModel, quality: Quality | None) -> list[str]:
    return [*rounded_matrices(model.tensors, model_spec(model.config), model.storage(None), quality)]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(("kind", "precision"), [("Q4_0", Q4), ("Q8_0", Q8), ("F16", F32), ("F32", F32)])
def test_gguf_import_is_lossless(tmp_path: Path, architecture: str, kind: str, precision: Precision) -> None:
    sizes = {"hidden": 96, "head_dim": 64, "heads": 4, "kv_heads": 2, "ffn": 288}
    # The package knows no output matrix of Gemma 2.
    tiny = TinyGguf(architecture, kinds={"": kind}, tied=architecture == "gemma2", **sizes)
    path = tiny.write(tmp_path / "f.gguf")
    model = GgufModel.open(path)
    pack, back = packed(path, None, tmp_path)
    assert pack.precision is precision
    expected = checkpoint_numbers(path, model)
    assert set(back) == set(expected)
    for name, values in expected.items():
        np.testing.assert_array_equal(back[name], values, err_msg=name)
    quality = load_quality(pack.path)
    assert (quality is not None) == precision.quantised
    assert quality is None or quality.total.noise == 0
    assert losses(model, quality) == []


def test_older_files_have_queries_keys_and_values_apart(tmp_path: Path) -> None:
    whole, split = (
        GgufModel.open(TinyGguf("phi3", split=split).write(tmp_path / f"{split}.gguf"))
        for split in (False, True)
    )
    assert split.config == whole.config
    assert split.tensors.keys() == whole.tensors.keys()
    with closing(TensorSource(whole.tensors)) as one, closing(TensorSource(split.tensors)) as other:
        for name in whole.tensors:
            np.testing.assert_array_equal(one.read(name), other.read(name), err_msg=name)


@pytest.mark.parametrize("kind", ["F32", "F16"])
def test_norms_inexact_in_bf16_stay_f32(tmp_path: Path, kind: str) -> None:
    """Beside matrices in bf16 norms are bf16, unless that changes one."""
    tiny = TinyGguf(kinds={"": "BF16"}, layers=3, exact_vectors=True, vector_kind=kind)
    model = GgufModel.open(tiny.write(tmp_path / "f.gguf"))
    assert model.storage(None) == Storage.of(BF16, tied=False)
    assert losses(model, None) == []
    tiny.exact_vectors = False
    path = tiny.write(tmp_path / "f.gguf")
    model = GgufModel.open(path)
    assert model.storage(None) == replace(Storage.of(BF16, tied=False), vectors_f32=True)
    assert losses(model, None) == []
    pack, back = packed(path, None, tmp_path)
    assert {vector.precision for key in (0, "head") for vector in pack.layout(key).vectors} == {F32}
    for name, values in checkpoint_numbers(path, model).items():
        np.testing.assert_array_equal(back[name], values, err_msg=name)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
def test_norms_that_are_stored_with_one_added_are_read_without_it(tmp_path: Path, kind: str) -> None:
    path = TinyGguf("gemma3", layers=1, vector_kind=kind).write(tmp_path / "f.gguf")
    tensors, stored = GgufModel.open(path).tensors, dequantised(path)
    with closing(TensorSource(tensors)) as source:
        for name, other in (
            ("post_feedforward_layernorm", "post_ffw_norm"),
            ("self_attn.q_norm", "attn_q_norm"),
        ):
            tensor = tensors[f"model.layers.0.{name}.weight"]
            values = source.read(f"model.layers.0.{name}.weight")[0]
            assert (tensor.dtype, values.dtype) == ("F32", np.float32)
            np.testing.assert_array_equal(values + np.float32(1), stored[f"blk.0.{other}.weight"])
            assert tensor_from_json(json.loads(json.dumps(tensor_to_json(tensor, str)))) == tensor


@pytest.mark.parametrize("scale", [0x7E00, 0x7C00])
def test_non_finite_scale_is_refused(tmp_path: Path, scale: int) -> None:
    path = TinyGguf(layers=1).write(tmp_path / "f.gguf")
    model = GgufModel.open(path)
    data = bytearray(path.read_bytes())
    at = model.tensors["model.layers.0.mlp.down_proj.weight"].offset
    data[at : at + 2] = scale.to_bytes(2, "little")
    path.write_bytes(data)
    with pytest.raises(UserError, match=r"mlp\.down_proj\.weight, row 0 .* cannot be quantised"):
        packed(path, None, tmp_path)


@pytest.mark.parametrize(
    "kind", ["Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K", "Q2_K", "Q3_K", "IQ4_NL", "IQ4_XS"]
)
def test_block_types_dequantise_like_gguf_package(tmp_path: Path, kind: str) -> None:
    """The package writes few of them: any bits are valid blocks."""
    weights, nbytes = BLOCKS[kind]
    random = np.random.default_rng(2)
    raw = random.integers(0, 256, (12, 512 // weights * nbytes), np.uint8)
    path = tmp_path / "f"
    path.write_bytes(bytes(7) + raw.tobytes())
    with np.errstate(all="ignore"):
        expected = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind])
    with closing(TensorSource({"w": BlockTensor(kind, (12, 512), path, 7)})) as source:
        np.testing.assert_array_equal(source.read("w", range(2, 7)), expected[2:7])
        np.testing.assert_array_equal(source.read("w", cols=range(130, 330)), expected[:, 130:330])
        np.testing.assert_array_equal(source.read("w", range(3, 7), range(255, 257)), expected[3:7, 255:257])


def test_mixed_file_precision_follows_most_weights(tmp_path: Path) -> None:
    kinds = {"": "Q4_0", "blk.0.ffn_down": "Q4_1", "output.weight": "Q8_0", "token_embd": "F16"}
    path = TinyGguf(kinds=kinds).write(tmp_path / "f.gguf")
    model = GgufModel.open(path)
    storage = model.storage(None)
    assert storage == Storage(Q4, BF16, Q8, kept={"model.layers.0.mlp.down_proj.weight": Precision.Q4_1})
    quality = load_quality(packed(path, None, tmp_path)[0].path)
    assert losses(model, quality) == ["1 matrix of F16 is rounded to bf16"]
    assert losses(model, None) == losses(model, quality)  # by the types, where the pack's quality is lost
    assert model.storage(BF16).head is BF16
    assert model.storage(Q4) == Storage(Q4, BF16, Q8)
    mostly = GgufModel.open(TinyGguf(kinds={"": "Q4_0", "ffn": "Q5_0"}).write(tmp_path / "g.gguf"))
    assert mostly.storage(None).layers is Precision.Q5_0


def config_of(tmp_path: Path, **changes: Any) -> Any:
    return GgufModel.open(TinyGguf(**{"layers": 1, **changes}).write(tmp_path / "f.gguf")).config


def llama3_divisors(original: int, factor: float = 8.0, head_dim: int = 32) -> Array:
    """The rule, number by number: long waves are slowed by the factor, short ones kept, the others in between."""
    divisors = []
    for index in range(head_dim // 2):
        wave = 2 * np.pi * 10000.0 ** (2 * index / head_dim)
        smooth = (original / wave - 1.0) / (4.0 - 1.0)
        divisors.append(factor if smooth < 0 else 1.0 if smooth > 1 else 1 / ((1 - smooth) / factor + smooth))
    return np.array(divisors, np.float32)


@pytest.mark.parametrize(("original", "factor"), [(8192, 8.0), (8192, 32.0), (256, 4.0)])
def test_llama3_rope_scaling_is_recovered_from_divisors(tmp_path: Path, original: int, factor: float) -> None:
    divisors = llama3_divisors(original, factor)
    rope = config_of(tmp_path, extra={"rope_freqs.weight": divisors}).rope
    assert (rope.kind, rope.factor, rope.original_positions) == ("llama3", factor, original)
    plain = 10000.0 ** (-np.arange(0, 32, 2) / 32)
    np.testing.assert_allclose(rope_frequencies(rope, 32)[0], plain / divisors, rtol=1e-4)


_SCALING = "llama.rope.scaling."
_LINEAR = {f"{_SCALING}type": "linear", f"{_SCALING}factor": 4.0}
_YARN = {f"{_SCALING}type": "yarn", f"{_SCALING}factor": 4.0, f"{_SCALING}original_context_length": 32}
_YARN_FACTOR = f"{_SCALING}yarn_attn_factor"
_IDS = {"token_type": [3, 3, 3, 1, 3], "bos_token_id": 0, "eos_token_id": 1}
_PIECES = ["<unk>", "<s>", "<e>", "a"]


def texts(**keys: object) -> dict[str, Any]:
    return {"keys": {f"tokenizer.ggml.{key}": value for key, value in keys.items()}}


READ: list[tuple[dict[str, Any], dict[str, object]]] = [
    (
        {"architecture": "qwen3", "heads": 4, "kv_heads": 2, "head_dim": 32, "tied": True},
        {
            "model_type": "qwen3", "hidden_size": 64, "intermediate_size": 160, "num_heads": 4, "num_kv_heads": 2,
            "head_dim": 32, "vocab_size": 300, "tie_word_embeddings": True, "first.attention.head_norms": True,
            "rms_norm_eps": 1e-5, "rope.theta": 10000.0,
        },
    ),
    ({"architecture": "qwen2"}, {"first.attention.qkv_bias": True}),
    ({}, {"tie_word_embeddings": False}),
    ({"extra": {"rope_freqs.weight": np.ones(16, np.float32)}}, {"rope.kind": "default"}),
    ({"keys": _LINEAR}, {"rope.kind": "linear", "rope.factor": 4.0}),
    ({"keys": {f"{_SCALING}factor": 4.0}}, {"rope.kind": "linear", "rope.factor": 4.0}),
    ({"keys": _LINEAR | {f"{_SCALING}factor": 1.0}}, {"rope.kind": "default"}),
    ({"keys": {"llama.rope.scale_linear": 2.0}}, {"rope.kind": "linear", "rope.factor": 2.0}),
    ({"keys": _YARN}, {"rope.kind": "yarn", "rope.factor": 4.0, "rope.original_positions": 32}),
    ({"keys": _YARN}, {"rope.attention_factor": None}),
    ({"keys": _YARN | {_YARN_FACTOR: 1.5}}, {"rope.attention_factor": 1.5}),
    (texts(tokens=["<s>", "</s>", "<|eot_id|>", "a", "<|im_end|>"], **_IDS), {"bos_id": 0, "eos_ids": (1, 2, 4)}),
    # SentencePiece's vocabularies begin a text with 1 and end it with 2.
    (texts(model="llama", tokens=_PIECES), {"bos_id": 1, "eos_ids": (2,)}),
    (texts(model="llama", tokens=_PIECES, bos_token_id=999, eos_token_id=3), {"bos_id": 1, "eos_ids": (3,)}),
    (texts(model="gpt2", tokens=_PIECES), {"bos_id": None, "eos_ids": ()}),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "expected"), READ)
def test_config_is_read_from_gguf_keys(
    tmp_path: Path, changes: dict[str, Any], expected: dict[str, object]
) -> None:
    config = config_of(tmp_path, **changes)
    assert {name: attrgetter(name)(config) for name in expected} == expected


_SIZES = {
    "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 7, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 32, "vocab_size": 300, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False, "bos_token_id": None, "eos_token_id": [],
}  # fmt: skip
_TURNS = np.array([1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 5.5, 6, 6.5], np.float32)
_ROPE_FACTORS = {"rope_factors_short.weight": _TURNS, "rope_factors_long.weight": 2 * _TURNS}
_YARN3 = {"type": "yarn", "factor": 4.0, "original_context_length": 32, "yarn_beta_fast": 16.0}

#: Architecture, its keys and tensors beside the usual ones, and config.json of the checkpoint.
CONFIGS: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    (
        "gemma2",
        {"attention.sliding_window": 16, "attention.sliding_window_pattern": 2, "attn_logit_softcapping": 40.0,
         "final_logit_softcapping": 20.0},
        {},
        {"model_type": "gemma2", "sliding_window": 16, "attn_logit_softcapping": 40.0,
         "final_logit_softcapping": 20.0, "query_pre_attn_scalar": 32},
    ),
    ("gemma2", {}, {}, {"model_type": "gemma2", "num_hidden_layers": 46, "head_dim": 16, "query_pre_attn_scalar": 32}),
    (
        "gemma3",
        {"attention.sliding_window": 16, "rope.freq_base": 1e6, "rope.scaling.type": "linear",
         "rope.scaling.factor": 8.0, "final_logit_softcapping": 30.0},
        {},
        {"model_type": "gemma3_text", "sliding_window": 16, "rope_theta": 1e6, "rope_local_base_freq": 1e4,
         "rope_scaling": {"rope_type": "linear", "factor": 8.0}, "query_pre_attn_scalar": 32,
         "final_logit_softcapping": 30.0},
    ),
    (
        "gemma3",
        {"attention.sliding_window": 8, "attention.sliding_window_pattern": 2, "rope.freq_base_swa": 5000.0},
        {},
        {"model_type": "gemma3_text", "sliding_window": 8, "sliding_window_pattern": 2, "rope_theta": 1e4,
         "rope_local_base_freq": 5000.0, "query_pre_attn_scalar": 32},
    ),
    ("gemma3", {}, {},
     {"model_type": "gemma3_text", "sliding_window": None, "rope_theta": 1e4, "num_hidden_layers": 62, "head_dim": 16,
      "query_pre_attn_scalar": 32}),
    (
        "granite",
        {"attention.scale": 0.015625, "embedding_scale": 12.0, "residual_scale": 0.22, "logit_scale": 8.0},
        {},
        {"model_type": "granite", "attention_multiplier": 0.015625, "embedding_multiplier": 12,
         "residual_multiplier": 0.22, "logits_scaling": 8},
    ),
    ("granite", {"logit_scale": 8.0}, {},
     {"model_type": "granite", "attention_multiplier": 32**-0.5, "logits_scaling": 8}),
    ("smollm3", {"rope.freq_base": 5e6}, {}, {"model_type": "smollm3", "rope_theta": 5e6}),
    (
        "mistral3",
        {f"rope.scaling.{key}": value for key, value in _YARN3.items()}
        | {"rope.scaling.yarn_log_multiplier": 1.0, "attention.temperature_scale": 0.1},
        {},
        {"model_type": "ministral3", "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32,
            "beta_fast": 16.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1,
        }},
    ),
    ("mistral3", {}, {}, {"model_type": "ministral3", "rope_parameters": {"rope_theta": 1e4, "mscale": 1.0}}),
    (
        "phi3",
        {"rope.dimension_count": 24, "rope.scaling.original_context_length": 32, "attention.sliding_window": 0,
         "rope.scaling.attn_factor": 1.1832159566199232},
        _ROPE_FACTORS,
        {"model_type": "phi3", "partial_rotary_factor": 0.75, "original_max_position_embeddings": 32,
         "rope_scaling": {"type": "longrope", "attention_factor": 1.183216, "short_factor": _TURNS.tolist(),
                          "long_factor": (2 * _TURNS).tolist()}},
    ),
    ("olmo2", {"rope.freq_base": 5e5}, {}, {"model_type": "olmo2", "rope_theta": 5e5}),
    (
        "olmo2",
        {f"rope.scaling.{key}": value for key, value in _YARN3.items()}
        | {"rope.scaling.yarn_attn_factor": 1.6, "attention.sliding_window": 16, "rope.freq_base": 5e5,
           "attention.sliding_window_pattern": [True, True, False, True, False, True, True]},
        {},
        {"model_type": "olmo3", "sliding_window": 16,
         "layer_types": [f"{'full' if layer in (2, 4) else 'sliding'}_attention" for layer in range(7)],
         "rope_parameters": {
             "full_attention": {
                 "rope_type": "yarn", "rope_theta": 5e5, "factor": 4.0, "original_max_position_embeddings": 32,
                 "beta_fast": 16.0, "attention_factor": 1.6,
             },
             "sliding_attention": {"rope_theta": 5e5},
         }},
    ),
    ("olmo2", {"attention.sliding_window": 16, "rope.freq_base": 5e5, "rope.freq_base_swa": 1e4}, {},
     {"model_type": "olmo3", "sliding_window": 16, "rope_parameters": {
         "full_attention": {"rope_theta": 5e5}, "sliding_attention": {"rope_theta": 1e4}}}),
    ("phi3", {"attention.sliding_window": 20, "rope.scaling.original_context_length": 128}, {},
     {"model_type": "phi3", "sliding_window": 20, "original_max_position_embeddings": 128}),
]  # fmt: skip


@pytest.mark.parametrize(("architecture", "keys", "extra", "values"), CONFIGS)
def test_config_of_architecture_equals_the_checkpoints(
    tmp_path: Path, architecture: str, keys: dict[str, Any], extra: dict[str, Any], values: dict[str, Any]
) -> None:
    expected = ModelConfig.from_huggingface(_SIZES | values)
    named = {f"{architecture}.{key}": value for key, value in keys.items()}
    sizes = {"layers": expected.num_layers, "head_dim": expected.head_dim}
    assert config_of(tmp_path, architecture=architecture, keys=named, extra=extra, **sizes) == expected


_PERIOD = "gemma2.attention.sliding_window_pattern"
REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {"architecture": "glm4"},
        "the architecture is 'glm4'; supported are gemma2, gemma3, gemma4, gpt-oss, granite, ",
    ),
    (
        {"architecture": "phi3", "keys": {"phi3.rope.dimension_count": [16, 16]}},
        "dimension_count is .*, not a number",
    ),
    ({"architecture": "gemma2", "keys": {_PERIOD: 6}}, "sliding_window_pattern is not 2"),
    ({"architecture": "gemma2", "keys": {_PERIOD: [True, False]}}, "sliding_window_pattern is "),
    (
        {"architecture": "gemma3", "keys": {"gemma3.attn_logit_softcapping": 50.0}},
        "attn_logit_softcapping is set",
    ),
    (
        {
            "architecture": "olmo2",
            "keys": {
                "olmo2.attention.sliding_window": 8,
                "olmo2.attention.sliding_window_pattern": [True, False],
            },
        },
        r"layer_types is .*, not a list of at most 1 entries",
    ),
    ({"keys": {_YARN_FACTOR: 1.2}}, "yarn_attn_factor is set"),
    ({"keys": _YARN | {_YARN_FACTOR: 1.0}}, "yarn_attn_factor is 1, which may mean none"),
    (
        {"architecture": "phi3", "split": True, "without": ("blk.0.attn_k.weight",)},
        "blk.0.attn_k.weight is missing",
    ),
    ({"keys": {"llama.residual_scale": 0.5}}, "llama.residual_scale is set"),
    ({"keys": {"llama.rope.scaling.yarn_log_multiplier": 0.5}}, "yarn_log_multiplier is set"),
    ({"extra": _ROPE_FACTORS}, "rope_type is 'longrope'; supported are"),
    (
        {"architecture": "phi3", "extra": dict([*_ROPE_FACTORS.items()][:1])},
        "rope_factors_long.weight is not one f32",
    ),
    ({"architecture": "phi3", "extra": _ROPE_FACTORS}, "short_factor has 12 numbers for heads of 32"),
    (
        {"architecture": "phi3", "keys": {"phi3.attention.head_count": 3}},
        "num_attention_heads|attn_qkv.weight has the shape",
    ),
    ({"architecture": "phi3", "keys": {"phi3.feed_forward_length": 80}}, "ffn_up.weight has the shape"),
    (
        {"architecture": "gemma3", "without": ("blk.0.post_ffw_norm.weight",)},
        "post_ffw_norm.weight is missing",
    ),
    ({"keys": {"split.count": 3}}, "is one part of several: give the first, whose name ends in -00001-of-"),
    ({"keys": {"llama.expert_count": 8}}, "blk.0.ffn_gate_exps.weight is missing"),
    ({"keys": {"llama.rope.dimension_count": 16}}, "rope.dimension_count is 16, not the numbers of a head"),
    ({"keys": {"llama.rope.scaling.type": "longrope"}}, "supported are none, linear, yarn"),
    ({"keys": {"llama.attention.layer_norm_rms_epsilon": 5.0}}, "layer_norm_rms_epsilon is 5.0"),
    ({"keys": {"llama.attention.head_count": 3}}, "num_attention_heads|has the shape"),
    ({"keys": {"llama.attention.head_count": [2, 2, 2]}}, "head_count is"),
    ({"keys": {"llama.feed_forward_length": ["160"]}}, "llama.feed_forward_length is"),
    ({"keys": {"llama.embedding_length": 0}}, "llama.embedding_length is 0"),
    ({"keys": {"llama.block_count": 2}}, "the tensor blk.1.attn_q.weight is missing"),
    ({"without": ("blk.0.ffn_up.weight",)}, "the tensor blk.0.ffn_up.weight is missing"),
    ({"without": ("token_embd.weight",)}, "token_embd.weight is missing"),
    ({"keys": {"llama.feed_forward_length": 128}}, "blk.0.ffn_gate.weight has the shape"),
    ({"extra": {"blk.0.attn_sinks.weight": np.ones(4, np.float32)}}, "blk.0.attn_sinks.weight has no place"),
    ({"extra": {"position_embd.weight": np.ones((8, 64), np.float32)}}, "position_embd.weight has no place"),
    (
        {"extra": {"output.bias": np.ones(300, np.float32)}},
        "output.bias has no place in a model of llama: without it",
    ),
    ({"extra": {"rope_freqs.weight": np.full(16, 1.5, np.float32)}}, "does not follow the rule of Llama 3"),
    ({"extra": {"rope_freqs.weight": np.full(16, np.nan, np.float32)}}, "rope_parameters|rope_freqs"),
    (
        {"kinds": {"": "F32"}, "head_dim": 5, "extra": {"rope_freqs.weight": np.full(2, 2, np.float32)}},
        "rope_freqs.weight is not one f32 for each frequency",
    ),
    ({"keys": {"llama.attention.scale": 0.5}}, "llama.attention.scale is set"),
    ({"head_dim": 1056, "extra": {"rope_freqs.weight": np.full(528, 2, np.float32)}}, "key_length is 1056"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_unsupported_gguf_is_refused_in_one_line(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message) as caught:
        config_of(tmp_path, **changes)
    assert "\n" not in str(caught.value)
    assert "f.gguf" in str(caught.value)


def test_config_biases_follow_tensors_in_file(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    sizes = dict.fromkeys(("attn_q", "attn_output", "ffn_down"), 64)
    sizes |= {"attn_k": 32, "attn_v": 32, "ffn_gate": 160, "ffn_up": 160}
    extra = {
        f"blk.0.{name}.bias": random.standard_normal(size).astype(np.float32) for name, size in sizes.items()
    }
    path = TinyGguf(layers=1, extra=extra).write(tmp_path / "f.gguf")
    model = GgufModel.open(path)
    attention, ffn = model.config.first.attention, model.config.first.ffn
    assert (attention.qkv_bias, attention.o_bias, ffn.bias) == (True, True, True)
    back = packed(path, None, tmp_path)[1]
    for name, values in checkpoint_numbers(path, model).items():
        np.testing.assert_array_equal(back[name], values, err_msg=name)
    only_qkv = {name: values for name, values in extra.items() if "output" not in name and "ffn" not in name}
    assert not config_of(tmp_path, extra=only_qkv).first.attention.o_bias


def split_model(folder: Path) -> tuple[GgufModel, list[Path]]:
    """Returns the model in one file, and the parts of the same model."""
    folder.mkdir(exist_ok=True)
    frequencies = {"rope_freqs.weight": np.ones(16, np.float32)}  # in the last part
    model = TinyGguf(layers=3, extra=frequencies)
    first = model.write(folder / "tiny-Q4_0.gguf", tensors_per_part=12)
    parts = sorted(folder.iterdir())
    assert parts[0] == first
    assert len(parts) == 3
    return GgufModel.open(model.write(folder / "whole.gguf")), parts


def test_split_file_is_read_like_the_whole_file(tmp_path: Path) -> None:
    whole, parts = split_model(tmp_path)
    split = GgufModel.open(parts[0])
    assert split.config == whole.config
    assert {tensor.file for tensor in split.tensors.values()} == set(parts)
    with closing(TensorSource(split.tensors)) as one, closing(TensorSource(whole.tensors)) as other:
        assert split.tensors.keys() == whole.tensors.keys()
        for name in split.tensors:
            assert np.array_equal(one.read(name), other.read(name)), name
    assert split.stem == "tiny-Q4_0"
    before = split.fingerprint
    os.utime(parts[2], (1, 1))
    assert GgufModel.open(parts[0]).fingerprint != before


def swap(one: Path, other: Path) -> None:
    held = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(held)


@pytest.mark.parametrize(("given", "change", "words"), [
    (1, None, "give the first, whose name ends in -00001-of-00003.gguf"),
    (0, lambda parts: parts[2].unlink(), "cannot be read: No such file"),
    (0, lambda parts: parts[2].write_bytes(parts[1].read_bytes()), "is not part 3 of tiny-Q4_0-00001-of-00003"),
    (0, lambda parts: parts[1].write_bytes(b"GGUF"), "is not a GGUF file"),
    (0, lambda parts: swap(parts[1], parts[2]), "is not part 2 of tiny-Q4_0-00001-of-00003"),
])  # fmt: skip
def test_split_file_with_wrong_parts_is_refused(
    tmp_path: Path, given: int, change: Callable[[list[Path]], object] | None, words: str
) -> None:
    _, parts = split_model(tmp_path)
    if change is not None:
        change(parts)
    with pytest.raises(UserError, match=words):
        GgufModel.open(parts[given])


def test_gemma_3_270m_keeps_every_number_and_text(tmp_path: Path) -> None:
    path = FOLDER / MODELS["gemma3"].file
    if not path.is_file():
        pytest.skip(f"downloads: {path} is not there: python tools/fetch_model.py gemma3")
    model = GgufModel.open(path)
    ids = model.config.bos_id, model.config.eos_ids
    assert (*ids, model.config.first.attention.window) == (2, (1, 106), 512)
    back = packed(path, None, tmp_path)[1]
    for name, values in checkpoint_numbers(path, model).items():
        np.testing.assert_array_equal(back[name], values, err_msg=name)
    for name, data in model.text()[0].items():
        (tmp_path / name).write_bytes(data)
    tokenizer = Tokenizer.open(tmp_path)
    ids = [2, 818, 5279, 529, 7001, 563]
    assert tokenizer.encode("The capital of France is") == ids
    for text in ("<start_of_turn>user\n  Hi, naïve 世界 👩‍👧!\n\n\n\t<end_of_turn>\n", " a  b\u200b<table>½"):
        assert tokenizer.decode(tokenizer.encode(text), skip_special=False) == f"<bos>{text}"
