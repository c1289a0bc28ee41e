"""OLMo 3."""

from dataclasses import replace

from tpiedge.model.families import olmo2
from tpiedge.model.families.family import common, periodic_windows, ropes_by_type, shape

_YARN = {
    "rope_type": "yarn",
    "factor": 8.0,
    "original_max_position_embeddings": 8192,
    "attention_factor": 1.2079441541679836,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
}
_OLMO3 = common("Olmo3", 1e-6, 500000.0, eos_token_id=100257, sliding_window=4096, rope_scaling=_YARN)
_PRESETS = {
    "olmo3-7b": shape(_OLMO3, 4096, 11008, 32, 32, 32, 100278, 65536),
    "olmo3-32b": shape(_OLMO3, 5120, 27648, 64, 40, 8, 100278, 65536),
}

FAMILY = replace(
    olmo2.FAMILY,
    model_type="olmo3",
    name="Olmo3",
    windows=periodic_windows(4, 4096),
    ropes=ropes_by_type(500_000.0, 500_000.0),
    presets=_PRESETS,
)
