"""Gemma 4 E2B, E4B, 26B-A4B and 31B (text), and every GGUF file of Gemma 4."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tpiedge.model.blocks import MAX_EXPERTS, MAX_FFN, MAX_HEAD_DIM, MAX_HEADS, Experts, LayerInputs
from tpiedge.model.families.family import (
    EXPERT_KEYS,
    FULL,
    NORMS_AROUND,
    SLIDING,
    Factors,
    Family,
    Gguf,
    Layers,
    Ropes,
    Windows,
    cap,
    common,
    refuse_bidirectional,
    shape,
    typed_windows,
)
from tpiedge.model.folder import ConfigFields
from tpiedge.model.rope import MAX_POSITIONS, RopeConfig
from tpiedge.sanitise import quote

_PERIOD = 6
_INPUTS = "hidden_size_per_layer_input"
_SHAPES = "per_layer_config"
_MAX_INPUTS = 1 << 22  # of all layers
_ROPES = {
    SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
    FULL[0]: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
}


def _windows(config: ConfigFields, layers: int) -> Windows:
    window = config.integer("sliding_window", 1, MAX_POSITIONS)
    found: Windows = tuple(window if (layer + 1) % _PERIOD else None for layer in range(layers))
    if config.raw("layer_types") is not None:
        found = typed_windows(config, layers, window)
    return (*found[:-1], None)  # whatever the types say


def _ropes(config: ConfigFields, positions: int, windows: Windows) -> Ropes:
    ropes = {"rope_parameters": _ROPES} if config.raw("rope_parameters") is None else config.values
    by_type = ConfigFields(config.where, ropes).fields("rope_parameters")

    def rope(kind: str) -> RopeConfig:
        found = by_type.fields(kind)
        theta = found.number("rope_theta", 1.0001, 1e12)
        if found.choice("rope_type", ("default", "proportional")) == "default":
            return RopeConfig("default", theta, positions, positions)  # of all columns
        return RopeConfig.of(found, positions, theta, ("proportional",))

    known = {is_full: rope(FULL[0] if is_full else SLIDING) for is_full in {one is None for one in windows}}
    return tuple(known[window is None] for window in windows)


def _factors(config: ConfigFields) -> Factors:
    refuse_bidirectional(config, "vision")
    return Factors(
        embedding=math.sqrt(config.integer("hidden_size", 1, 1 << 17)),
        scores=1.0,
        logit_cap=cap(config, "final_logit_softcapping"),
    )


def _changes(config: ConfigFields, layers: Layers, same: bool) -> dict[int, ConfigFields]:
    """Returns the keys that a layer has of its own, by its number. `same`: whether values are keys in full layers."""
    if _SHAPES in config.values:
        listed = config.fields(_SHAPES)
        known = {str(number).zfill(digits): number for number in range(len(layers)) for digits in range(1, 5)}
        if unknown := [name for name in listed.values if name not in known]:
            config.refuse(_SHAPES, f"names the layer {quote(unknown[0])}, not one of 0 to {len(layers) - 1}")
        found = {known[name]: listed.fields(name) for name in listed.values}
        for one in found.values():
            for key in one.values.keys() - {"head_dim", "num_key_value_heads"}:
                one.refuse(key, "of a single layer is not supported")
        return found
    full = {"head_dim": config.integer("global_head_dim", 2, MAX_HEAD_DIM)}
    if same and (heads := config.optional_integer("num_global_key_value_heads", 1, MAX_HEADS)):
        full["num_key_value_heads"] = heads
    fields = ConfigFields(config.where, full)
    return {number: fields for number, one in enumerate(layers) if one.attention.window is None}


def layers_with(*, inputs: bool) -> Callable[[ConfigFields, Layers], Layers]:
    """Returns a rule: full layers have heads of their own, and the last layers use keys of earlier ones. `inputs`:
    whether layers may have inputs of their own, or experts."""

    def layers(config: ConfigFields, alike: Layers) -> Layers:
        same = config.flag("attention_k_eq_v", False)
        changes = _changes(config, alike, same)
        shared = config.integer("num_kv_shared_layers", 0, len(alike))
        kinds = [one.attention.window is None for one in alike]
        sources = {is_full: number for number, is_full in enumerate(kinds[: len(alike) - shared])}
        if missing := set(kinds) - sources.keys():
            kind = FULL[0] if missing.pop() else SLIDING
            config.refuse("num_kv_shared_layers", f"is {shared}: no layer of {kind} has keys of its own")
        columns = config.integer("intermediate_size", 1, MAX_FFN // 2)
        wide = 2 * columns if config.flag("use_double_wide_mlp", False) else columns
        own, experts = (_inputs(config, alike), _experts(config, alike)) if inputs else (None, None)
        found = []
        for number, (layer, is_full) in enumerate(zip(alike, kinds, strict=True)):
            sizes = ConfigFields(config.where, {**config.values, **changes.get(number, config).values})
            is_shared = number >= len(alike) - shared
            attention = replace(
                layer.attention,
                width=sizes.integer("head_dim", 2, MAX_HEAD_DIM),
                kv_heads=sizes.integer("num_key_value_heads", 1, MAX_HEADS),
                keys_of=sources[is_full] if is_shared else None,
                values_from_keys=same and is_full and not is_shared,
                value_norms=not is_shared,
            )
            ffn = layer.ffn and replace(layer.ffn, columns=wide if is_shared else columns)
            found.append(
                replace(layer, attention=attention, ffn=ffn, inputs=own, scaled=True, experts=experts)
            )
        return tuple(found)

    return layers


def _inputs(config: ConfigFields, layers: Layers) -> LayerInputs | None:
    columns = config.integer(_INPUTS, 0, _MAX_INPUTS // len(layers))
    if not columns:
        return None
    rows, vocab = (config.integer(key, 1, 1 << 22) for key in ("vocab_size_per_layer_input", "vocab_size"))
    if rows != vocab:
        config.refuse("vocab_size_per_layer_input", f"is {rows}, not vocab_size ({vocab})")
    return LayerInputs(columns, next(one.ffn.activation for one in layers if one.ffn))


def _experts(config: ConfigFields, layers: Layers) -> Experts | None:
    if not config.flag("enable_moe_block", False):
        return None
    return Experts(
        config.integer("num_experts", 1, MAX_EXPERTS),
        config.integer("top_k_experts", 1, MAX_EXPERTS),
        config.integer("moe_intermediate_size", 1, MAX_FFN),
        next(one.ffn.activation for one in layers if one.ffn),
        router_norm=True,
        scaled=True,
    )


_ACTIVATION = "gelu_pytorch_tanh"
_ENDS = {"bos_token_id": 2, "eos_token_id": [1, 106], "hidden_activation": _ACTIVATION}
GEMMA4 = shape(
    common("Gemma4", 1e-6, 1e6, True, **_ENDS, final_logit_softcapping=30.0), model_type="gemma4_text"
)
#: Of the layers of E2B every fifth is full.
_FIFTH = [FULL[0] if layer % 5 == 4 else SLIDING for layer in range(35)]
_SIZES = (262144, 131072)
_PRESETS = {
    "gemma4-e2b": shape(
        GEMMA4,
        1536,
        6144,
        35,
        8,
        1,
        *_SIZES,
        num_kv_shared_layers=20,
        use_double_wide_mlp=True,
        layer_types=_FIFTH,
    ),
    "gemma4-e4b": shape(GEMMA4, 2560, 10240, 42, 8, 2, *_SIZES, num_kv_shared_layers=18),
    "gemma4-26b-a4b": shape(
        GEMMA4,
        *(2816, 2112, 30, 16, 8, 262144, 262144),
        sliding_window=1024,
        attention_k_eq_v=True,
        num_global_key_value_heads=2,
        hidden_size_per_layer_input=0,
        enable_moe_block=True,
        num_experts=128,
        top_k_experts=8,
        moe_intermediate_size=704,
    ),
    "gemma4-31b": shape(
        GEMMA4,
        *(5376, 21504, 60, 32, 16, 262144, 262144),
        sliding_window=1024,
        attention_k_eq_v=True,
        num_global_key_value_heads=4,
        hidden_size_per_layer_input=0,
    ),
}


def _more(config: Mapping[str, Any]) -> Mapping[str, object]:
    """Returns each layer's kind and heads. Those of full layers are as wide as `head_dim`."""
    heads, columns = config["num_key_value_heads"], config["intermediate_size"]
    pattern, width = config.get("layer_types"), config.get("sliding_head_dim", config["head_dim"])
    changes = {}
    if isinstance(pattern, list):
        pattern = [SLIDING if is_sliding else FULL[0] for is_sliding in pattern]
        listed = heads if isinstance(heads, list) else [heads] * len(pattern)
        widths = (width if kind == SLIDING else config["head_dim"] for kind in pattern)
        shapes = zip(widths, listed, strict=False)
        changes = {
            str(number): {"head_dim": one, "num_key_value_heads": count}
            for number, (one, count) in enumerate(shapes)
        }
        heads = listed[0]
    shared = config.get("num_kv_shared_layers", 0)
    is_wide = isinstance(columns, list) and all(
        count == columns[0] * (2 if number >= len(columns) - shared > 0 else 1)
        for number, count in enumerate(columns)
    )
    local = {"rope_type": "default", "rope_theta": config.get("rope_local_base_freq", 10_000.0)}
    return {
        "layer_types": pattern,
        "head_dim": width,
        "num_key_value_heads": heads,
        _SHAPES: changes,
        "intermediate_size": columns[0] if is_wide else columns,
        "use_double_wide_mlp": is_wide,
        "sliding_window": config.get("sliding_window"),
        _INPUTS: config.get(_INPUTS, 0),
        "enable_moe_block": "num_experts" in config,
        "vocab_size_per_layer_input": config["vocab_size"],
        "rope_parameters": {FULL[0]: config["rope_parameters"], SLIDING: local},
    }


