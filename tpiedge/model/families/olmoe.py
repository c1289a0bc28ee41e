"""OLMoE."""

from tpiedge.model.families.family import (
    EXPERT_KEYS,
    Family,
    Gguf,
    Layers,
    by_expert,
    common,
    shape,
    with_experts,
)
from tpiedge.model.folder import ConfigFields

_ALL = with_experts(64, "intermediate_size", lambda config: config.flag("norm_topk_prob", False))


def _layers(config: ConfigFields, alike: Layers) -> Layers:
    if config.raw("clip_qkv") is not None:
        config.refuse("clip_qkv", "is set: clipped queries, keys and values are not supported")
    return _ALL(config, alike)


_PRESETS = {
    "olmoe-1b-7b": shape(
        common("Olmoe", 1e-5, 10000.0, eos_token_id=50279),
        *(2048, 1024, 16, 16, 16, 50304, 4096),
        num_experts=64,
        num_experts_per_tok=8,
    )
}

FAMILY = Family(
    "olmoe",
    "Olmoe",
    {
        "vocab_size": 50304,
        "hidden_size": 2048,
        "intermediate_size": 2048,
        "num_hidden_layers": 16,
        "num_attention_heads": 16,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "eos_token_id": 50279,
        "num_experts_per_tok": 8,
    },
    row_norms=True,
    layers=_layers,
    experts=by_expert("mlp", "gate_proj", "up_proj", "down_proj"),
    presets=_PRESETS,
    gguf=Gguf("olmoe", keys=EXPERT_KEYS),
)
