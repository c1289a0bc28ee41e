"""Mixtral, and GGUF files of Llama's architecture with experts."""

from tpiedge.model.families.family import (
    Family,
    Ropes,
    Windows,
    by_expert,
    common,
    one_window,
    shape,
    with_experts,
)
from tpiedge.model.folder import ConfigFields
from tpiedge.model.rope import RopeConfig


def _ropes(config: ConfigFields, positions: int, windows: Windows) -> Ropes:
    return (RopeConfig.from_huggingface(config, positions, 1e6),) * len(windows)


_PRESETS = {
    "mixtral-8x7b": shape(
        common("Mixtral", 1e-5, 1e6, bos_token_id=1, eos_token_id=2),
        *(4096, 14336, 32, 32, 8, 32000, 32768),
        num_local_experts=8,
        num_experts_per_tok=2,
    )
}

FAMILY = Family(
    "mixtral",
    "Mixtral",
    {
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "num_experts_per_tok": 2,
    },
    attention_bias=False,
    windows=one_window,
    ropes=_ropes,
    layers=with_experts(8, "intermediate_size", lambda _config: True),
    experts=by_expert("block_sparse_moe", "w1", "w3", "w2"),
    presets=_PRESETS,
)
