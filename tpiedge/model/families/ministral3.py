"""Ministral 3, whose scores grow beyond the original context."""

from collections.abc import Mapping
from typing import Any

from tpiedge.model.families.family import Factors, Family, Gguf, Ropes, Windows, common, one_window, shape
from tpiedge.model.folder import ConfigFields
from tpiedge.model.rope import RopeConfig, rope_key

_GROWTH = "llama_4_scaling_beta"


_YARN = {
    "rope_type": "yarn",
    "factor": 16.0,
    "original_max_position_embeddings": 16384,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    _GROWTH: 0.1,
}


def _rope(config: ConfigFields) -> ConfigFields:
    given = any(config.raw(key) is not None for key in ("rope_parameters", "rope_scaling"))
    usual = {**_YARN, "rope_theta": 1_000_000.0}
    return config if given else ConfigFields(config.where, {**config.values, "rope_parameters": usual})


def _ropes(config: ConfigFields, positions: int, windows: Windows) -> Ropes:
    return (RopeConfig.from_huggingface(_rope(config), positions),) * len(windows)


def _factors(config: ConfigFields) -> Factors:
    rope = _rope(config)
    return Factors(score_growth=rope.fields(rope_key(rope)).number(_GROWTH, 0, 100, 0.0))


_MINISTRAL3 = common(
    "Ministral3", 1e-5, 1e6, rope_scaling=_YARN, bos_token_id=1, eos_token_id=2, head_dim=128
)
_SIZES = (32, 8, 131072, 262144)

_PRESETS = {
    "ministral3-3b": shape(_MINISTRAL3, 3072, 9216, 26, *_SIZES, tie_word_embeddings=True),
    "ministral3-8b": shape(_MINISTRAL3, 4096, 14336, 34, *_SIZES),
    "ministral3-14b": shape(_MINISTRAL3, 5120, 16384, 40, *_SIZES, rope_theta=1e9),
}


def _more(config: Mapping[str, Any]) -> Mapping[str, object]:
    usual = {
        "mscale": 1.0,
        _GROWTH: 0.0,
        "original_max_position_embeddings": config["max_position_embeddings"],
    }
    given = {key: config[key] for key in ("mscale_all_dim", _GROWTH) if key in config}
    return {"rope_parameters": usual | config["rope_parameters"] | given}


_GGUF = Gguf(
    "mistral3",
    paired=True,
    keys={"attention.temperature_scale": _GROWTH, "rope.scaling.yarn_log_multiplier": "mscale_all_dim"},
    more=_more,
)
FAMILY = Family(
    "ministral3",
    "Ministral3",
    {
        "vocab_size": 131_072,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 34,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 262_144,
        "rms_norm_eps": 1e-5,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    attention_bias=False,
    windows=one_window,
    ropes=_ropes,
    factors=_factors,
    presets=_PRESETS,
    gguf=_GGUF,
)
