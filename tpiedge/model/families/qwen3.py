"""Qwen 3."""

from tpiedge.model.families.family import Family, chosen_windows

FAMILY = Family(
    "qwen3",
    "Qwen3",
    {"num_key_value_heads": 32, "head_dim": 128},
    head_norms=True,
    windows=chosen_windows,
    gguf="qwen3",
)
