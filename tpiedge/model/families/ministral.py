"""Ministral 8B, whose layers have windows or not."""

from tpiedge.model.families.family import Family, listed_windows

FAMILY = Family(
    "ministral",
    "Ministral",
    {"num_key_value_heads": 8, "bos_token_id": 1, "eos_token_id": 2},
    attention_bias=False,
    windows=listed_windows,
)
