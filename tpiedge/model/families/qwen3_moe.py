"""Qwen 3 with experts, as 30B-A3B."""

from tpiedge.model.families.family import (
    EXPERT_KEYS,
    Family,
    Gguf,
    Layers,
    Windows,
    by_expert,
    common,
    shape,
    window_size,
    with_experts,
)
from tpiedge.model.folder import ConfigFields

_ALL = with_experts(128, "moe_intermediate_size", lambda config: config.flag("norm_topk_prob", False))


def _layers(config: ConfigFields, alike: Layers) -> Layers:
    """Keeps the FFN of layers in `mlp_only_layers`, and of those whose number from 1 is no multiple of
    `decoder_sparse_step`."""
    listed = config.sequence("mlp_only_layers", 1024) if config.raw("mlp_only_layers") is not None else []
    step = config.integer("decoder_sparse_step", 1, 1024, 1)
    return tuple(
        dense if number in listed or (number + 1) % step else mixed
        for number, (dense, mixed) in enumerate(zip(alike, _ALL(config, alike), strict=True))
    )


def _windows(config: ConfigFields, layers: int) -> Windows:
    return (window_size(config, 4096) if config.flag("use_sliding_window", False) else None,) * layers


_PRESETS = {
    "qwen3-30b-a3b": shape(
        common("Qwen3Moe", 1e-6, 1e6, bos_token_id=151643, eos_token_id=151645, model_type="qwen3_moe"),
        *(2048, 6144, 48, 32, 4, 151936, 40960),
        head_dim=128,
        moe_intermediate_size=768,
        num_experts=128,
        num_experts_per_tok=8,
        norm_topk_prob=True,
    )
}

FAMILY = Family(
    "qwen3_moe",
    "Qwen3Moe",
    {
        "vocab_size": 151936,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 24,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "max_position_embeddings": 32768,
        "moe_intermediate_size": 768,
        "num_experts_per_tok": 8,
    },
    head_norms=True,
    windows=_windows,
    layers=_layers,
    experts=by_expert("mlp", "gate_proj", "up_proj", "down_proj"),
    presets=_PRESETS,
    gguf=Gguf("qwen3moe", keys=EXPERT_KEYS, more=lambda _config: {"norm_topk_prob": True}),
)
