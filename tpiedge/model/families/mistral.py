"""Mistral 7B, Nemo and Small."""

from tpiedge.model.families.family import Family, Windows, window_size
from tpiedge.model.folder import ConfigFields


def _windows(config: ConfigFields, layers: int) -> Windows:
    return (window_size(config, 4096),) * layers


FAMILY = Family(
    "mistral",
    "Mistral",
    {"num_key_value_heads": 8, "bos_token_id": 1, "eos_token_id": 2},
    attention_bias=False,
    windows=_windows,
    wrappers=("mistral3",),
)
