"""The model's numbers from the keys of a GGUF file: as a config.json, which is then read and checked like any other."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from tpiedge.errors import UserError
from tpiedge.model.config import ModelConfig
from tpiedge.model.fields import ConfigFields
from tpiedge.model.gguf.file import GgufHeader
from tpiedge.model.gguf.named_ids import end_ids, named_id
from tpiedge.model.rope import RopeConfig, rope_frequencies
from tpiedge.sanitise import quote
from tpiedge.units import counted

ARCHITECTURES: Mapping[str, str] = MappingProxyType(
    {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
)

_SAMPLING = MappingProxyType(
    {
        "temperature": "general.sampling.temp",
        "top_k": "general.sampling.top_k",
        "top_p": "general.sampling.top_p",
        "min_p": "general.sampling.min_p",
        "repetition_penalty": "general.sampling.penalty_repeat",
    }
)

_MAX = 1 << 31
_POOLINGS = (None, "mean", "cls", "last", "rank")
"""By the number of the format."""
_BY_LAYER = ("attention.head_count", "attention.head_count_kv", "feed_forward_length")
# The rule of Llama 3 is given by its results alone: these are the contexts of pretraining that are tried.
_LLAMA3_CONTEXTS = tuple(1 << power for power in (13, 12, 14, 11, 15, 16, 17, 10, 9, 8, 7, 6, 5))
_ROPE_TOLERANCE = 1e-4
_FREQUENCIES = "rope_freqs.weight"


def gguf_config(header: GgufHeader) -> ModelConfig:
    """Raises UserError that names the file and the key."""
    return _with_biases(
        header, ModelConfig.from_huggingface(huggingface_config(header), f"{header.path}, as config.json")
    )


def huggingface_config(header: GgufHeader) -> dict[str, object]:
    """The same as the object in a config.json."""
    name = _architecture(header)
    keys = _by_layer(ConfigFields(str(header.path), header.values), name)
    hidden, heads = _size(keys, f"{name}.embedding_length"), _size(keys, f"{name}.attention.head_count")
    head_dim = _size(keys, f"{name}.attention.key_length", max(1, hidden // heads))
    _refuse_unsupported(keys, name, head_dim)
    context = _size(keys, f"{name}.context_length")
    bos, ends = _ids_of_text(header)
    return {
        "architectures": [ARCHITECTURES[name]],
        "model_type": name,
        "hidden_size": hidden,
        "intermediate_size": _size(keys, f"{name}.feed_forward_length"),
        "num_hidden_layers": _size(keys, f"{name}.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": _size(keys, f"{name}.attention.head_count_kv", heads),
        "head_dim": head_dim,
        "vocab_size": _vocabulary(header),
        "rms_norm_eps": _single(keys.number(f"{name}.attention.layer_norm_rms_epsilon", 0, 1)),
        "max_position_embeddings": context,
        "rope_parameters": _rope(header, keys, name, head_dim, context),
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "attention_bias": "blk.0.attn_output.bias" in header.tensors,
        "mlp_bias": "blk.0.ffn_down.bias" in header.tensors,
        "hidden_act": "silu",
        "bos_token_id": bos,
        "eos_token_id": ends,
        "dtype": "bfloat16" if header.tensors["token_embd.weight"].kind == "BF16" else "float32",
    }


def _by_layer(keys: ConfigFields, name: str) -> ConfigFields:
    """The keys, where those that may have a value for each layer have the one that is the same for all layers."""
    found = {key: keys.raw(key) for key in keys.names()}
    for key in (f"{name}.{part}" for part in _BY_LAYER):
        values = found.get(key)
        if not isinstance(values, np.ndarray):
            continue
        layers = _size(keys, f"{name}.block_count")
        if len(values) != layers:
            keys.refuse(key, f"has {counted(len(values), 'entry', 'entries')} for {counted(layers, 'layer')}")
        if np.any(values != values[0]):
            keys.refuse(key, "differs from layer to layer, which is not supported")
        found[key] = values[0].item()
    return ConfigFields(keys.where, found)


def generation_config(header: GgufHeader) -> dict[str, object]:
    """What the file recommends for drawing tokens, as the object in a generation_config.json; empty where nothing."""
    return {name: header.values[key] for name, key in _SAMPLING.items() if header.values.get(key) is not None}


def pooling(header: GgufHeader) -> str | None:
    """Pooling of embeddings as the file names it; None where it does not. Raises UserError."""
    key = f"{_architecture(header)}.pooling_type"
    kind = ConfigFields(str(header.path), header.values).integer(key, 0, _MAX, 0)
    return _POOLINGS[kind] if kind < len(_POOLINGS) else f"pooling_type {kind}"


def _architecture(header: GgufHeader) -> str:
    name = header.values.get("general.architecture")
    if not isinstance(name, str) or name not in ARCHITECTURES:
        raise UserError(
            f"{header.path}: the architecture is {quote(name)}; supported are {', '.join(ARCHITECTURES)}"
        )
    if ConfigFields(str(header.path), header.values).integer("split.count", 0, _MAX, 1) > 1:
        raise UserError(f"{header.path} is one part of several: join them with llama-gguf-split --merge")
    return name


def _refuse_unsupported(keys: ConfigFields, name: str, head_dim: int) -> None:
    """What these architectures can be combined with that the engine does not compute."""
    if keys.optional_integer(f"{name}.expert_count", 0, _MAX):
        keys.refuse(
            f"{name}.expert_count", "is set: mixture-of-experts models are not supported, only dense ones"
        )
    for key in (f"{name}.attention.value_length", f"{name}.rope.dimension_count"):
        if keys.integer(key, 1, _MAX, head_dim) != head_dim:
            keys.refuse(key, f"is {quote(keys.raw(key))}, not the numbers of a head ({head_dim})")
    for key in (f"{name}.attention.scale", f"{name}.logit_scale", f"{name}.embedding_scale"):
        if keys.optional_number(key, -_MAX, _MAX) not in (None, 0, 1):
            keys.refuse(key, "is set, which is not supported")


def _vocabulary(header: GgufHeader) -> int:
    table = header.tensors.get("token_embd.weight")
    if table is None:
        raise UserError(f"{header.path}: the tensor token_embd.weight is missing; download the file again")
    return table.shape[0]


def _rope(
    header: GgufHeader, keys: ConfigFields, name: str, head_dim: int, context: int
) -> dict[str, object]:
    scaling = f"{name}.rope.scaling"
    kind = _scaling_kind(keys, name)
    theta: dict[str, object] = {
        "rope_theta": _single(keys.number(f"{name}.rope.freq_base", 1.0001, 1e12, 10000.0))
    }
    if _FREQUENCIES in header.tensors:
        rule = _llama3(header, keys, theta, head_dim)
        if kind != "none" and rule["rope_type"] != "default":
            keys.refuse(
                f"{scaling}.type", f"is {quote(kind)} beside {_FREQUENCIES}: only one of them is supported"
            )
        if kind == "none":
            return theta | rule
    if kind == "none":
        return theta | {"rope_type": "default"}
    if kind == "linear":
        return theta | {"rope_type": "linear", "factor": _linear_factor(keys, name)}
    if kind != "yarn":
        keys.refuse(f"{scaling}.type", f"is {quote(kind)}; supported are none, linear, yarn")
    factor = _single(keys.number(f"{scaling}.factor", 1e-3, 1e6))
    return theta | {"rope_type": kind, "factor": factor} | _yarn(keys, scaling, context)


def _scaling_kind(keys: ConfigFields, name: str) -> str:
    """A factor without a type is linear; a linear factor of 1 is none."""
    kind = keys.text(f"{name}.rope.scaling.type", "linear")
    return "none" if kind == "linear" and _linear_factor(keys, name) == 1 else kind


def _linear_factor(keys: ConfigFields, name: str) -> float:
    for key in ("scaling.factor", "scale_linear"):  # the second is what it was called once
        if keys.optional_number(f"{name}.rope.{key}", 0, 1e6):  # 0 says nothing
            return _single(keys.number(f"{name}.rope.{key}", 1e-3, 1e6))
    return 1.0


def _yarn(keys: ConfigFields, scaling: str, context: int) -> dict[str, object]:
    for key in ("attn_factor", "yarn_attn_factor", "yarn_log_multiplier"):
        if keys.optional_number(f"{scaling}.{key}", -_MAX, _MAX) not in (None, 1):
            keys.refuse(f"{scaling}.{key}", "is set, which is not supported")
    return {
        "original_max_position_embeddings": keys.integer(
            f"{scaling}.original_context_length", 1, _MAX, context
        ),
        "beta_fast": keys.number(f"{scaling}.yarn_beta_fast", 0, 1e6, 32.0),
        "beta_slow": keys.number(f"{scaling}.yarn_beta_slow", 0, 1e6, 1.0),
    }


def _llama3(
    header: GgufHeader, keys: ConfigFields, theta: dict[str, object], head_dim: int
) -> dict[str, object]:
    """The parameters whose rule gives the file's divisors of the frequencies."""
    tensor = header.tensors[_FREQUENCIES]
    if tensor.kind != "F32" or tensor.shape != (head_dim // 2,):
        keys.refuse(_FREQUENCIES, "is not one f32 for each frequency of a head")
    divisors = np.fromfile(header.path, np.dtype("<f4"), head_dim // 2, offset=tensor.offset)
    if len(divisors) < head_dim // 2:
        keys.refuse(_FREQUENCIES, "is no longer there: the file became shorter while it was read")
    factor = float(divisors.max(initial=1.0))
    if np.all(divisors == 1):
        return {"rope_type": "default"}
    for original in _LLAMA3_CONTEXTS:
        values: dict[str, object] = {
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": original,
        }
        if _gives(divisors, ConfigFields(keys.where, {"rope_parameters": theta | values}), head_dim):
            return values
    keys.refuse(_FREQUENCIES, "does not follow the rule of Llama 3, the only one that is supported")


def _gives(
    divisors: "np.ndarray[tuple[int, ...], np.dtype[np.float32]]", rope: ConfigFields, head_dim: int
) -> bool:
    config = RopeConfig.from_huggingface(rope, 1)
    plain = RopeConfig("default", config.theta, 1, 1)
    found = rope_frequencies(plain, head_dim, 1)[0] / rope_frequencies(config, head_dim, 1)[0]
    return bool(np.allclose(found, divisors, rtol=_ROPE_TOLERANCE, atol=0))


def _ids_of_text(header: GgufHeader) -> tuple[int | None, list[int]]:
    """(BOS, every id that ends an answer)."""
    rows = _vocabulary(header)
    return named_id(header, "bos", rows), end_ids(header, rows)


def _with_biases(header: GgufHeader, config: ModelConfig) -> ModelConfig:
    """Biases are where the file has them: no key says so."""

    def biased(part: str) -> bool:
        return f"blk.0.{part}.bias" in header.tensors

    return replace(
        config, qkv_bias=biased("attn_q"), o_bias=biased("attn_output"), mlp_bias=biased("ffn_down")
    )


def _size(keys: ConfigFields, key: str, default: int | None = None) -> int:
    return keys.integer(key, 1, _MAX, default)


def _single(value: float) -> float:
    """A number that was stored in f32, as short as it was meant: 1e-05 instead of 9.999999747378752e-06."""
    return float(str(np.float32(value)))
