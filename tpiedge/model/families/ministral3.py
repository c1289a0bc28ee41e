"""Ministral 3, whose scores grow beyond the original context."""

from tpiedge.model.families.family import Factors, Family, Ropes, Windows, window_size
from tpiedge.model.folder import ConfigFields
from tpiedge.model.rope import RopeConfig

_GROWTH = "llama_4_scaling_beta"


def _rope(config: ConfigFields) -> ConfigFields:
    usual = {
        "rope_type": "yarn",
        "rope_theta": 1_000_000.0,
        "factor": 16.0,
        "original_max_position_embeddings": 16384,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        _GROWTH: 0.1,
    }
    given = any(config.raw(key) is not None for key in ("rope_parameters", "rope_scaling"))
    return config if given else ConfigFields(config.where, {**config.values, "rope_parameters": usual})


def _ropes(config: ConfigFields, positions: int, windows: Windows) -> Ropes:
    return (RopeConfig.from_huggingface(_rope(config), positions),) * len(windows)


def _factors(config: ConfigFields) -> Factors:
    rope = _rope(config)
    found = rope.fields("rope_scaling" if rope.raw("rope_scaling") else "rope_parameters")
    return Factors(score_growth=found.number(_GROWTH, 0, 100, 0.0))


def _windows(config: ConfigFields, layers: int) -> Windows:
    return (window_size(config),) * layers


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
    windows=_windows,
    ropes=_ropes,
    factors=_factors,
)
