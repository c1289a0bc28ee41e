"""Gemma 3 (text)."""

import math
from dataclasses import replace

from tpiedge.model.families.family import Factors, Family, Ropes, Windows, cap, periodic_windows
from tpiedge.model.folder import ConfigFields
from tpiedge.model.rope import RopeConfig


def _ropes(config: ConfigFields, positions: int, windows: Windows) -> Ropes:
    by_type = config.fields("rope_parameters")
    is_new = any(key in by_type.values for key in ("full_attention", "sliding_attention"))
    if by_type.values and not is_new:  # transformers ignores it
        config.refuse("rope_parameters", "does not say what full_attention and sliding_attention have")
    full = by_type.fields("full_attention") if is_new else config.fields("rope_scaling")
    local = by_type.fields("sliding_attention")
    theta = config.number("rope_theta", 1.0001, 1e12, 1_000_000.0)
    local_theta = config.number("rope_local_base_freq", 1.0001, 1e12, 10_000.0)
    # `positions` counts those that a scaling adds.
    of_full, of_window = RopeConfig.of(full, positions, theta), RopeConfig.of(local, positions, local_theta)
    of_full = replace(of_full, max_positions=max(1, int(positions / of_full.factor)))
    return tuple(of_full if window is None else of_window for window in windows)


def _factors(config: ConfigFields) -> Factors:
    if config.flag("use_bidirectional_attention", False):
        config.refuse("use_bidirectional_attention", "is set: only text generation is supported")
    return Factors(
        embedding=math.sqrt(config.integer("hidden_size", 1, 1 << 17)),
        scores=config.number("query_pre_attn_scalar", 1e-3, 1e6, 256.0) ** -0.5,
        logit_cap=cap(config, "final_logit_softcapping"),
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
)
