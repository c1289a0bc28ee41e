"""Translates the keys of a GGUF file to a config.json."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tpiedge.errors import UserError
from tpiedge.model.blocks import MAX_HEAD_DIM
from tpiedge.model.config import POOLING_FILE, POOLING_FOLDER, pooling_config
from tpiedge.model.families import FAMILIES
from tpiedge.model.families.family import Family, Gguf
from tpiedge.model.folder import ConfigFields
from tpiedge.model.gguf.file import GgufHeader
from tpiedge.model.named_tokens import ending_ids
from tpiedge.model.rope import RopeConfig
from tpiedge.model.rotation import rope_frequencies
from tpiedge.sanitise import quote

ARCHITECTURES: Mapping[str, tuple[Gguf, Family]] = {
    family.gguf.architecture: (family.gguf, family) for family in FAMILIES.values() if family.gguf
}
_SAMPLING = {
    "temperature": "general.sampling.temp",
    "top_k": "general.sampling.top_k",
    "top_p": "general.sampling.top_p",
    "min_p": "general.sampling.min_p",
    "repetition_penalty": "general.sampling.penalty_repeat",
}

_MAX = 1 << 31
_POOLINGS = ("", "mean", "cls", "last", "rank")  # by their numbers in the format
# A file has only the divisors that Llama 3's rule gives: these pretraining contexts are tried.
_LLAMA3_CONTEXTS = tuple(1 << power for power in (13, 12, 14, 11, 15, 16, 17, 10, 9, 8, 7, 6, 5))
_NO_ROTATION = 1e29  # a divisor that leaves no angle
FREQUENCIES, LONGROPE = "rope_freqs.weight", ("rope_factors_short.weight", "rope_factors_long.weight")
_YARN_FACTOR = "rope.scaling.yarn_attn_factor"
# Keys that change what a model computes. A family names those that it reads.
_FACTORS = (
    *("attention.scale", "logit_scale", "embedding_scale", "residual_scale", "attention.temperature_scale"),
    *("attn_logit_softcapping", "final_logit_softcapping", "attention.clamp_kqv", "attention.max_alibi_bias"),
    *("rope.scaling.attn_factor", _YARN_FACTOR, "rope.scaling.yarn_log_multiplier"),
    # 1 is the softmax.
    *("expert_gating_func", "expert_weights_scale", "expert_group_count", "interleave_moe_layer_step"),
)


def huggingface_config(header: GgufHeader) -> dict[str, object]:
    """Returns the object of a config.json."""
    name = architecture(header)
    keys, (files, family) = header.fields, ARCHITECTURES[name]

    def size(key: str, default: int | None = None, most: int = _MAX) -> int:
        return keys.integer(f"{name}.{key}", 1, most, default)

    def sizes(key: str, default: int | None = None) -> int | list[object]:
        """Returns the size of every layer, or a list of those of each."""
        found = keys.raw(f"{name}.{key}")
        if not isinstance(found, np.ndarray):
            return size(key, default)
        values: list[Any] = found.tolist()
        if len(values) != size("block_count"):
            keys.refuse(f"{name}.{key}", f"has {len(values)} numbers for {size('block_count')} layers")
        return values if len(set(values)) > 1 else values[0]

    hidden, heads = size("embedding_length"), size("attention.head_count")
    head_dim = size("attention.key_length", max(1, hidden // heads), MAX_HEAD_DIM)
    _refuse_unsupported(header, files, head_dim)
    context = size("context_length")
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None:
        raise UserError(f"{header.path}: the tensor token_embd.weight is missing; download the file again")
    rows = embedding.shape[0]
    ends = (*(named_id(header, end, rows) for end in _ENDS), *marked_end_ids(header))
    known = dict.fromkeys(token for token in ends if token is not None and token < rows)
    config: dict[str, object] = {
        "architectures": [f"{family.name}ForCausalLM"],
        "model_type": family.model_type,
        "hidden_size": hidden,
        "intermediate_size": sizes("feed_forward_length"),
        "num_hidden_layers": size("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": sizes("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "vocab_size": rows,
        "rms_norm_eps": _single(keys.number(f"{name}.attention.layer_norm_rms_epsilon", 0, 1)),
        "max_position_embeddings": context,
        "rope_parameters": _rope(header, name, head_dim, context),
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "attention_bias": "blk.0.attn_output.bias" in header.tensors,
        "mlp_bias": "blk.0.ffn_down.bias" in header.tensors,
        family.activation_key: family.defaults.get(family.activation_key, "silu"),
        "bos_token_id": named_id(header, "bos", rows),
        "eos_token_id": list(known),
        "dtype": "bfloat16" if embedding.kind == "BF16" else "float32",
    }
    for needed in files.needs - header.tensors.keys():
        raise UserError(f"{header.path}: the tensor {needed} is missing; download the file again")
    for flag, (part, other) in files.lacking.items():
        having = (one for one in header.tensors if one.endswith(f".{part}.weight"))
        config[flag] = any(one.replace(f".{part}.", f".{other}.") not in header.tensors for one in having)
    for key, ours in files.keys.items():
        listed = keys.raw(f"{name}.{key}")
        if isinstance(listed, np.ndarray) and key.endswith("_pattern"):
            config[ours] = listed[: size("block_count") + 1].tolist()
        elif number := keys.optional_number(f"{name}.{key}", -_MAX, _MAX):  # 0 means unset
            config[ours] = _single(number) if isinstance(listed, float) else int(number)
    return {**config, **files.more(config)}


def config_files(header: GgufHeader) -> dict[str, bytes]:
    """Returns file name -> content for config.json, sampling and pooling."""
    found: dict[str, Mapping[str, object]] = {"config.json": huggingface_config(header)}
    sampling = {name: header.fields.raw(key) for name, key in _SAMPLING.items()}
    if said := {name: value for name, value in sampling.items() if value is not None}:
        found["generation_config.json"] = said
    kind = header.fields.integer(f"{architecture(header)}.pooling_type", 0, _MAX, 0)
    if kind:
        pooling = _POOLINGS[kind] if kind < len(_POOLINGS) else f"pooling_type {kind}"
        found[f"{POOLING_FOLDER}/{POOLING_FILE}"] = pooling_config(pooling)
    return {name: json.dumps(values, indent=2).encode() for name, values in found.items()}


def architecture(header: GgufHeader) -> str:
    name = header.fields.raw("general.architecture")
    if not isinstance(name, str) or name not in ARCHITECTURES:
        raise UserError(
            f"{header.path}: the architecture is {quote(name)}; supported are {', '.join(ARCHITECTURES)}"
        )
    return name


def _refuse_unsupported(header: GgufHeader, files: Gguf, head_dim: int) -> None:
    keys, name = header.fields, files.architecture
    if "expert_count" not in files.keys and keys.optional_integer(f"{name}.expert_count", 0, _MAX):
        keys.refuse(
            f"{name}.expert_count", "is set: mixture-of-experts models are not supported, only dense ones"
        )
    for end in ("", "_swa"):  # of layers without a window, and with one
        width = keys.integer(f"{name}.attention.key_length{end}", 1, MAX_HEAD_DIM, head_dim)
        for key in sorted({f"attention.value_length{end}", f"rope.dimension_count{end}"} - files.keys.keys()):
            if keys.integer(f"{name}.{key}", 1, _MAX, width) != width:
                found = quote(keys.raw(f"{name}.{key}"))
                keys.refuse(f"{name}.{key}", f"is {found}, not the numbers of a head ({width})")
    for key in _FACTORS:
        is_read = key in files.keys or (key == "rope.scaling.attn_factor" and LONGROPE[0] in header.tensors)
        is_read |= key == _YARN_FACTOR and keys.raw(f"{name}.rope.scaling.type") == "yarn"
        if not is_read and keys.optional_number(f"{name}.{key}", -_MAX, _MAX) not in (None, 0, 1):
            keys.refuse(f"{name}.{key}", "is set, which is not supported")


def _rope(header: GgufHeader, name: str, head_dim: int, context: int) -> dict[str, object]:
    keys, scaling = header.fields, f"{name}.rope.scaling"
    kind = keys.text(f"{scaling}.type", "linear")
    is_plain = kind == "none" or (kind == "linear" and _linear_factor(keys, name) == 1)
    base = _single(keys.number(f"{name}.rope.freq_base", 1.0001, 1e12, 10000.0))
    theta: dict[str, object] = {"rope_theta": base}
    if any(tensor in header.tensors for tensor in LONGROPE):
        return theta | _longrope(header, name, context)
    rule = _divided(header, base, head_dim)
    if is_plain:
        return theta | rule
    if rule["rope_type"] != "default":
        keys.refuse(
            f"{scaling}.type", f"is {quote(kind)} beside {FREQUENCIES}: only one of them is supported"
        )
    if kind == "linear":
        return theta | {"rope_type": "linear", "factor": _linear_factor(keys, name)}
    if kind != "yarn":
        keys.refuse(f"{scaling}.type", f"is {quote(kind)}; supported are none, linear, yarn")
    factor = _single(keys.number(f"{scaling}.factor", 1e-3, 1e6))
    original = keys.integer(f"{scaling}.original_context_length", 1, _MAX, context)
    # The checkpoint's `attention_factor`. A file that llama.cpp itself wrote has 1 in any case.
    attention = keys.optional_number(f"{name}.{_YARN_FACTOR}", 0, 1e3)
    if attention == 1:
        keys.refuse(f"{name}.{_YARN_FACTOR}", "is 1, which may mean none: take the original checkpoint")
    return theta | {
        "rope_type": kind,
        "factor": factor,
        "original_max_position_embeddings": original,
        "beta_fast": keys.number(f"{scaling}.yarn_beta_fast", 0, 1e6, 32.0),
        "beta_slow": keys.number(f"{scaling}.yarn_beta_slow", 0, 1e6, 1.0),
        "attention_factor": _single(attention) if attention else None,
    }


def _linear_factor(keys: ConfigFields, name: str) -> float:
    for key in ("scaling.factor", "scale_linear"):  # 0 means unset
        if keys.optional_number(f"{name}.rope.{key}", 0, 1e6):  # 0 says nothing
            return _single(keys.number(f"{name}.rope.{key}", 1e-3, 1e6))
    return 1.0


def _divided(header: GgufHeader, theta: float, head_dim: int) -> dict[str, object]:
    """Returns the RoPE parameters that lead to the file's divisors of frequencies."""
    keys, tensor = header.fields, header.tensors.get(FREQUENCIES)
    if tensor is None:
        return {"rope_type": "default"}
    divisors = _divisors(header, FREQUENCIES)
    if head_dim % 2 or len(divisors) != head_dim // 2:
        keys.refuse(FREQUENCIES, "is not one f32 for each frequency of a head")
    if np.all(divisors == 1):
        return {"rope_type": "default"}
    rotated = int(np.argmin(divisors == 1))
    if np.all(divisors[:rotated] == 1) and np.all(divisors[rotated:] >= _NO_ROTATION):
        part = rotated / len(divisors)
        part = part if int(part * head_dim // 2) == rotated else math.nextafter(part, 1)
        return {"rope_type": "proportional", "partial_rotary_factor": part}
    plain = rope_frequencies(RopeConfig("default", theta, 1, 1), head_dim)[0]
    for original in _LLAMA3_CONTEXTS:
        rope = RopeConfig("llama3", theta, 1, original, float(divisors.max(initial=1.0)))
        with np.errstate(all="ignore"):  # a damaged file may have any factor
            slowed = plain / rope_frequencies(rope, head_dim)[0]
        if np.allclose(slowed, divisors, rtol=1e-4, atol=0):
            return {
                "rope_type": "llama3",
                "factor": rope.factor,
                "low_freq_factor": rope.low_freq_factor,
                "high_freq_factor": rope.high_freq_factor,
                "original_max_position_embeddings": original,
            }
    keys.refuse(FREQUENCIES, "does not follow the rule of Llama 3, the only one that is supported")


def _longrope(header: GgufHeader, name: str, context: int) -> dict[str, object]:
    keys, scaling = header.fields, f"{name}.rope.scaling"
    short, long = ([_single(value) for value in _divisors(header, tensor)] for tensor in LONGROPE)
    factor = keys.optional_number(f"{scaling}.attn_factor", 1e-3, 1e3)
    return {
        "rope_type": "longrope",
        "short_factor": short,
        "long_factor": long,
        "original_max_position_embeddings": keys.integer(
            f"{scaling}.original_context_length", 1, _MAX, context
        ),
    } | ({} if factor is None else {"attention_factor": _single(factor)})


def _divisors(header: GgufHeader, name: str) -> NDArray[np.float32]:
    tensor = header.tensors.get(name)
    if tensor is None or tensor.kind != "F32" or len(tensor.shape) > 1 or tensor.shape[0] > MAX_HEAD_DIM:
        header.fields.refuse(name, "is not one f32 for each frequency of a head")
    found = np.fromfile(tensor.file, np.dtype("<f4"), tensor.shape[0], offset=tensor.offset)
    if len(found) < tensor.shape[0]:
        header.fields.refuse(name, "is no longer there: the file became shorter while it was read")
    return found


def _single(value: float) -> float:
    """Returns the shortest decimal of an f32 number, like 1e-05."""
    return float(str(np.float32(value)))


_ENDS = ("eos", "eot", "eom")
_USUAL = {"bos": 1, "eos": 2}  # in SentencePiece vocabularies
_NORMAL = 1


def named_id(header: GgufHeader, name: str, rows: int) -> int | None:
    """Returns the id that the file gives token `name`, or SentencePiece's usual id, or None."""
    value = header.fields.raw(f"tokenizer.ggml.{name}_token_id")
    if isinstance(value, int) and 0 <= value < rows:
        return value
    usual = _USUAL.get(name, rows) if header.fields.raw("tokenizer.ggml.model") == "llama" else rows
    return usual if usual < rows else None


def marked_end_ids(header: GgufHeader) -> list[int]:
    """Returns the ids of tokens whose text ends an answer."""
    tokens, kinds = header.fields.raw("tokenizer.ggml.tokens"), header.fields.raw("tokenizer.ggml.token_type")
    if not isinstance(tokens, list):
        return []
    marks = set(np.flatnonzero(kinds != _NORMAL).tolist()) if isinstance(kinds, np.ndarray) else set()
    return list(ending_ids(ids_of(tokens), marks))


def ids_of(tokens: Sequence[str]) -> dict[str, int]:
    ids: dict[str, int] = {}
    for index, text in enumerate(tokens):
        ids.setdefault(text, index)
    return ids
