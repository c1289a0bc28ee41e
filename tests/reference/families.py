"""Tiny models of families whose layers differ from Llama's, and what must change their logits.

Windows are shorter than the prompt, soft caps bite, and positions lie beyond the original context of YaRN and
LongRoPE. Layers of both kinds come before and after one another, with other numbers of KV heads and other widths.
"""

from collections.abc import Iterator

from tests.reference.cases import Case, Config

_FULL, _SLIDING = "full_attention", "sliding_attention"


def _numbers(
    kind: str, hidden: int, heads: int, kv_heads: int, ffn: int, layers: int, **changes: object
) -> dict[str, object]:
    common = {"vocab_size": 503, "max_position_embeddings": 128, "bos_token_id": 2, "eos_token_id": 1}
    return {
        "model_type": kind,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "rms_norm_eps": 0.02,
        "pad_token_id": 0,
        **common,
        **changes,
    }


def _types(letters: str) -> list[str]:
    return [_SLIDING if letter == "s" else _FULL for letter in letters]


def _by_type(full: Config, sliding: Config) -> dict[str, object]:
    plain = {"rope_type": "default"}
    return {"rope_parameters": {_FULL: {**plain, **full}, _SLIDING: {**plain, **sliding}}}


_GEMMA2 = _numbers(
    "gemma2",
    72,
    6,
    3,
    300,
    5,
    head_dim=12,
    sliding_window=6,
    query_pre_attn_scalar=20,
    attn_logit_softcapping=3.0,
    final_logit_softcapping=6.0,
)
_GEMMA3 = _numbers(
    "gemma3_text",
    72,
    6,
    3,
    300,
    7,
    head_dim=16,
    sliding_window=6,
    query_pre_attn_scalar=4,
    layer_types=_types("ssfsssf"),
    **_by_type({"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}, {"rope_theta": 10000.0}),
)
_PROPORTIONAL = {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e4}
_GEMMA4 = _numbers(
    "gemma4_text",
    72,
    6,
    3,
    300,
    6,
    head_dim=12,
    global_head_dim=24,
    num_global_key_value_heads=1,
    attention_k_eq_v=True,
    sliding_window=6,
    final_logit_softcapping=8.0,
    hidden_size_per_layer_input=0,
    layer_types=_types("sfsssf"),
    **_by_type(_PROPORTIONAL, {"rope_theta": 1000.0}),
)
#: An expert has three tiles of 64 columns and a short one; the FFN beside it has three tiles of 128.
_GEMMA4_A4B = _GEMMA4 | {
    "enable_moe_block": True,
    "num_experts": 7,
    "top_k_experts": 3,
    "moe_intermediate_size": 200,
    "num_hidden_layers": 4,
    "layer_types": _types("sfsf"),
}
#: Sliding layers 4 and 5 use the keys of layer 3, and full layer 6 those of layer 2.
_GEMMA4_E2B = _GEMMA4 | {
    "num_hidden_layers": 7,
    "num_key_value_heads": 1,
    "num_global_key_value_heads": None,
    "attention_k_eq_v": False,
    "num_kv_shared_layers": 3,
    "use_double_wide_mlp": True,
    "hidden_size_per_layer_input": 10,
    "vocab_size_per_layer_input": 503,
    "layer_types": _types("ssfsssf"),
}
#: Of a head's frequencies some are kept, some are slowed, and one lies between.
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 100.0,
    "factor": 8.0,
    "original_max_position_embeddings": 24,
    "beta_fast": 2.0,
    "beta_slow": 1.0,
}
_MINISTRAL3_ROPE = _YARN | {"mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.3}
_MINISTRAL3 = _numbers("ministral3", 64, 6, 3, 300, 3, head_dim=16, rope_parameters=_MINISTRAL3_ROPE)
_MINISTRAL = _numbers(
    "ministral", 64, 6, 3, 200, 4, head_dim=16, sliding_window=6, layer_types=_types("fssf")
)
_GRANITE = _numbers(
    "granite",
    72,
    6,
    2,
    200,
    3,
    attention_bias=True,
    mlp_bias=True,
    embedding_multiplier=1.5,
    attention_multiplier=0.4,
    residual_multiplier=0.7,
    logits_scaling=0.5,
)
_SMOLLM3 = _numbers(
    "smollm3", 64, 4, 2, 200, 6, no_rope_layers=[1, 0, 1, 1, 0, 1], rope_parameters={"rope_type": "default"}
)
_OLMO2 = _numbers("olmo2", 72, 6, 3, 200, 3, bos_token_id=None)
_OLMO3 = _OLMO2 | {
    "model_type": "olmo3",
    "num_hidden_layers": 5,
    "sliding_window": 6,
    "layer_types": _types("ssfsf"),
    **_by_type({**_YARN, "attention_factor": 1.6}, {"rope_theta": 100.0}),
}
_PHI3 = _numbers("phi3", 64, 4, 2, 200, 3, sliding_window=None)
#: A head has 16 numbers, of which 12 turn.
_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.75,
    "short_factor": [1.0, 1.1, 1.3, 1.6, 2.0, 2.5],
    "long_factor": [1.0, 1.5, 2.5, 4.0, 6.0, 9.0],
}
_PHI4 = _PHI3 | {"rope_parameters": _LONGROPE, "tie_word_embeddings": True}

#: An expert has three tiles of 64 columns and a short one. The second layer has an FFN.
_QWEN3_MOE = _numbers(
    "qwen3_moe",
    72,
    6,
    3,
    300,
    4,
    head_dim=16,
    moe_intermediate_size=200,
    num_experts=7,
    num_experts_per_tok=3,
    norm_topk_prob=True,
    mlp_only_layers=[1],
)
_OLMOE = _numbers("olmoe", 72, 6, 3, 136, 3, num_experts=6, num_experts_per_tok=2, norm_topk_prob=False)
_MIXTRAL = _numbers("mixtral", 64, 4, 2, 150, 3, num_local_experts=4, num_experts_per_tok=2)
#: An expert has two tiles of 64 columns and a short one; rows are whole groups of MXFP4.
_GPT_OSS = _numbers(
    "gpt_oss",
    96,
    6,
    3,
    160,
    4,
    head_dim=16,
    num_local_experts=5,
    num_experts_per_tok=2,
    sliding_window=6,
    rope_parameters={**_YARN, "truncate": False},
)

_SIGLIP = {
    "model_type": "siglip_vision_model",
    "hidden_size": 16,
    "intermediate_size": 20,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
    "vision_use_head": False,
}
_PIXTRAL = {
    "model_type": "pixtral",
    "hidden_size": 16,
    "intermediate_size": 20,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "head_dim": 8,
    "image_size": 28,
    "patch_size": 14,
}
_GEMMA4_VISION = {
    "model_type": "gemma4_vision",
    "hidden_size": 16,
    "intermediate_size": 20,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "position_embedding_size": 16,
}


def _wrapped(kind: str, text: Config, **parts: Config) -> Config:
    """Returns the configuration of a model that has parts beside its text."""
    return {"model_type": kind, "text_config": text, "tie_word_embeddings": True, **parts}


def _published(config: Config) -> Config:
    """Returns the keys of Google's config.json, in whose place transformers writes `per_layer_config`."""
    keys = ("global_head_dim", "num_global_key_value_heads")
    return {key: config[key] for key in keys} | {"per_layer_config": None}


_TIED: Config = {"tie_word_embeddings": True}

FAMILIES: tuple[Case, ...] = (
    Case("gemma2", _GEMMA2 | _TIED, seed=3, dtype="bf16"),
    Case("gemma3", _GEMMA3 | _TIED, seed=4, dtype="bf16"),
    Case(
        "gemma3-capped", _GEMMA3 | _TIED | {"final_logit_softcapping": 6.0, "attention_bias": True}, seed=40
    ),
    Case("gemma4", _GEMMA4 | _TIED, seed=3, dtype="bf16", written=_published(_GEMMA4)),
    Case("gemma4-e2b", _GEMMA4_E2B | _TIED, seed=7, dtype="bf16", written=_published(_GEMMA4_E2B)),
    Case(  # the file has keys and values of the layers that share, too, as Google's have; FFNs have one width
        "gemma4-unused-keys",
        _GEMMA4_E2B | _TIED | {"use_double_wide_mlp": False, "num_kv_shared_layers": 0},
        seed=1,
        written={"num_kv_shared_layers": 3},
    ),
    Case("gemma4-a4b", _GEMMA4_A4B | _TIED, seed=5, dtype="bf16", written=_published(_GEMMA4_A4B)),
    Case("gemma4-unified", _GEMMA4 | _TIED | {"model_type": "gemma4_unified_text"}, seed=3),
    Case("ministral3", _MINISTRAL3, seed=2, dtype="bf16", prompt_length=56),
    Case("ministral", _MINISTRAL, seed=0),
    Case("granite", _GRANITE, seed=1, dtype="bf16"),
    Case("smollm3", _SMOLLM3 | _TIED, seed=4, dtype="bf16"),
    Case(
        "smollm3-sliding",
        _SMOLLM3 | {"attention_bias": True, "use_sliding_window": True, "sliding_window": 6},
        seed=4,
    ),
    Case("olmo2", _OLMO2, seed=0, dtype="bf16"),
    Case("olmo3", _OLMO3, seed=0, dtype="bf16", prompt_length=40),
    Case("phi3", _PHI3 | {"sliding_window": 6}, seed=2, dtype="bf16"),
    Case("phi4-mini-long", _PHI4 | {"original_max_position_embeddings": 16}, seed=0, prompt_length=40),
    Case(  # turns all keys again after eight tokens of the answer
        "phi4-mini-turning", _PHI4 | {"original_max_position_embeddings": 32}, seed=0, prompt_length=24
    ),
    Case("phi4-mini-short", _PHI4 | {"original_max_position_embeddings": 64}, seed=22, dtype="bf16"),
    Case("qwen3-moe", _QWEN3_MOE, seed=12, dtype="bf16"),
    Case(  # every second layer has experts, whose number is written as in transformers 4
        "qwen3-moe-plain",
        _QWEN3_MOE | {"norm_topk_prob": False, "mlp_only_layers": [], "decoder_sparse_step": 2},
        seed=3,
        written={"num_experts": 7, "num_local_experts": None},
    ),
    Case("olmoe", _OLMOE, seed=0, dtype="bf16"),
    Case("mixtral", _MIXTRAL, seed=2, dtype="bf16"),
    Case("gpt-oss", _GPT_OSS, seed=0, dtype="bf16", prompt_length=40),
    Case("gemma3-wrapped", _wrapped("gemma3", _GEMMA3 | _TIED, vision_config=_SIGLIP), seed=3),
    Case("gemma4-wrapped", _wrapped("gemma4", _GEMMA4_E2B | _TIED, vision_config=_GEMMA4_VISION), seed=15),
    Case(
        "mistral3",
        _wrapped("mistral3", _MINISTRAL3, vision_config=_PIXTRAL) | {"tie_word_embeddings": False},
        seed=0,
        prompt_length=56,
    ),
)


_EPS: Config = {"rms_norm_eps": 1e-6}
_NO_WINDOW: Config = {"sliding_window": 100}
_UNCAPPED: Config = {"final_logit_softcapping": None}
_SILU: Config = {"hidden_activation": "silu"}
_NO_BIAS: Config = {"attention_bias": False}
_GEMMA4_CHANGES: tuple[Config, ...] = (
    _EPS,
    _NO_WINDOW,
    _UNCAPPED,
    _SILU,
    _by_type({**_PROPORTIONAL, "partial_rotary_factor": 0.5}, {"rope_theta": 1000.0}),
    _by_type({"rope_theta": 1e4}, {"rope_theta": 1000.0}),
    _by_type(_PROPORTIONAL, {"rope_theta": 1e4}),
)
_MINISTRAL3_CHANGES: tuple[Config, ...] = (
    _EPS,
    {"rope_parameters": _MINISTRAL3_ROPE | {"llama_4_scaling_beta": 0.0}},
    {"rope_parameters": _MINISTRAL3_ROPE | {"mscale_all_dim": None}},
    {"rope_parameters": _MINISTRAL3_ROPE | {"rope_type": "default"}},
    {"rope_parameters": _MINISTRAL3_ROPE | {"beta_fast": 32.0}},
    {"rope_parameters": _MINISTRAL3_ROPE | {"truncate": False}},
)
_GEMMA3_CHANGES: tuple[Config, ...] = (
    _EPS,
    _NO_WINDOW,
    _SILU,
    {"query_pre_attn_scalar": 16},
    {"layer_types": _types("sssssff")},
    _by_type({"rope_theta": 1e6}, {"rope_theta": 10000.0}),
    _by_type({"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}, {"rope_theta": 1e6}),
)
_SMOLLM3_CHANGES: tuple[Config, ...] = (
    _EPS,
    {"no_rope_layers": [1] * 6},
    {"no_rope_layers": [1, 1, 1, 0, 1, 1]},
)


def _longrope(**changes: object) -> Config:
    return {"rope_parameters": _LONGROPE | changes}


_CHANGES: dict[str, tuple[Config, ...]] = {
    "gemma2": (
        _EPS,
        _NO_WINDOW,
        _UNCAPPED,
        _SILU,
        {"attn_logit_softcapping": None},
        {"query_pre_attn_scalar": 12},
        {"layer_types": _types("fsfsf")},
    ),
    "gemma3": _GEMMA3_CHANGES,
    "gemma3-capped": (_UNCAPPED, _NO_BIAS),
    "gemma3-wrapped": (_NO_WINDOW,),
    "gemma4": _GEMMA4_CHANGES,
    "gemma4-e2b": _GEMMA4_CHANGES,
    "gemma4-a4b": (_EPS, {"top_k_experts": 2}, {"enable_moe_block": False}),
    "gemma4-unused-keys": ({"num_kv_shared_layers": 0}, {"num_kv_shared_layers": 1}),
    "gemma4-unified": (_NO_WINDOW, _UNCAPPED),
    "gemma4-wrapped": (_NO_WINDOW,),
    "ministral3": _MINISTRAL3_CHANGES,
    "mistral3": _MINISTRAL3_CHANGES[:2],
    "ministral": (_EPS, _NO_WINDOW, {"layer_types": _types("ssff")}),
    "granite": (
        _EPS,
        _NO_BIAS,
        {"mlp_bias": False},
        {"embedding_multiplier": 1.0},
        {"attention_multiplier": 12**-0.5},
        {"residual_multiplier": 1.0},
        {"logits_scaling": 1.0},
    ),
    "smollm3": _SMOLLM3_CHANGES,
    "smollm3-sliding": (*_SMOLLM3_CHANGES, _NO_WINDOW, _NO_BIAS, {"layer_types": _types("ffffff")}),
    "olmo2": (_EPS, {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}),
    "olmo3": (
        _EPS,
        _NO_WINDOW,
        _by_type({"rope_theta": 100.0}, {"rope_theta": 100.0}),
        _by_type({**_YARN, "attention_factor": None}, {"rope_theta": 100.0}),
        _by_type({**_YARN, "attention_factor": 1.6}, {**_YARN, "attention_factor": 1.6}),
    ),
    "phi3": (_EPS, {"sliding_window": None}),
    "qwen3-moe": (_EPS, {"norm_topk_prob": False}, {"num_experts_per_tok": 2}),
    "qwen3-moe-plain": ({"norm_topk_prob": True}, {"num_experts_per_tok": 1}),
    "olmoe": (_EPS, {"norm_topk_prob": True}, {"num_experts_per_tok": 1}),
    "mixtral": (_EPS, {"sliding_window": 6}, {"num_experts_per_tok": 1}),
    "gpt-oss": (
        _EPS,
        _NO_WINDOW,
        {"layer_types": _types("sffs")},
        {"num_experts_per_tok": 1},
        {"swiglu_limit": 100.0},
        {"swiglu_alpha": 1.0},
        {"rope_parameters": _YARN},
        {"rope_parameters": {**_YARN, "truncate": False, "attention_factor": 1.0}},
    ),
    "phi4-mini-long": (
        _longrope(long_factor=_LONGROPE["short_factor"]),
        _longrope(attention_factor=1.0),
        {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.75}},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0}},
    ),
    "phi4-mini-short": (_longrope(short_factor=_LONGROPE["long_factor"]), _longrope(attention_factor=1.0)),
    "phi4-mini-turning": (_longrope(short_factor=_LONGROPE["long_factor"]),),
}


def ablations() -> Iterator[tuple[Case, Config]]:
    """Yields each case with changes of its text configuration that alter logits."""
    for case in FAMILIES:
        for changes in _CHANGES[case.name]:
            yield case, changes
