"""Gemma 4, whose layers have several shapes, as transformers reads config.json."""

import json
from contextlib import suppress
from typing import Any

import pytest

from tests.reference.families import ablations
from tpiedge.errors import UserError
from tpiedge.model.blocks import Experts
from tpiedge.model.config import ModelConfig
from tpiedge.model.presets import preset

FULL, SLIDING = "full_attention", "sliding_attention"
PRESETS = ("gemma4-e2b", "gemma4-e4b", "gemma4-26b-a4b", "gemma4-12b", "gemma4-31b")
SIZES = (
    *("head_dim", "global_head_dim", "num_key_value_heads", "sliding_window", "num_kv_shared_layers"),
    *("hidden_size_per_layer_input", "vocab_size_per_layer_input"),
)
PROPORTIONAL = {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6}


def parse(values: dict[str, Any]) -> ModelConfig:
    return ModelConfig.from_huggingface(values)


def theirs(values: dict[str, Any]) -> Any:
    from transformers import AutoConfig

    return AutoConfig.for_model(**values)


ALL_SLIDING = {"layer_types": [SLIDING] * 35, "num_kv_shared_layers": 0}
TWO_HEADS = {"num_global_key_value_heads": 2, "num_key_value_heads": 4}
CASES: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in PRESETS),
    ("gemma4-e2b", ALL_SLIDING),
    ("gemma4-e2b", {"num_kv_shared_layers": 3}),
    ("gemma4-e2b", TWO_HEADS),
    ("gemma4-e2b", TWO_HEADS | {"attention_k_eq_v": True}),
    ("gemma4-e2b", {"global_head_dim": 128, "head_dim": 64}),
    ("gemma4-e2b", {"per_layer_config": {}}),
    ("gemma4-e2b", ALL_SLIDING | {"per_layer_config": {"34": {"head_dim": 384}}, "global_head_dim": 128}),
    ("gemma4-e2b", {"layer_types": None, "use_double_wide_mlp": False, "sliding_window_pattern": 2}),
    (
        "gemma4-31b",
        {"enable_moe_block": True, "num_experts": 6, "top_k_experts": 5, "moe_intermediate_size": 9},
    ),
    ("gemma4-12b", {"num_kv_shared_layers": 7, "use_double_wide_mlp": True}),
]


@pytest.mark.parametrize(("name", "changes"), CASES)
def test_layers_have_the_shapes_of_transformers(name: str, changes: dict[str, Any]) -> None:
    values = preset(name) | changes
    ours, config = parse(values), theirs(values)
    assert ModelConfig.from_json(json.loads(json.dumps(ours.to_json()))) == ours
    kept: dict[str, int] = {}
    for number, (layer, kind) in enumerate(zip(ours.layers, config.layer_types, strict=True)):
        shape, attention = config.per_layer_config[number], layer.attention
        assert attention.window == (config.sliding_window if kind == SLIDING else None)
        assert (attention.width, attention.kv_heads) == (shape.head_dim, shape.num_key_value_heads)
        rope = config.rope_parameters[kind]
        assert attention.rope is not None
        assert (attention.rope.kind, attention.rope.theta) == (rope["rope_type"], rope["rope_theta"])
        assert attention.rope.part == rope.get("partial_rotary_factor", 1.0)
        is_shared = config.kv_sharing_modes[number] == "reuse"
        assert attention.keys_of == (kept[kind] if is_shared else None)
        if not is_shared:
            kept[kind] = number
            assert attention.values_from_keys == (config.attention_k_eq_v and kind == FULL)
            assert attention.value_norms
        double = 2 if is_shared and config.use_double_wide_mlp else 1
        assert layer.ffn.columns == double * config.intermediate_size
        columns = getattr(config, "hidden_size_per_layer_input", 0)
        assert (layer.inputs.columns if layer.inputs else 0) == columns
        assert (layer.experts is not None) == getattr(config, "enable_moe_block", False)
        if layer.experts:
            sizes = config.num_experts, config.top_k_experts, config.moe_intermediate_size
            assert layer.experts == Experts(*sizes, layer.ffn.activation, router_norm=True, scaled=True)
        assert layer.scaled
    assert ours.factors.logit_cap == config.final_logit_softcapping
    assert (ours.factors.scores, ours.factors.embedding) == (1.0, config.hidden_size**0.5)


