"""The fields that requests for answers have in common: which model, how tokens are drawn, how the answer is given. The
ranges are those of the sampler, save where OpenAI's are narrower."""

import secrets
from typing import Final

from tpiedge.api import tables as t
from tpiedge.api.asked import MAX_CHOICES, MAX_STOP_CHARACTERS, MAX_STOPS, MAX_TOKENS, FormatName, Reply
from tpiedge.api.errors import ApiError, refused
from tpiedge.api.fields import BodyFields
from tpiedge.api.service import Service
from tpiedge.engine.sampling import (
    BIAS,
    MAX_BIASES,
    MAX_LOGPROBS,
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

_VAIN: Final = (
    "user", "store", "metadata", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
    "reasoning_effort", "verbosity",
)  # fmt: skip
_ROOM: Final = -1
_LATEST: Final = ":latest"  # which Ollama's clients write after a name
_STOP: Final[t.JsonSchema] = {"type": "string", "minLength": 1, "maxLength": MAX_STOP_CHARACTERS}

MODEL: Final[t.JsonSchema] = {
    **t.TEXT,
    "description": "The name of the model that is served, or an alias of it.",
}
TOKEN_IDS: Final[t.JsonSchema] = {"type": "array", "items": {"type": "integer", "minimum": 0}}
STREAM: Final = t.flag("Whether the answer comes as server-sent events.")
LIMIT: Final = t.integer(_ROOM, MAX_TOKENS, "Tokens of the answer; -1: as many as there is room for.")
TOP_LOGPROBS: Final = t.integer(
    0, MAX_LOGPROBS, "How many of the likeliest tokens are told; needs `logprobs`."
)
SAMPLING: Final[dict[str, t.JsonSchema]] = {
    "temperature": t.number(TEMPERATURE, "0 takes the likeliest token."),
    "top_p": t.number(Range(0.0, 1.0), "Of the likeliest tokens, those that together have this probability."),
    "top_k": t.integer(-1, MAX_TOP_K, "Of the likeliest tokens, so many; 0 and -1: all."),
    "min_p": t.number(Range(0.0, 1.0), "Tokens with at least this part of the likeliest one's probability."),
    "repetition_penalty": t.number(REPETITION_PENALTY, "Divides the scores of tokens that were there."),
    "presence_penalty": t.number(PENALTY, "Is taken from the scores of tokens that were said."),
    "frequency_penalty": t.number(PENALTY, "The same, for each time."),
    "logit_bias": {
        "type": ["object", "null"],
        "description": "Is added to scores, by token id.",
        "maxProperties": MAX_BIASES,
        "propertyNames": {"pattern": "^[0-9]{1,10}$"},
        "additionalProperties": {"type": "number", "minimum": BIAS.low, "maximum": BIAS.high},
    },
    "seed": t.integer(-(2**63), MAX_SEED, "The same seed draws the same tokens."),
}
ANSWERING: Final[dict[str, t.JsonSchema]] = {
    "model": MODEL,
    **SAMPLING,
    "n": t.integer(1, MAX_CHOICES, "How many answers, of each prompt."),
    "stream": STREAM,
    "stream_options": t.optional(
        t.body(include_usage=t.flag("Whether the last event has the usage."), include_obfuscation=t.VAIN),
        "Only with `stream`.",
    ),
    "stop": t.any_of(
        _STOP,
        {"type": "array", "maxItems": MAX_STOPS, "items": _STOP},
        {"type": "null"},
        description="Where the answer ends; not a part of it.",
    ),
    "return_token_ids": t.flag("Whether the answer has its token ids."),
    "ignore_eos": t.flag("Whether the answer goes on where the model would end it."),
    **t.vain(*_VAIN),
}
"""Of OpenAI's completions and chats."""


def check_model(fields: BodyFields, service: Service) -> None:
    """Raises ApiError where the request names another model."""
    model = fields.text("model")
    served = service.model()
    if (
        model is not None
        and not served.is_called(model)
        and not served.is_called(model.removesuffix(_LATEST))
    ):
        message = f"the model {model[:100]!r} is not served here; {served.name!r} is"
        raise ApiError(404, message, "model_not_found", param="model")


def read_reply(fields: BodyFields, form: FormatName, logprobs: int | None) -> Reply:
    """How the answer is to be given. Raises ApiError."""
    stream = fields.flag("stream")
    options = fields.nested("stream_options")
    if options is not None and not stream:
        raise refused("'stream_options' needs 'stream': true", "stream_options")
    include_usage = options is not None and options.flag("include_usage")
    return Reply(form, stream, include_usage, logprobs, _stops(fields), fields.flag("return_token_ids"))


def _stops(fields: BodyFields) -> tuple[str, ...]:
    value = fields.raw("stop")
    stops = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise fields.wrong_type("stop", "a string or an array of strings", value)
    if len(stops) > MAX_STOPS:
        raise refused(f"'stop' has {len(stops)} entries: at most {MAX_STOPS}", "stop")
    if not all(0 < len(stop) <= MAX_STOP_CHARACTERS for stop in stops):
        raise refused(f"a string of 'stop' must have 1 to {MAX_STOP_CHARACTERS} characters", "stop")
    return tuple(stops)


def read_limit(fields: BodyFields, key: str, low: int) -> int | None:
    """Reads how many tokens the answer may have: at least `low`, or -1, which is as many as there is room for. Raises
    ApiError."""
    value = fields.integer(key)
    if value == _ROOM:
        return MAX_TOKENS
    if value is not None and value < low:
        raise fields.out_of_range(key, value, low, MAX_TOKENS)
    return value


def read_sampling(fields: BodyFields, service: Service, logprobs: int | None) -> Sampling:
    """`logprobs`: how many alternatives are to be told; None: not even the tokens' own. Raises ApiError."""
    default, top_k, seed = service.usual_sampling, fields.integer("top_k"), fields.integer("seed")
    return Sampling(
        temperature=fields.number("temperature", default.temperature),
        top_k=default.top_k if top_k is None else max(top_k, 0),
        # 0 is allowed by OpenAI and means the likeliest token alone.
        top_p=max(fields.number("top_p", default.top_p), TOP_P.low),
        min_p=min(fields.number("min_p", default.min_p), MIN_P.high),
        repetition_penalty=fields.number("repetition_penalty", default.repetition_penalty),
        presence_penalty=fields.number("presence_penalty", default.presence_penalty),
        frequency_penalty=fields.number("frequency_penalty", default.frequency_penalty),
        logit_bias=_logit_bias(fields, service.vocab_size),
        seed=secrets.randbits(64) if seed is None else seed % (MAX_SEED + 1),
        # The drawn token's own log probability comes with at least one alternative.
        logprobs=0 if logprobs is None else max(1, logprobs),
    )


def _logit_bias(fields: BodyFields, vocab_size: int) -> tuple[tuple[int, float], ...]:
    given = fields.raw("logit_bias") or {}
    if len(given) > MAX_BIASES:
        raise refused(f"'logit_bias' has {len(given)} tokens: at most {MAX_BIASES}", "logit_bias")
    found: dict[int, float] = {}
    for key in given:
        token = int(key) if key.isascii() and key.isdigit() and len(key) <= 10 else vocab_size
        if token >= vocab_size or token in found:
            message = f"'logit_bias' names {key[:20]!r}: not a token id below {vocab_size}, given once"
            raise refused(message, "logit_bias")
        bias = fields.inner({key: given[key]}, "logit_bias", t.body(**{key: t.number(BIAS, "")}))
        found[token] = bias.number(key, 0.0)
    return tuple(found.items())
