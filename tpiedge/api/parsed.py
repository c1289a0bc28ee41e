"""Reads the fields that several APIs share. Every request becomes a `ParsedRequest`."""

import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

from msgspec import Meta

from tpiedge.api import fields as t
from tpiedge.api.errors import ApiError, PromptTooLong, refused
from tpiedge.api.fields import BodyFields
from tpiedge.api.transcript import EchoedPrompt
from tpiedge.engine import sampling as limits
from tpiedge.engine.sampling import MAX_LOGPROBS, MAX_SEED
from tpiedge.errors import UserError
from tpiedge.local.prepare import USUAL
from tpiedge.local.served_models import ServedModel, UnknownModel
from tpiedge.local.service import Service
from tpiedge.model.output import OutputForm
from tpiedge.model.tokenizer import TooManyTokens
from tpiedge.wire.fields import MAX_ANSWER_TOKENS, MAX_PROMPT_TOKENS, U32, Range
from tpiedge.wire.requests import GenerationRequest, Grammar, Sampling

MAX_TOKENS = 2**32 - 1
ANSWER_TOKENS = 2048
"""The default limit of an answer's tokens. A model may never end an answer by itself."""
MAX_CHOICES = 128  # OpenAI's limit
MAX_TOOLS = 128
MAX_TOOL_NAME = 64
_MAX_STOPS = 64
_MAX_STOP_CHARACTERS = 256
_ROOM = -1
_CHARACTERS_PER_TOKEN = 64  # A longer text is refused before it is tokenized.
_COUNTED_CHARACTERS = 1 << 20