_GGUF = Gguf(
    "gemma4",
    tensors={
        "model.embed_tokens_per_layer": "per_layer_token_embd",
        "model.per_layer_model_projection": "per_layer_model_proj",
        "model.per_layer_projection_norm": "per_layer_proj_norm",
        **NORMS_AROUND,
        "per_layer_input_gate": "inp_gate",
        "per_layer_projection": "proj",
        "post_per_layer_input_norm": "post_norm",
        "layer_scalar": "layer_output_scale.weight",
        "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
        "post_feedforward_layernorm_1": "post_ffw_norm_1",
        "post_feedforward_layernorm_2": "post_ffw_norm_2",
        "router": "ffn_gate_inp",
        "router.per_expert_scale": "ffn_down_exps.scale",
        "experts.gate_up_proj[{}]": "ffn_gate_up_exps.weight",
        "experts.down_proj[{}]": "ffn_down_exps.weight",
    },
    needs=frozenset({"rope_freqs.weight"}),
    lacking={"attention_k_eq_v": ("attn_k", "attn_v")},
    keys={
        **EXPERT_KEYS,
        "expert_count": "num_experts",
        "expert_used_count": "top_k_experts",
        "attention.key_length_swa": "sliding_head_dim",
        "attention.shared_kv_layers": "num_kv_shared_layers",
        "attention.sliding_window": "sliding_window",
        "attention.sliding_window_pattern": "layer_types",
        "embedding_length_per_layer_input": _INPUTS,
        "final_logit_softcapping": "final_logit_softcapping",
        "rope.freq_base_swa": "rope_local_base_freq",
    },
    more=_more,
)
FAMILY = Family(
    "gemma4_text",
    "Gemma4",
    {
        "vocab_size": 262_144,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 30,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "global_head_dim": 512,
        "hidden_activation": _ACTIVATION,
        "max_position_embeddings": 131_072,
        "sliding_window": 512,
        "vocab_size_per_layer_input": 262_144,
        "hidden_size_per_layer_input": 256,
        "num_kv_shared_layers": 0,
        "bos_token_id": 2,
        "eos_token_id": 1,
        "tie_word_embeddings": True,
    },
    head_norms=True,
    norms="around",
    activation_key="hidden_activation",
    windows=_windows,
    ropes=_ropes,
    factors=_factors,
    layers=layers_with(inputs=True),
    wrappers=("gemma4",),
    experts=(
        "router.proj.weight",
        *("experts.gate_up_proj[{}]",) * 2,
        "experts.down_proj[{}]",
    ),
    presets=_PRESETS,
    gguf=_GGUF,
)
