"""Granite 3 and 4 (dense)."""

from tpiedge.model.families.family import Factors, Family, factor
from tpiedge.model.folder import ConfigFields


def _factors(config: ConfigFields) -> Factors:
    return Factors(
        embedding=factor(config, "embedding_multiplier"),
        block=factor(config, "residual_multiplier"),
        scores=factor(config, "attention_multiplier"),
        logit_divisor=factor(config, "logits_scaling"),
    )


FAMILY = Family(
    "granite", "Granite", {"bos_token_id": 1, "eos_token_id": 2}, mlp_bias=None, factors=_factors,
)  # fmt: skip
