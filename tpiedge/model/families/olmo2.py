"""OLMo 2."""

from tpiedge.model.families.family import Family, common, shape

_OLMO2 = common("Olmo2", 1e-6, 500000.0, eos_token_id=100257)
_PRESETS = {
    "olmo2-1b": shape(_OLMO2, 2048, 8192, 16, 16, 16, 100352, 4096),
    "olmo2-7b": shape(_OLMO2, 4096, 11008, 32, 32, 32, 100352, 4096),
    "olmo2-13b": shape(_OLMO2, 5120, 13824, 40, 40, 40, 100352, 4096),
}

FAMILY = Family(
    "olmo2",
    "Olmo2",
    {"rms_norm_eps": 1e-5, "max_position_embeddings": 2048, "eos_token_id": 50279},
    row_norms=True,
    norms="after",
    presets=_PRESETS,
)
