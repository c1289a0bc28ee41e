"""SmolLM3, whose every fourth layer is not rotated."""

from tpiedge.model.families.family import (
    Family,
    Gguf,
    Ropes,
    Windows,
    common,
    shape,
    typed_windows,
    window_size,
)
from tpiedge.model.folder import ConfigFields
from tpiedge.model.rope import RopeConfig


def _rotated(config: ConfigFields, layers: int) -> list[bool]:
    if config.raw("no_rope_layers") is None:
        every = config.integer("no_rope_layer_interval", 1, 1 << 16, 4)
        return [(layer + 1) % every != 0 for layer in range(layers)]
    listed = config.sequence("no_rope_layers", 1 << 16)
    if len(listed) < layers or any(value not in (0, 1) for value in listed):
        config.refuse("no_rope_layers", f"is not one 0 or 1 for each of {layers} layers")
    return [value == 1 for value in listed[:layers]]


def _windows(config: ConfigFields, layers: int) -> Windows:
    window = window_size(config)
    if config.raw("layer_types") is not None:
        return typed_windows(config, layers, window)
    window = window if config.flag("use_sliding_window", False) else None
    return tuple(None if rotated else window for rotated in _rotated(config, layers))


def _ropes(config: ConfigFields, positions: int, windows: Windows) -> Ropes:
    rope = RopeConfig.from_huggingface(config, positions, theta=2_000_000.0)
    return tuple(rope if rotated else None for rotated in _rotated(config, len(windows)))


_PRESETS = {
    "smollm3-3b": shape(
        common("SmolLM3", 1e-6, 5e6, True, bos_token_id=128000, eos_token_id=128012),
        2048,
        11008,
        36,
        16,
        4,
        128256,
        65536,
    ),
}

FAMILY = Family(
    "smollm3",
    "SmolLM3",
    {"num_key_value_heads": 4, "bos_token_id": 128000, "eos_token_id": 128001, "tie_word_embeddings": True},
    mlp_bias=None,
    windows=_windows,
    ropes=_ropes,
    presets=_PRESETS,
    gguf=Gguf("smollm3", paired=True),
)
