"""Gemma 3 (text)."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tpiedge.model.families.family import (
    NORMS_AROUND,
    Factors,
    Family,
    Gguf,
    Ropes,
    Windows,
    cap,
    common,
    periodic_windows,
    query_scalar,
    refuse_bidirectional,
    ropes_by_type,
    shape,
)
from tpiedge.model.folder import ConfigFields


def _ropes(config: ConfigFields, positions: int, windows: Windows) -> Ropes:
    found = ropes_by_type(1_000_000.0, 10_000.0, "rope_local_base_freq")(config, positions, windows)
    # `positions` counts those that a scaling adds.
    return tuple(one and replace(one, max_positions=max(1, int(positions / one.factor))) for one in found)


def _factors(config: ConfigFields) -> Factors:
    refuse_bidirectional(config)
    return Factors(
        embedding=math.sqrt(config.integer("hidden_size", 1, 1 << 17)),
        scores=config.number("query_pre_attn_scalar", 1e-3, 1e6, 256.0) ** -0.5,
        logit_cap=cap(config, "final_logit_softcapping"),
    )


_ACTIVATION = "gelu_pytorch_tanh"
_GEMMA3 = shape(
    common("Gemma3", 1e-6, 1e6, True, bos_token_id=2, eos_token_id=[1, 106], hidden_activation=_ACTIVATION),
    model_type="gemma3_text",
)
_SMALL = shape(_GEMMA3, head_dim=256, sliding_window=512)
_LARGE = shape(_GEMMA3, sliding_window=1024, rope_scaling={"rope_type": "linear", "factor": 8.0})

_PRESETS = {
    "gemma3-270m": shape(_SMALL, 640, 2048, 18, 4, 1, 262144, 32768),
    "gemma3-1b": shape(_SMALL, 1152, 6912, 26, 4, 1, 262144, 32768),
    "gemma3-4b": shape(_LARGE, 2560, 10240, 34, 8, 4, 262208, 131072, head_dim=256),
    "gemma3-12b": shape(_LARGE, 3840, 15360, 48, 16, 8, 262208, 131072, head_dim=256),
    "gemma3-27b": shape(
        _LARGE, 5376, 21504, 62, 32, 16, 262208, 131072, head_dim=128, query_pre_attn_scalar=168
    ),
}


def _more(config: Mapping[str, Any]) -> Mapping[str, object]:
    local = {"rope_type": "default", "rope_theta": config.get("rope_local_base_freq", 10_000.0)}
    return {
        "query_pre_attn_scalar": query_scalar(config, 62),  # 62: Gemma 3 27B
        "sliding_window": config.get("sliding_window"),
        "rope_parameters": {"full_attention": config["rope_parameters"], "sliding_attention": local},
    }


_GGUF = Gguf(
    "gemma3",
    tensors=NORMS_AROUND,
    keys={
        "attention.sliding_window": "sliding_window",
        "attention.sliding_window_pattern": "sliding_window_pattern",
        "rope.freq_base_swa": "rope_local_base_freq",
        "final_logit_softcapping": "final_logit_softcapping",
    },
    more=_more,
)
FAMILY = Family(
    "gemma3_text",
    "Gemma3",
    {
        "vocab_size": 262_208,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 131_072,
        "bos_token_id": 2,
        "eos_token_id": 1,
        "tie_word_embeddings": True,
    },
    head_norms=True,
    norms="around",
    norm_offset=1.0,
    activation_key="hidden_activation",
    windows=periodic_windows(6, 4096),
    ropes=_ropes,
    factors=_factors,
    wrappers=("gemma3",),
    ignored_in_wrappers=frozenset({"final_logit_softcapping"}),
    presets=_PRESETS,
    gguf=_GGUF,
)