@pytest.mark.parametrize("name", PRESETS)
def test_published_keys_and_those_that_transformers_saves_mean_the_same(name: str) -> None:
    saved = theirs(preset(name)).to_dict()
    assert "global_head_dim" not in saved
    kind = saved["model_type"].removesuffix("_text")
    wrapped = {"model_type": kind, "text_config": {**preset(name), "model_type": saved["model_type"]}}
    assert parse(saved | {"dtype": "bfloat16"}) == parse(preset(name)) == parse(wrapped)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"enable_moe_block": True}, "num_experts is missing"),
        (
            {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2},
            "moe_intermediate_size is missing",
        ),
        (
            {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 5, "moe_intermediate_size": 9},
            "num_experts_per_tok is 5, but there are 4 experts",
        ),
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention is set"),
        ({"num_kv_shared_layers": 31}, "num_kv_shared_layers is 31: no layer of full_attention has keys"),
        ({"num_kv_shared_layers": 35}, "num_kv_shared_layers is 35: no layer of"),
        ({"num_kv_shared_layers": 36}, "num_kv_shared_layers is 36, not a whole number from 0 to 35"),
        (
            {"vocab_size_per_layer_input": 100},
            r"vocab_size_per_layer_input is 100, not vocab_size \(262144\)",
        ),
        ({"hidden_size_per_layer_input": 1 << 20}, "hidden_size_per_layer_input is 1048576"),
        ({"layer_types": [FULL]}, "layer_types has 1 entry for 35 layers"),
        (
            {"per_layer_config": {"35": {"head_dim": 64}}},
            "per_layer_config names the layer '35', not one of 0 to 34",
        ),
        ({"per_layer_config": {"0": {"intermediate_size": 64}}}, "intermediate_size of a single layer"),
        ({"per_layer_config": {"0": {"head_dim": "64"}}}, "head_dim is '64'"),
        ({"rope_parameters": {"rope_theta": 1e6}}, "full_attention|sliding_attention: rope_theta is missing"),
        ({"rope_parameters": {FULL: PROPORTIONAL}}, "sliding_attention: rope_theta is missing"),
        ({"rope_parameters": {FULL: PROPORTIONAL, SLIDING: {"rope_theta": 1.5}}}, "rope_type is missing"),
        (
            {"rope_parameters": {FULL: PROPORTIONAL, SLIDING: {"rope_type": "yarn", "rope_theta": 2.0}}},
            "rope_type is 'yarn'; supported are default, proportional",
        ),
        ({"num_global_key_value_heads": 3, "attention_k_eq_v": True}, "num_key_value_heads"),
        *(({key: None}, f"{key} is missing") for key in SIZES),
    ],
)
def test_what_is_not_supported_is_refused_in_one_line(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        parse(preset("gemma4-e2b") | changes)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("kind", ["gemma4_assistant", "gemma4_unified_assistant", "gemma4_vision"])
def test_draft_models_are_refused(kind: str) -> None:
    with pytest.raises(UserError, match=f"model_type is '{kind}'"):
        parse(preset("gemma4-e2b") | {"model_type": kind})


@pytest.mark.parametrize("name", PRESETS[3:])
def test_inputs_and_experts_are_no_keys_of_the_unified_model(name: str) -> None:
    more = {"hidden_size_per_layer_input": 0, "enable_moe_block": False}
    assert parse(preset(name) | more) == parse(preset(name))
    if name == "gemma4-12b":
        assert parse(preset(name) | {"hidden_size_per_layer_input": 256}) == parse(preset(name))


READ = list(ablations())


@pytest.mark.parametrize(("case", "changes"), READ, ids=lambda part: getattr(part, "name", None))
def test_what_changes_the_logits_of_transformers_changes_the_model(
    case: Any, changes: dict[str, Any]
) -> None:
    values = json.loads(json.dumps(case.config))
    text = values.get("text_config", values)
    text |= {key: value for key, value in case.written.items() if value is not None}
    before = parse(values)
    text |= changes
    with suppress(UserError):  # what is refused is not computed wrongly
        assert parse(values) != before
