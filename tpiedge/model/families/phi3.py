"""Phi-3 and Phi-4-mini."""

import math
from collections.abc import Mapping
from typing import Any

from tpiedge.model.families.family import Family, Gguf, Ropes, Windows, common, one_window, shape
from tpiedge.model.folder import ConfigFields
from tpiedge.model.rope import RopeConfig, rope_key


def _ropes(config: ConfigFields, positions: int, windows: Windows) -> Ropes:
    key = rope_key(config)
    scaling = dict(config.fields(key).values)
    if scaling.get("rope_type", scaling.get("type")) in ("su", "yarn"):
        scaling["rope_type"] = "longrope"
    fields = ConfigFields(config.where, {**config.values, key: scaling})
    rope = RopeConfig.from_huggingface(fields, positions, kinds=("default", "longrope"), partial=True)
    return (rope,) * len(windows)


_SHORT = {"type": "longrope", "short_factor": [1.0] * 48, "long_factor": [1.0] * 48}
_MINI = common("Phi3", 1e-5, 1e4, True, partial_rotary_factor=0.75, rope_scaling=_SHORT)
_PHI4 = common("Phi3", 1e-5, 250000.0, bos_token_id=100257, eos_token_id=100265)

_PRESETS = {
    "phi4-mini-3.8b": shape(
        _MINI,
        *(3072, 8192, 32, 24, 8, 200064, 131072),
        original_max_position_embeddings=4096,
        bos_token_id=199999,
        eos_token_id=[200020, 199999],
    ),
    "phi4-14b": shape(_PHI4, 5120, 17920, 40, 40, 10, 100352, 16384, original_max_position_embeddings=16384),
}


def _more(config: Mapping[str, Any]) -> Mapping[str, object]:
    key, width = "original_max_position_embeddings", config["head_dim"]
    rotated = config.get("partial_rotary_factor", width)
    part = rotated / width
    return {
        key: config["rope_parameters"].get(key, config["max_position_embeddings"]),
        # The number of columns is rounded down.
        "partial_rotary_factor": part if int(width * part) == rotated else math.nextafter(part, 1),
    }


_GGUF = Gguf(
    "phi3",
    keys={"attention.sliding_window": "sliding_window", "rope.dimension_count": "partial_rotary_factor"},
    more=_more,
)
FAMILY = Family(
    "phi3",
    "Phi3",
    {
        "max_position_embeddings": 4096,
        "original_max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "bos_token_id": 1,
        "eos_token_id": 32000,
    },
    attention_bias=False,
    windows=one_window,
    ropes=_ropes,
    fused=True,
    presets=_PRESETS,
    gguf=_GGUF,
)
