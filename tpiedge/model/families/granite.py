"""Granite 3 and 4 (dense)."""

from tpiedge.model.families.family import Factors, Family, Gguf, common, factor, shape
from tpiedge.model.folder import ConfigFields


def _factors(config: ConfigFields) -> Factors:
    return Factors(
        embedding=factor(config, "embedding_multiplier"),
        block=factor(config, "residual_multiplier"),
        scores=factor(config, "attention_multiplier"),
        logit_divisor=factor(config, "logits_scaling"),
    )


_GRANITE33 = common(
    "Granite",
    1e-5,
    1e7,
    True,
    bos_token_id=0,
    eos_token_id=0,
    embedding_multiplier=12.0,
    residual_multiplier=0.22,
)

_PRESETS = {
    "granite3.3-2b": shape(
        _GRANITE33, 2048, 8192, 40, 32, 8, 49159, 131072, attention_multiplier=1 / 64, logits_scaling=8.0
    ),
    "granite3.3-8b": shape(
        _GRANITE33, 4096, 12800, 40, 32, 8, 49159, 131072, attention_multiplier=1 / 128, logits_scaling=16.0
    ),
}

_GGUF = Gguf(
    "granite",
    paired=True,
    keys={
        "embedding_scale": "embedding_multiplier",
        "residual_scale": "residual_multiplier",
        "attention.scale": "attention_multiplier",
        "logit_scale": "logits_scaling",
    },
    more=lambda config: {
        "attention_multiplier": config.get("attention_multiplier", config["head_dim"] ** -0.5)
    },
)

FAMILY = Family(
    "granite",
    "Granite",
    {"bos_token_id": 1, "eos_token_id": 2},
    mlp_bias=None,
    factors=_factors,
    presets=_PRESETS,
    gguf=_GGUF,
)
