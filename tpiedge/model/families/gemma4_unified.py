"""Gemma 4 12B (text)."""

from dataclasses import replace

from tpiedge.model.families import gemma4
from tpiedge.model.families.family import shape

_TYPE = "gemma4_unified_text"
_GEMMA4 = shape(gemma4.GEMMA4, model_type=_TYPE, architectures=["Gemma4UnifiedForCausalLM"])

FAMILY = replace(
    gemma4.FAMILY,
    model_type=_TYPE,
    name="Gemma4Unified",
    defaults={**gemma4.FAMILY.defaults, "max_position_embeddings": 262_144, "sliding_window": 1024},
    layers=gemma4.layers_with(inputs=False),
    experts=(),
    wrappers=("gemma4_unified",),
    presets={
        "gemma4-12b": shape(
            _GEMMA4,
            *(3840, 15360, 48, 16, 8, 262144, 262144),
            attention_k_eq_v=True,
            num_global_key_value_heads=1,
        )
    },
    gguf=None,
)
