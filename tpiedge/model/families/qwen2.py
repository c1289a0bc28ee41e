"""Qwen 2 and 2.5."""

from tpiedge.model.families.family import Family, chosen_windows

FAMILY = Family(
    "qwen2",
    "Qwen2",
    {"num_key_value_heads": 32},
    attention_bias=False,
    qkv_bias=True,
    windows=chosen_windows,
    gguf="qwen2",
)
