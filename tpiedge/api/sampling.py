"""How OpenAI's requests have tokens drawn. The ranges are those of the sampler, save where OpenAI's are narrower."""

import secrets

from tpiedge.api.errors import refused
from tpiedge.api.fields import BodyFields
from tpiedge.engine.sampling import (
    BIAS,
    MAX_BIASES,
    MAX_SEED,
    MAX_TOP_K,
    MIN_P,
    PENALTY,
    REPETITION_PENALTY,
    TEMPERATURE,
    TOP_P,
)
from tpiedge.wire.fields import Range
from tpiedge.wire.requests import Sampling


def read_sampling(fields: BodyFields, vocab_size: int, logprobs: int | None, default: Sampling) -> Sampling:
    """`default`: the model's own. `logprobs`: how many alternatives are to be told; None: not even the tokens' own.

    Raises ApiError."""
    top_k = fields.integer("top_k", default.top_k, -1, MAX_TOP_K) or 0
    seed = fields.integer("seed", None, -(2**63), MAX_SEED)
    return Sampling(
        temperature=fields.number("temperature", default.temperature, TEMPERATURE),
        top_k=max(top_k, 0),
        # 0 is allowed by OpenAI and means the likeliest token alone.
        top_p=max(fields.number("top_p", default.top_p, Range(0.0, 1.0)), TOP_P.low),
        min_p=min(fields.number("min_p", default.min_p, Range(0.0, 1.0)), MIN_P.high),
        repetition_penalty=fields.number(
            "repetition_penalty", default.repetition_penalty, REPETITION_PENALTY
        ),
        presence_penalty=fields.number("presence_penalty", default.presence_penalty, PENALTY),
        frequency_penalty=fields.number("frequency_penalty", default.frequency_penalty, PENALTY),
        logit_bias=_logit_bias(fields, vocab_size),
        seed=secrets.randbits(64) if seed is None else seed % (MAX_SEED + 1),
        # The drawn token's own log probability comes with at least one alternative.
        logprobs=0 if logprobs is None else max(1, logprobs),
    )


def _logit_bias(fields: BodyFields, vocab_size: int) -> tuple[tuple[int, float], ...]:
    biases = fields.nested("logit_bias")
    if biases is None:
        return ()
    values = biases.items()
    if len(values) > MAX_BIASES:
        raise refused(f"'logit_bias' has {len(values)} tokens: at most {MAX_BIASES}", "logit_bias")
    found: dict[int, float] = {}
    for key in values:
        token = int(key) if key.isascii() and key.isdigit() and len(key) <= 10 else vocab_size
        if token >= vocab_size or token in found:
            message = f"'logit_bias' names {key[:20]!r}: not a token id below {vocab_size}, given once"
            raise refused(message, "logit_bias")
        found[token] = biases.number(key, 0.0, BIAS)
    return tuple(found.items())
