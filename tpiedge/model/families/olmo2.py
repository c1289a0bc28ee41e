"""OLMo 2."""

from collections.abc import Mapping
from typing import Any

from tpiedge.model.families.family import FULL, NORMS_AROUND, SLIDING, Family, Gguf, common, shape

_OLMO2 = common("Olmo2", 1e-6, 500000.0, eos_token_id=100257)
_PRESETS = {
    "olmo2-1b": shape(_OLMO2, 2048, 8192, 16, 16, 16, 100352, 4096),
    "olmo2-7b": shape(_OLMO2, 4096, 11008, 32, 32, 32, 100352, 4096),
    "olmo2-13b": shape(_OLMO2, 5120, 13824, 40, 40, 40, 100352, 4096),
}


def _more(config: Mapping[str, Any]) -> Mapping[str, object]:
    """Returns the fields of OLMo 3 if there are windows, else of OLMo 2."""
    if "sliding_window" not in config:
        return {"model_type": "olmo2", "architectures": ["Olmo2ForCausalLM"]}
    full = config["rope_parameters"]
    local = {"rope_theta": config.get("rope_local_base_freq", full["rope_theta"])}
    pattern = config.get("sliding_window_pattern")
    return {
        "model_type": "olmo3",
        "architectures": ["Olmo3ForCausalLM"],
        "rope_parameters": {FULL[0]: full, SLIDING: local},
        "layer_types": [SLIDING if one else FULL[0] for one in pattern]
        if isinstance(pattern, list)
        else None,
    }


_GGUF = Gguf(
    "olmo2",
    tensors=NORMS_AROUND,
    keys={
        "attention.sliding_window": "sliding_window",
        "attention.sliding_window_pattern": "sliding_window_pattern",
        "rope.freq_base_swa": "rope_local_base_freq",
    },
    more=_more,
)
FAMILY = Family(
    "olmo2",
    "Olmo2",
    {"rms_norm_eps": 1e-5, "max_position_embeddings": 2048, "eos_token_id": 50279},
    row_norms=True,
    norms="after",
    presets=_PRESETS,
    gguf=_GGUF,
)
