import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import mixtures
from tpiedge.errors import UserError
from tpiedge.model.blocks import Experts
from tpiedge.model.config import ModelConfig, pooling_config, usual_pooling
from tpiedge.model.presets import PRESETS, preset
from tpiedge.model.spec import model_spec


def parse(values: dict[str, Any]) -> ModelConfig:
    return ModelConfig.from_huggingface(values, "config.json")


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_presets_are_read_as_transformers_reads_them(name: str) -> None:
    from transformers import AutoConfig

    values = preset(name)
    ours = parse(values)
    theirs = AutoConfig.for_model(**values)
    assert ours.num_layers == theirs.num_hidden_layers
    assert ours.num_heads == theirs.num_attention_heads
    shapes = theirs.per_layer_config
    assert ours.num_kv_heads == shapes[0].num_key_value_heads
    usual = theirs.hidden_size // theirs.num_attention_heads
    assert ours.head_dim == max(getattr(one, "head_dim", None) or usual for one in shapes)
    assert ours.rms_norm_eps == theirs.rms_norm_eps
    assert ours.tie_word_embeddings == theirs.tie_word_embeddings
    rope = theirs.rope_parameters.get("full_attention", theirs.rope_parameters)
    assert ours.rope is not None
    assert ours.rope.theta == rope["rope_theta"]
    assert ours.rope.kind == rope["rope_type"]
    assert ours.group_size * ours.num_kv_heads == ours.num_heads
    assert ModelConfig.from_json(json.loads(json.dumps(ours.to_json()))) == ours


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({2: {"keys_of": 0}, 3: {"keys_of": 1}}, ""),
        ({1: {"kv_heads": 8}, 2: {"keys_of": 1, "kv_heads": 8}}, ""),
        ({0: {"keys_of": 0}}, "keys_of of layer 0 is 0, not an earlier layer with its own keys"),
        ({1: {"keys_of": 5}}, "keys_of of layer 1 is 5"),
        ({1: {"keys_of": 0}, 2: {"keys_of": 1}}, "keys_of of layer 2 is 1"),
        ({1: {"kv_heads": 8}, 2: {"keys_of": 1}}, "of 4 KV heads 64 wide"),
        ({1: {"width": 32}, 2: {"keys_of": 1}}, "of 4 KV heads 64 wide"),
        ({1: {"heads": 16}}, "is 32 in layer 0, 16 in 1"),
    ],
)
def test_layers_use_the_keys_of_earlier_layers_like_them(
    changes: dict[int, dict[str, int]], complaint: str
) -> None:
    config = parse(preset("tinyllama"))
    layers = [
        replace(layer, attention=replace(layer.attention, **changes.get(number, {})))
        for number, layer in enumerate(config.layers)
    ]
    config = replace(config, layers=tuple(layers))
    if complaint:
        with pytest.raises(UserError, match=complaint):
            ModelConfig.from_json(json.loads(json.dumps(config.to_json())))
        return
    assert ModelConfig.from_json(json.loads(json.dumps(config.to_json()))) == config
    kept, shared = ({one.name for one in model_spec(config).layers[number].matrices} for number in (0, 2))
    assert kept - shared == {"k", "v"}


@pytest.mark.parametrize(
    ("changes", "biases"),
    [
        ({}, (False, False, False, False)),
        ({"attention_bias": True}, (True, True, False, False)),
        ({"mlp_bias": True}, (False, False, True, False)),
        ({"model_type": "mistral", "attention_bias": True}, (False, False, False, False)),
        ({"model_type": "qwen2"}, (True, False, False, False)),
        ({"model_type": "qwen2", "attention_bias": False}, (True, False, False, False)),
        ({"model_type": "qwen3"}, (False, False, False, True)),
        ({"model_type": "qwen3", "attention_bias": True}, (True, True, False, True)),
    ],
)
def test_biases_follow_model_family(
    small_config: dict[str, Any], changes: dict[str, Any], biases: tuple[bool, ...]
) -> None:
    config = parse(small_config | changes)
    attention, ffn = config.first.attention, config.first.ffn
    assert (attention.qkv_bias, attention.o_bias, ffn.bias, attention.head_norms) == biases


@pytest.mark.parametrize(
    ("kind", "text", "ignored"),
    [
        ("mistral3", "mistral-7b", {"layer_types": ["full_attention"] * 32}),
        ("gemma3", "gemma3-4b", {"final_logit_softcapping": 30.0}),
    ],
)
def test_keys_that_transformers_ignores_in_the_text_of_a_larger_model_change_nothing(
    kind: str, text: str, ignored: dict[str, Any]
) -> None:
    plain, more = (parse({"model_type": kind, "text_config": preset(text) | keys}) for keys in ({}, ignored))
    assert plain == more
    assert plain != parse(preset(text) | ignored)