FormatName = Literal[
    "completion", "chat", "embeddings", "embeddings-base64", "message", "response", "ollama-chat", "ollama-generate",
    "ollama-embed", "ollama-embeddings",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Reply:
    """The form of the answer, which is a part of a record on disk.

    `logprobs` is the number of alternatives per token; None means no scores. `namespaces` maps tool names to
    namespaces. `grammar` names the field that restricts the answer, or is "". With `functions`, calls are written as
    OpenAI's `function_call`. `echo` has the fields that the answer repeats, as JSON. With `goes_on`, the answer
    continues the prompt."""

    format: FormatName
    stream: bool
    include_usage: bool
    logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None
    stops: tuple[str, ...]
    token_ids: bool
    speech: OutputForm = field(default_factory=OutputForm)
    namespaces: Mapping[str, str] = field(default_factory=dict)
    grammar: str = ""
    functions: bool = False
    echo: str = ""
    goes_on: bool = False


@dataclass(frozen=True, slots=True)
class Choice:
    """One requested answer. `prompt`: the index of its prompt. `echo`: the prompt, if the answer repeats it."""

    request: GenerationRequest
    prompt: U32 = 0
    echo: EchoedPrompt | None = None


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """A request. `prompts`: each prompt's first choice. `each`: choices per prompt. `keep_s`: how long weights stay in
    memory without requests; None: unchanged."""

    prompts: tuple[Choice, ...]
    reply: Reply
    ignored: tuple[str, ...]
    each: int = 1
    keep_s: float | None = None


@dataclass(eq=False)
class AnsweredAtOnce(Exception):
    """Raised if a request only loads or unloads the model. `body`: the answer. `model`: its digest. `keep_s`: see
    ParsedRequest."""

    body: dict[str, object]
    ignored: tuple[str, ...]
    model: str
    keep_s: float | None


_STOP: Final[t.JsonSchema] = {"type": "string", "minLength": 1, "maxLength": _MAX_STOP_CHARACTERS}
MODEL: Final[t.JsonSchema] = {
    **t.TEXT,
    "type": ["string", "null"],
    "description": "The name of a model; without, the served one.",
}
TOKEN_IDS: Final[t.JsonSchema] = {"type": "array", "items": {"type": "integer", "minimum": 0}}
STREAM: Final = t.flag("Whether the answer comes as server-sent events.")
LIMIT: Final = {
    **t.integer(_ROOM, MAX_TOKENS, "Tokens of the answer; -1: as many as there is room for."),
    "default": ANSWER_TOKENS,
}
TOP_LOGPROBS: Final = t.integer(0, MAX_LOGPROBS, "Number of likeliest tokens to report; needs `logprobs`.")
_DRAWING: Final[dict[str, t.JsonSchema]] = {
    "temperature": t.number(limits.TEMPERATURE, "Randomness; 0 takes the likeliest token."),
    "top_p": t.number(Range(0.0, 1.0), "Sample from the likeliest tokens up to this total probability."),
    "top_k": t.integer(-1, limits.MAX_TOP_K, "Sample from this many likeliest tokens; 0 and -1: all."),
    "min_p": t.number(Range(0.0, 1.0), "Least probability of a token, relative to the likeliest one."),
    "repetition_penalty": t.number(
        limits.REPETITION_PENALTY, "Divides the logits of tokens of the prompt and the answer."
    ),
    "presence_penalty": t.number(limits.PENALTY, "Subtracted from the logits of tokens of the answer."),
    "frequency_penalty": t.number(limits.PENALTY, "The same, for each occurrence."),
}
SAMPLING: Final[dict[str, t.JsonSchema]] = {
    **{key: schema | {"default": getattr(USUAL, key)} for key, schema in _DRAWING.items()},
    "logit_bias": {
        "type": ["object", "null"],
        "description": "Added to logits, by token id.",
        "maxProperties": limits.MAX_BIASES,
        "propertyNames": {"pattern": "^[0-9]{1,10}$"},
        "additionalProperties": {"type": "number", "minimum": limits.BIAS.low, "maximum": limits.BIAS.high},
    },
    "seed": t.integer(-(2**63), MAX_SEED, "The same seed draws the same tokens; random without."),
}
ANSWERING: Final[dict[str, t.JsonSchema]] = {
    "model": MODEL,
    **SAMPLING,
    "n": t.integer(1, MAX_CHOICES, "Number of answers to each prompt.") | {"default": 1},
    "stream": STREAM,
    "stream_options": t.optional(
        t.body(include_usage=t.flag("Whether the last event reports the usage.")), "Only with `stream`."
    ),
    "stop": t.any_of(
        _STOP,
        {"type": "array", "maxItems": _MAX_STOPS, "items": _STOP},
        {"type": "null"},
        description="Text before which the answer ends.",
    ),
    "return_token_ids": t.flag("Whether the answer reports its token ids."),
    "ignore_eos": t.flag("Whether the answer continues after an end token."),
}
"""The fields that OpenAI's completions and chats share."""


def prompts(most: int, description: str) -> t.JsonSchema:
    lists = [{**t.array(one, most=most), "type": "array", "minItems": 1} for one in (t.TEXT, TOKEN_IDS)]
    return t.any_of(t.TEXT, TOKEN_IDS, *lists, description=description)


def named_model(fields: BodyFields, service: Service) -> ServedModel:
    """Finds the model that the request names, or the served one. May open a model. Raises ApiError."""
    return found_model(service.model, fields.get("model") or "")


def found_model(find: Callable[[str], ServedModel], name: str) -> ServedModel:
    """Returns `find(name)`. Raises ApiError for UnknownModel."""
    try:
        return find(name)
    except UnknownModel as error:
        raise ApiError(404, str(error), "model_not_found", param="model") from None


def read_reply(fields: BodyFields, form: FormatName, logprobs: int | None) -> Reply:
    stream, options, given = fields.get("stream", False), fields.nested("stream_options"), fields.get("stop")
    if fields.get("stream_options") is not None and not stream:
        raise fields.wrong("stream_options", "needs 'stream': true")
    stops = [] if given is None else [given] if isinstance(given, str) else given
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise fields.wrong_type("stop", "a string or an array of strings", given)
    if len(stops) > _MAX_STOPS:
        raise fields.wrong("stop", f"has {len(stops)} entries: at most {_MAX_STOPS}")
    if not all(0 < len(stop) <= _MAX_STOP_CHARACTERS for stop in stops):
        raise refused(f"a string of 'stop' must have 1 to {_MAX_STOP_CHARACTERS} characters", "stop")
    usage, token_ids = options.get("include_usage", False), fields.get("return_token_ids", False)
    return Reply(form, stream, usage, logprobs, tuple(stops), token_ids)


def read_limit(fields: BodyFields, key: str, low: int) -> int | None:
    """Reads a limit of tokens; None if the field is missing, MAX_TOKENS for -1. Raises ApiError."""
    value: int | None = fields.get(key)
    if value == _ROOM:
        return MAX_TOKENS
    if value is not None and value < low:
        raise fields.out_of_range(key, value, low, MAX_TOKENS)
    return value


def read_sampling(fields: BodyFields, model: ServedModel, logprobs: int | None) -> Sampling:
    """Reads sampling parameters, with the model's defaults. `logprobs`: see Reply. Raises ApiError."""
    get, seed, default = fields.get, fields.get("seed"), model.usual_sampling
    return Sampling(
        temperature=get("temperature", default.temperature),
        top_k=max(get("top_k", default.top_k), 0),
        # OpenAI allows a `top_p` of 0, which means the likeliest token alone.
        top_p=max(get("top_p", default.top_p), limits.TOP_P.low),
        min_p=min(get("min_p", default.min_p), limits.MIN_P.high),
        repetition_penalty=get("repetition_penalty", default.repetition_penalty),
        presence_penalty=get("presence_penalty", default.presence_penalty),
        frequency_penalty=get("frequency_penalty", default.frequency_penalty),
        logit_bias=_logit_bias(fields, model.vocab_size),
        seed=secrets.randbits(64) if seed is None else seed % (MAX_SEED + 1),
        # The drawn token's own log probability comes with at least one alternative.
        logprobs=0 if logprobs is None else max(1, logprobs),
    )


def _logit_bias(fields: BodyFields, vocab_size: int) -> tuple[tuple[int, float], ...]:
    given = fields.get("logit_bias") or {}
    if len(given) > limits.MAX_BIASES:
        raise fields.wrong("logit_bias", f"has {len(given)} tokens: at most {limits.MAX_BIASES}")
    found: dict[int, float] = {}
    for key in given:
        token = int(key) if key.isascii() and key.isdigit() and len(key) <= 10 else vocab_size
        if token >= vocab_size or token in found:
            why = f"names {key[:20]!r}: not a token id below {vocab_size}, given once"
            raise fields.wrong("logit_bias", why)
        bias = fields.inner({key: given[key]}, "logit_bias", t.body(**{key: t.number(limits.BIAS, "")}))
        found[token] = bias.get(key, 0.0)
    return tuple(found.items())


def read_prompts(fields: BodyFields, key: str) -> list[Any]:
    value = fields.get(key)
    if isinstance(value, list) and value and type(value[0]) is not int:
        if {type(one) for one in value} not in ({str}, {list}):
            raise fields.wrong(key, "must hold strings alone, token ids alone, or arrays of token ids alone")
        return value
    if not isinstance(value, str | list):
        raise fields.wrong_type(key, "a string, an array of token ids, or an array of either", value)
    return [value]


def read_token_ids(value: str | Sequence[object], param: str, model: ServedModel) -> tuple[int, ...]:
    if isinstance(value, str):
        return encode(value, model, param, add_special=True)
    ids = [token for token in value if type(token) is int and 0 <= token < model.vocab_size]
    if len(ids) < len(value):
        raise refused(f"'{param}' has an entry that is not a token id below {model.vocab_size}", param)
    return tuple(ids)


def answer_limit(prompt: str, maximum: int | None, prompt_tokens: int, model: ServedModel) -> int:
    """Returns how many tokens the answer may have: `maximum` (None: ANSWER_TOKENS), but no more than fit.
    `prompt`: the name of the prompt's field. Raises ApiError."""
    if not prompt_tokens:
        raise refused(f"'{prompt}' is empty: give at least one token", prompt)
    size = f"the prompt has {prompt_tokens} tokens"
    if prompt_tokens > MAX_PROMPT_TOKENS:
        raise PromptTooLong(size, prompt_tokens, MAX_PROMPT_TOKENS, prompt)
    room = model.context_tokens - prompt_tokens
    if room < (0 if maximum == 0 else 1):
        needed = max(prompt_tokens, model.context_tokens + 1)  # with a token of the answer
        raise PromptTooLong(size, needed, model.context_tokens, prompt)
    return min(room, ANSWER_TOKENS if maximum is None else maximum, MAX_ANSWER_TOKENS)


def request_of(
    ids: tuple[int, ...],
    limit: int,
    sampling: Sampling,
    fields: BodyFields,
    grammar: Grammar | None,
    model: ServedModel,
) -> GenerationRequest:
    ignore_eos = fields.get("ignore_eos", False)
    if grammar is not None and ignore_eos:
        raise refused(
            "'ignore_eos' does not go with a grammar, which decides where the answer ends", "ignore_eos"
        )
    return GenerationRequest(
        "", ids, limit, sampling, model.eos_ids, ignore_eos, keep_prefix=True, grammar=grammar
    )


def check_characters(param: str, texts: Sequence[str], model: ServedModel) -> None:
    characters = sum(map(len, texts))
    if characters > model.context_tokens * _CHARACTERS_PER_TOKEN:
        tokens = math.ceil(characters / _CHARACTERS_PER_TOKEN)
        size = f"'{param}' has {characters} characters"
        raise PromptTooLong(size, tokens, model.context_tokens, param, "".join(texts))


def encode(
    text: str, model: ServedModel, param: str, *, add_special: bool, parse_special: bool = True
) -> tuple[int, ...]:
    check_characters(param, [text], model)
    if model.tokenizer is None:
        raise refused(
            "the model has no tokenizer: choose another model, or send token ids to /v1/completions", param
        )
    limit = model.context_tokens
    try:
        ids = model.tokenizer.encode(text, add_special=add_special, parse_special=parse_special, most=limit)
        return tuple(ids)
    except TooManyTokens as error:
        why = f"'{param}' has more than {limit} tokens"
        raise PromptTooLong(why, error.tokens, limit, param, text) from None
    except UserError as error:
        raise refused(str(error), param) from None


def tokens_in(text: str, model: ServedModel) -> int:
    """Counts the tokens of a text; the count of a long text is an estimate."""
    if model.tokenizer is None:
        return 0
    count = model.tokenizer.count(text[:_COUNTED_CHARACTERS])
    return math.ceil(count * max(1.0, len(text) / _COUNTED_CHARACTERS))
