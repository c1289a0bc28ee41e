"""gpt-oss."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from tpiedge.model.families.family import (
    EXPERT_KEYS,
    Family,
    Gguf,
    Layers,
    Ropes,
    Windows,
    common,
    periodic_windows,
    shape,
    with_experts,
)
from tpiedge.model.folder import ConfigFields
from tpiedge.model.rope import RopeConfig, rope_key

_THETA: Final = 150000.0
_YARN: Final = {
    "rope_type": "yarn",
    "factor": 32.0,
    "original_max_position_embeddings": 4096,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
}
#: What the activation "gpt_oss" has.
_SWIGLU: Final = {"swiglu_limit": 7.0, "swiglu_alpha": 1.702}
_ALL = with_experts(128, "intermediate_size", lambda _config: True)


def _layers(config: ConfigFields, alike: Layers) -> Layers:
    for key, known in _SWIGLU.items():
        if (found := config.number(key, 0, 1e6, known)) != known:
            config.refuse(key, f"is {found:g}; supported is {known:g}")
    return tuple(
        replace(
            one,
            attention=replace(one.attention, sinks=True),
            experts=one.experts and replace(one.experts, activation="gpt_oss", router_bias=True, bias=True),
        )
        for one in _ALL(config, alike)
    )


def _ropes(config: ConfigFields, positions: int, windows: Windows) -> Ropes:
    key = rope_key(config)
    if config.raw(key) is None:
        config = ConfigFields(config.where, {**config.values, key: _YARN})
    return (RopeConfig.from_huggingface(config, positions, _THETA),) * len(windows)


def _more(config: Mapping[str, Any]) -> Mapping[str, object]:
    """Sets what no key of a file says."""
    return {"rope_parameters": {**config["rope_parameters"], "truncate": False}}


_OSS = common(
    "GptOss",
    1e-5,
    _THETA,
    eos_token_id=200002,
    model_type="gpt_oss",
    head_dim=64,
    num_experts_per_tok=4,
    sliding_window=128,
    rope_scaling=_YARN,
    swiglu_limit=7.0,
)
_PRESETS = {
    f"gpt-oss-{name}": shape(
        _OSS, 2880, 2880, layers, 64, 8, 201088, 131072, num_local_experts=experts, attention_bias=True
    )
    for name, layers, experts in (("20b", 24, 32), ("120b", 36, 128))
}
_GATE_UP: Final = "mlp.experts.gate_up_proj"
_GGUF = Gguf(
    "gpt-oss",
    tensors={
        "post_attention_layernorm": "post_attention_norm",
        "self_attn.sinks": "attn_sinks",
        f"{_GATE_UP}_bias[:,0::2]": "ffn_gate_exps.bias",
        f"{_GATE_UP}_bias[:,1::2]": "ffn_up_exps.bias",
        "mlp.experts.down_proj_bias": "ffn_down_exps.bias",
    },
    keys={
        **EXPERT_KEYS,
        "expert_feed_forward_length": "intermediate_size",
        "attention.sliding_window": "sliding_window",
    },
    more=_more,
)
FAMILY = Family(
    "gpt_oss",
    "GptOss",
    {
        "num_hidden_layers": 36,
        "vocab_size": 201088,
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "head_dim": 64,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "num_experts_per_tok": 4,
        "attention_bias": True,
    },
    windows=periodic_windows(2, 128),
    ropes=_ropes,
    layers=_layers,
    experts=(
        "mlp.router.weight",
        f"{_GATE_UP}[{{}},:,0::2].T",
        f"{_GATE_UP}[{{}},:,1::2].T",
        "mlp.experts.down_proj[{},:,0::1].T",
    ),
    presets=_PRESETS,
    gguf=_GGUF,
)
