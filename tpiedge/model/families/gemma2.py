"""Gemma 2."""

import math

from tpiedge.model.families.family import (
    NORMS_AROUND,
    Factors,
    Family,
    Gguf,
    Windows,
    cap,
    common,
    periodic_windows,
    query_scalar,
    refuse_bidirectional,
    shape,
)
from tpiedge.model.folder import ConfigFields


def _windows(config: ConfigFields, layers: int) -> Windows:
    # transformers ignores this key, llama.cpp does not
    if config.raw("layer_types") is None and config.integer("sliding_window_pattern", 1, 1 << 16, 2) != 2:
        config.refuse("sliding_window_pattern", "is not 2, which is not supported")
    return periodic_windows(2, 4096)(config, layers)


def _factors(config: ConfigFields) -> Factors:
    refuse_bidirectional(config)
    return Factors(
        embedding=math.sqrt(config.integer("hidden_size", 1, 1 << 17)),
        scores=config.integer("query_pre_attn_scalar", 1, 1 << 20, 256) ** -0.5,
        score_cap=cap(config, "attn_logit_softcapping"),
        logit_cap=cap(config, "final_logit_softcapping"),
    )


_ACTIVATION = "gelu_pytorch_tanh"
_GEMMA2 = common(
    "Gemma2", 1e-6, 1e4, True, bos_token_id=2, eos_token_id=[1, 107], hidden_activation=_ACTIVATION
)

_PRESETS = {
    "gemma2-2b": shape(_GEMMA2, 2304, 9216, 26, 8, 4, 256000, 8192, head_dim=256),
    "gemma2-9b": shape(_GEMMA2, 3584, 14336, 42, 16, 8, 256000, 8192, head_dim=256),
    "gemma2-27b": shape(
        _GEMMA2, 4608, 36864, 46, 32, 16, 256000, 8192, head_dim=128, query_pre_attn_scalar=144
    ),
}


_GGUF = Gguf(
    "gemma2",
    tensors=NORMS_AROUND,
    keys={
        "attention.sliding_window": "sliding_window",
        "attention.sliding_window_pattern": "sliding_window_pattern",
        "attn_logit_softcapping": "attn_logit_softcapping",
        "final_logit_softcapping": "final_logit_softcapping",
    },
    more=lambda config: {"query_pre_attn_scalar": query_scalar(config, 46)},  # 46: Gemma 2 27B
)
FAMILY = Family(
    "gemma2",
    "Gemma2",
    {
        "vocab_size": 256_000,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "hidden_activation": _ACTIVATION,
        "max_position_embeddings": 8192,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "bos_token_id": 2,
        "eos_token_id": 1,
        "tie_word_embeddings": True,
    },
    norms="around",
    norm_offset=1.0,
    activation_key="hidden_activation",
    windows=_windows,
    factors=_factors,
    presets=_PRESETS,
    gguf=_GGUF,
)