WINDOWED = {"use_sliding_window": True, "sliding_window": 32}


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({"sliding_window": 32}, (None, None)),
        ({"model_type": "mistral", "sliding_window": 32}, (32, 32)),
        ({"model_type": "mistral", "sliding_window": None}, (None, None)),
        ({"model_type": "mistral"}, (4096, 4096)),
        ({"model_type": "mistral", "layer_types": ["sliding_attention", "full_attention"]}, (4096, None)),
        ({"model_type": "qwen2", "sliding_window": 32}, (None, None)),
        ({"model_type": "qwen2", "max_window_layers": 1, **WINDOWED}, (None, 32)),
        ({"model_type": "qwen3", "max_window_layers": 0, **WINDOWED}, (32, 32)),
        ({"model_type": "qwen3", **WINDOWED}, (None, None)),
        (
            {"model_type": "qwen3", "layer_types": ["sliding_attention", "full_attention"], **WINDOWED},
            (32, None),
        ),
        ({"model_type": "qwen2", "layer_types": ["full_attention"] * 2, **WINDOWED}, (None, None)),
    ],
)
def test_sliding_windows_follow_model_family(
    small_config: dict[str, Any], changes: dict[str, Any], windows: tuple[int | None, ...]
) -> None:
    from transformers import AutoConfig

    values = small_config | changes
    assert tuple(layer.attention.window for layer in parse(values).layers) == windows
    if values["model_type"] == "mistral" and "layer_types" in values:
        values["model_type"] = "ministral"  # as AutoConfig.from_pretrained does
    theirs = AutoConfig.for_model(**values)
    if values["model_type"] in ("ministral", "qwen2", "qwen3"):
        kinds = tuple(
            theirs.sliding_window if kind == "sliding_attention" else None for kind in theirs.layer_types
        )
        assert kinds == windows
    elif values["model_type"] == "mistral":
        assert (theirs.sliding_window,) * 2 == windows


class TestTokenIds:
    def test_eos_token_id_may_be_one_or_many(self, small_config: dict[str, Any]) -> None:
        assert parse(small_config | {"eos_token_id": 7}).eos_ids == (7,)
        assert parse(small_config | {"eos_token_id": [7, 9, 7]}).eos_ids == (7, 9)

    def test_generation_config_overrides_token_ids(self, folder: Path) -> None:
        (folder / "generation_config.json").write_text('{"eos_token_id": [5, 6], "bos_token_id": 4}')
        config = ModelConfig.open(folder)
        assert (config.bos_id, config.eos_ids) == (4, (5, 6))


def pooling_of(folder: Path, **values: object) -> str:
    inner = folder / "1_Pooling"
    inner.mkdir(exist_ok=True)
    (inner / "config.json").write_text(json.dumps(values))
    return usual_pooling(folder)


def test_pooling_defaults_to_mean(tmp_path: Path) -> None:
    assert (
        usual_pooling(None)
        == usual_pooling(tmp_path)
        == pooling_of(tmp_path, word_embedding_dimension=8)
        == "mean"
    )


def test_sentence_transformers_pooling_modes_are_read(tmp_path: Path) -> None:
    kinds = ("cls_token", "mean_tokens", "max_tokens", "weightedmean_tokens", "lasttoken")
    modes = {f"pooling_mode_{kind}": False for kind in kinds}
    assert pooling_of(tmp_path, **modes | {"pooling_mode_lasttoken": True, "include_prompt": True}) == "last"
    assert pooling_of(tmp_path, **modes | {"pooling_mode_mean_tokens": True}) == "mean"
    assert pooling_of(tmp_path, **modes | {"pooling_mode_cls_token": True}) == "cls"
    both = {"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True}
    assert pooling_of(tmp_path, **modes | both) == "mean and max_tokens"
    assert pooling_of(tmp_path, pooling_mode="lasttoken") == "last"
    for kind in ("mean", "last", "cls"):
        assert pooling_of(tmp_path, **pooling_config(kind)) == kind


def test_unreadable_pooling_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"1_Pooling/config\.json: pooling_mode_lasttoken is 'yes'"):
        pooling_of(tmp_path, pooling_mode_lasttoken="yes")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "1_Pooling").symlink_to(tmp_path / "1_Pooling")
    with pytest.raises(UserError, match="links to a file outside"):
        usual_pooling(tmp_path / "model")


