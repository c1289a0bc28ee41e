"""Mistral 7B, Nemo and Small."""

from tpiedge.model.families.family import Family, common, listed_windows, shape

_MISTRAL = common("Mistral", 1e-5, 10000.0, bos_token_id=1, eos_token_id=2, sliding_window=4096)
_SMALL = common("Mistral", 1e-5, 1e9, bos_token_id=1, eos_token_id=2, sliding_window=None, head_dim=128)

_PRESETS = {
    "mistral-7b": shape(_MISTRAL, 4096, 14336, 32, 32, 8, 32000, 32768),
    "mistral-7b-v0.3": shape(
        _MISTRAL, 4096, 14336, 32, 32, 8, 32768, 32768, rope_theta=1000000.0, sliding_window=None
    ),
    "mistral-small3.2-24b": shape(_SMALL, 5120, 32768, 40, 32, 8, 131072, 131072),
}

FAMILY = Family(
    "mistral",
    "Mistral",
    {"num_key_value_heads": 8, "bos_token_id": 1, "eos_token_id": 2},
    attention_bias=False,
    windows=listed_windows,
    wrappers=("mistral3",),
    ignored_in_wrappers=frozenset({"layer_types"}),
    presets=_PRESETS,
)