IMPOSSIBLE: dict[str, list[Any]] = {
    "num_hidden_layers": [-1, 0, 10**9, True, 2.0, None],
    "hidden_size": [0, 2**40, 18],
    "intermediate_size": [-200],
    "num_attention_heads": [0, "4"],
    "num_key_value_heads": [3, 8],
    "head_dim": [3, 0],
    "vocab_size": [2**40, float("nan"), [1]],
    "rms_norm_eps": [float("nan"), 0, float("inf")],
    "max_position_embeddings": [2**62],
    "hidden_act": ["gelu", "gpt_oss", 3],
    "model_type": ["gpt2", None, "llama\n\x1b[31m"],
    "torch_dtype": ["float8_e4m3fn"],
    "tie_word_embeddings": [1],
    "attention_bias": ["yes"],
    "quantization_config": ["awq"],
    "num_local_experts": [8],
    "architectures": [["LlamaForSequenceClassification"]],
    "bos_token_id": [-1],
    "eos_token_id": [["</s>"], [1] * 100],
    "per_layer_config": [{}],
}


@pytest.mark.parametrize(
    ("field", "value"), [(field, value) for field, values in IMPOSSIBLE.items() for value in values]
)
def test_impossible_values_are_refused_in_one_line(
    small_config: dict[str, Any], field: str, value: object
) -> None:
    with pytest.raises(UserError) as raised:
        parse(small_config | {field: value})
    message = str(raised.value)
    assert message.startswith("config.json: ")
    assert field.replace("torch_", "") in message
    assert message.isprintable()
    assert len(message) < 300


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"layer_types": ["full_attention"]}, "layer_types has 1 entry for 2"),
        ({"layer_types": ["full_attention", "mamba"]}, "mamba"),
        ({"layer_types": ["sliding_attention"] * 2}, "use_sliding_window"),
        ({"use_sliding_window": 1}, "use_sliding_window"),
        ({"sliding_window": 0, "use_sliding_window": True}, "sliding_window"),
    ],
)
def test_impossible_windows_are_refused(
    small_config: dict[str, Any], changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(UserError, match=named):
        parse(small_config | {"model_type": "qwen2"} | changes)


@pytest.mark.parametrize(
    ("changes", "named"),
    [({"type": "linear"}, "type is not"), ({"rope_type": "yarn", "truncate": False}, "truncate")],
)
def test_scalings_of_gemma_that_transformers_ignores_are_refused(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError, match=rf"rope_scaling: {named}"):
        parse(preset("gemma3-4b") | {"rope_scaling": {"factor": 8.0, **changes}})


def test_missing_caps_of_gemma_2_are_those_of_transformers_and_null_is_none() -> None:
    from transformers import AutoConfig

    values, names = preset("gemma2-2b"), ("attn_logit_softcapping", "final_logit_softcapping")
    usual, without = parse(values).factors, parse(values | dict.fromkeys(names)).factors
    theirs = AutoConfig.for_model("gemma2")
    assert (usual.score_cap, usual.logit_cap) == tuple(getattr(theirs, name) for name in names)
    assert usual.scores == theirs.query_pre_attn_scalar**-0.5
    assert (without.score_cap, without.logit_cap) == (0, 0)


@pytest.mark.parametrize(
    "changes",
    [
        {"attn_logit_softcapping": 0},
        {"query_pre_attn_scalar": 144.5},
        {"sliding_window_pattern": 6},
        {"use_bidirectional_attention": True},
    ],
)
def test_what_gemma_2_does_not_compute_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=next(iter(changes))):
        parse(preset("gemma2-9b") | changes)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=100)
@given(data=st.data())
def test_random_field_values_are_read_or_refused(data: st.DataObject) -> None:
    ours = parse(preset("qwen3-0.6b")).to_json()
    field = data.draw(st.sampled_from(sorted(ours)))
    value = data.draw(JSON_VALUES)
    message, config = "", None
    try:
        config = ModelConfig.from_json(ours | {field: value})
    except UserError as error:
        message = str(error)
    assert message.isprintable()
    assert config is None or ModelConfig.from_json(config.to_json()) == config


@pytest.mark.parametrize(
    ("name", "path", "value"),
    [
        ("granite3.3-2b", ("factors", "logit_divisor"), 0.0),
        ("granite3.3-2b", ("factors", "block"), math.inf),
        ("granite3.3-2b", ("factors", "scores"), math.nan),
        ("phi4-mini-3.8b", ("layers", 0, "attention", "rope", "short_factor"), [1.0] * 47),
        ("phi4-mini-3.8b", ("layers", 3, "attention", "rope", "long_factor"), [1.0] * 47),
    ],
)
def test_impossible_numbers_of_packs_are_refused(
    name: str, path: tuple[int | str, ...], value: object
) -> None:
    ours: Any = json.loads(json.dumps(parse(preset(name)).to_json()))
    *outer, key = path
    at = ours
    for step in outer:
        at = at[step]
    at[key] = value
    with pytest.raises(UserError, match=str(key)):
        ModelConfig.from_json(ours)


@pytest.mark.parametrize("where", [(), ("rope",)])
def test_non_unicode_key_is_refused(where: tuple[str, ...]) -> None:
    ours: Any = json.loads(json.dumps(parse(preset("qwen3-0.6b")).to_json()))
    inner = ours
    for key in where:
        inner = inner[key]
    inner["\ud800"] = 1
    with pytest.raises(UserError, match=r"model config: .*surrogates not allowed"):
        ModelConfig.from_json(ours)


@settings(max_examples=100)
@given(data=st.data())
@pytest.mark.fault("F4", "read, or refused by name")
def test_random_huggingface_field_values_are_read_or_refused(data: st.DataObject) -> None:
    values = preset("qwen2.5-0.5b") | {
        "rope_scaling": {"rope_type": "yarn", "factor": 2.0},
        "layer_types": None,
    }
    field = data.draw(st.sampled_from(sorted(values)))
    message, config = "", None
    try:
        config = parse(values | {field: data.draw(JSON_VALUES)})
    except UserError as error:
        message = str(error)
    assert message.isprintable()
    assert config is None or ModelConfig.from_json(config.to_json()) == config


def mixed(**changes: Any) -> ModelConfig:
    return parse({**mixtures.VALUES, **changes})


@pytest.mark.parametrize(
    ("changes", "with_experts"),
    [
        ({}, [0, 2, 3]),
        ({"mlp_only_layers": None}, [0, 1, 2, 3]),
        ({"mlp_only_layers": [], "decoder_sparse_step": 2}, [1, 3]),
        ({"decoder_sparse_step": 2}, [3]),
    ],
)
def test_layers_of_qwen_with_experts_are_those_of_transformers(
    changes: dict[str, Any], with_experts: list[int]
) -> None:
    layers = mixed(**changes).layers
    assert [number for number, one in enumerate(layers) if one.experts] == with_experts
    assert [number for number, one in enumerate(layers) if one.ffn is None] == with_experts


@pytest.mark.parametrize(
    ("changes", "experts"),
    [
        ({}, Experts(5, 2, 200)),
        ({"num_experts": None, "num_local_experts": 9}, Experts(9, 2, 200)),
        ({"num_local_experts": 5}, Experts(5, 2, 200)),
        ({"num_experts": None, "norm_topk_prob": False}, Experts(128, 2, 200, normalised=False)),
        ({"model_type": "olmoe"}, Experts(5, 2, 300)),
        ({"model_type": "olmoe", "norm_topk_prob": False}, Experts(5, 2, 300, normalised=False)),
        ({"model_type": "mixtral", "norm_topk_prob": False}, Experts(5, 2, 300)),
        ({"model_type": "mixtral", "num_experts": None}, Experts(8, 2, 300)),
    ],
)
def test_experts_follow_model_family(changes: dict[str, Any], experts: Experts) -> None:
    config = mixed(**changes)
    assert config.first.experts == experts
    assert ModelConfig.from_json(json.loads(json.dumps(config.to_json()))) == config


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"num_experts_per_tok": 6}, "num_experts_per_tok is 6, but there are 5 experts"),
        ({"num_local_experts": 7}, "num_local_experts is 7, but num_experts is 5"),
        ({"num_experts": 2000}, "num_experts is 2000"),
        ({"mlp_only_layers": 3}, "mlp_only_layers is 3"),
        ({"decoder_sparse_step": 0}, "decoder_sparse_step is 0"),
        ({"model_type": "olmoe", "clip_qkv": 8.0}, "clip_qkv is set"),
        ({"n_routed_experts": 4}, "n_routed_experts is set: mixture-of-experts models of 'qwen3_moe'"),
        ({"model_type": "qwen3"}, "num_experts is set: mixture-of-experts models of 'qwen3'"),
    ],
)
def test_impossible_experts_are_refused(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        mixed(**changes)


def test_manifest_with_experts_of_another_family_is_refused() -> None:
    values = mixed().to_json()
    assert "experts" not in values["layers"][1]
    with pytest.raises(UserError, match="experts, which llama has not"):
        ModelConfig.from_json(json.loads(json.dumps(values | {"model_type": "llama"})))
    values["layers"][0]["ffn"] = values["layers"][1]["ffn"]
    with pytest.raises(UserError, match="both experts and an FFN in layer 0, without norms of their results"):
        ModelConfig.from_json(json.loads(json.dumps(values)))
    values["layers"][0]["ffn"]["bias"] = True
    with pytest.raises(UserError, match="mlp_bias is set, but layer 0 has experts beside its FFN"):
        ModelConfig.from_json(json.loads(json.dumps(values | {"norms": "around"})))
    values["layers"][0]["ffn"] = values["layers"][1]["ffn"] = None
    with pytest.raises(UserError, match="neither an FFN nor experts in layer 1"):
        ModelConfig.from_json(json.loads(json.dumps(values)))
