"""A request of any form becomes an `Asked`: token ids that fit the context, and how the answer is to be given. The
fields that several forms have are read here, in the ranges of the sampler, save where OpenAI's are narrower."""

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, Literal, TypeAlias

from msgspec import Meta

from tpiedge.api import fields as t
from tpiedge.api.errors import ApiError, PromptTooLong, refused
from tpiedge.api.fields import BodyFields
from tpiedge.api.service import Service
from tpiedge.api.transcript import EchoedPrompt
from tpiedge.engine import sampling as limits
from tpiedge.engine.sampling import MAX_LOGPROBS, MAX_SEED
from tpiedge.errors import UserError
from tpiedge.model.call_reader import CallForm, ReadTool
from tpiedge.model.speech import SpeechForm, Thinking
from tpiedge.model.tokenizer import TooManyTokens
from tpiedge.wire.fields import MAX_ANSWER_TOKENS, MAX_PROMPT_TOKENS, U32, Range
from tpiedge.wire.requests import GenerationRequest, Grammar, Sampling

MAX_TOKENS = 2**32 - 1
ANSWER_TOKENS = 2048
"""An answer has at most so many tokens where the request has no limit: a model may never come to an end."""
MAX_CHOICES = 128
"""One request may have so many: as many as OpenAI's."""
MAX_TOOLS = 128
MAX_TOOL_NAME = 64
MAX_TEXTS = 128
MAX_TEXT_NAME = 64
"""A longer name of a parameter is not kept: the answer itself shows whether the value is a text."""
MAX_ECHO = 131_072
"""Characters of what an answer repeats of its request."""
_MAX_STOPS = 64
_MAX_STOP_CHARACTERS = 256
_ROOM = -1
_CHARACTERS_PER_TOKEN = 64
"""A text with more characters than this per position cannot fit: it is refused before it is tokenized."""
_COUNTED_CHARACTERS = 1 << 20

FormatName = Literal[
    "completion", "chat", "embeddings", "embeddings-base64", "message", "response", "ollama-chat", "ollama-generate",
    "ollama-embed", "ollama-embeddings",
]  # fmt: skip
"""The form of an answer; `completions` has what reads and writes each."""

_Stop: TypeAlias = Annotated[str, Meta(max_length=_MAX_STOP_CHARACTERS)]
_ToolName: TypeAlias = Annotated[str, Meta(max_length=MAX_TOOL_NAME)]
_ToolNames: TypeAlias = Annotated[tuple[_ToolName, ...], Meta(max_length=MAX_TOOLS)]
_TextName: TypeAlias = Annotated[str, Meta(max_length=MAX_TEXT_NAME)]
_TextNames: TypeAlias = Annotated[tuple[_TextName, ...], Meta(max_length=MAX_TEXTS)]


@dataclass(frozen=True, slots=True)
class Reply:
    """How the answer is to be given.

    `logprobs`: how many alternatives to report per token; None reports nothing. `calls`, `several`, `required` and
    `thinking` are those of its SpeechForm, `tools` the names of its tools, and `texts` their parameters that are texts,
    where the form needs that; `namespaces` are those of the tools, if any has one. `grammar`: the field of the request
    that says what the answer must keep to, if one does. `functions`: a call is told as OpenAI's API had it before there
    were tools. `echo`: fields of the request that the answer repeats, as JSON. `goes_on`: whether its text is that of
    the prompt, continued.
    """

    format: FormatName
    stream: bool
    include_usage: bool
    logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None
    stops: Annotated[tuple[_Stop, ...], Meta(max_length=_MAX_STOPS)]
    token_ids: bool
    calls: CallForm = ""
    tools: _ToolNames = ()
    texts: Annotated[tuple[_TextNames, ...], Meta(max_length=MAX_TOOLS)] = ()
    namespaces: _ToolNames = ()
    several: bool = True
    thinking: Thinking = ""
    grammar: Annotated[str, Meta(max_length=64)] = ""
    required: bool = False
    functions: bool = False
    echo: Annotated[str, Meta(max_length=MAX_ECHO)] = ""
    goes_on: bool = False

    @property
    def speech(self) -> SpeechForm:
        """The calls and thoughts that are looked for in the text."""
        texts = self.texts or [()] * len(self.tools)
        tools = [ReadTool(*both) for both in zip(self.tools, texts, strict=True)]
        return SpeechForm(self.calls, tools, self.several, self.thinking, self.required)


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the answers that a request asks for. `prompt`: the number of the prompt that it continues; `echo`: the
    prompt, where the answer is to begin with it."""

    request: GenerationRequest
    prompt: U32 = 0
    echo: EchoedPrompt | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that was read: at least one choice, and the names of the fields without an effect."""

    choices: tuple[Choice, ...]
    reply: Reply
    ignored: tuple[str, ...]


class AnsweredAtOnce(Exception):
    """Comes in place of an Asked: the model has nothing to do, and the client is told `body`; `ignored` as of Asked."""

    def __init__(self, body: dict[str, object], ignored: tuple[str, ...]) -> None:
        super().__init__("answered at once")
        self.body = body
        self.ignored = ignored


_STOP: Final[t.JsonSchema] = {"type": "string", "minLength": 1, "maxLength": _MAX_STOP_CHARACTERS}
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
    "temperature": t.number(limits.TEMPERATURE, "0 takes the likeliest token."),
    "top_p": t.number(Range(0.0, 1.0), "Of the likeliest tokens, those that together have this probability."),
    "top_k": t.integer(-1, limits.MAX_TOP_K, "Of the likeliest tokens, so many; 0 and -1: all."),
    "min_p": t.number(Range(0.0, 1.0), "Tokens with at least this part of the likeliest one's probability."),
    "repetition_penalty": t.number(
        limits.REPETITION_PENALTY, "Divides the scores of tokens that were there."
    ),
    "presence_penalty": t.number(limits.PENALTY, "Is taken from the scores of tokens that were said."),
    "frequency_penalty": t.number(limits.PENALTY, "The same, for each time."),
    "logit_bias": {
        "type": ["object", "null"],
        "description": "Is added to scores, by token id.",
        "maxProperties": limits.MAX_BIASES,
        "propertyNames": {"pattern": "^[0-9]{1,10}$"},
        "additionalProperties": {"type": "number", "minimum": limits.BIAS.low, "maximum": limits.BIAS.high},
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
        {"type": "array", "maxItems": _MAX_STOPS, "items": _STOP},
        {"type": "null"},
        description="Where the answer ends; not a part of it.",
    ),
    "return_token_ids": t.flag("Whether the answer has its token ids."),
    "ignore_eos": t.flag("Whether the answer goes on where the model would end it."),
    **t.vain(
        "user", "store", "metadata", "service_tier", "safety_identifier", "prompt_cache_key",
        "prompt_cache_retention", "reasoning_effort", "verbosity",
    ),
}  # fmt: skip
"""The fields that OpenAI's completions and chats have in common."""


def prompts(most: int, description: str) -> t.JsonSchema:
    """A field that `read_prompts` reads."""
    lists = [{**t.array(one, most=most), "type": "array", "minItems": 1} for one in (t.TEXT, TOKEN_IDS)]
    return t.any_of(t.TEXT, TOKEN_IDS, *lists, description=description)


def check_model(fields: BodyFields, service: Service) -> None:
    """Raises ApiError where the request names another model. Ollama's clients write ":latest" after a name."""
    model, served = fields.get("model"), service.model()
    if model is not None and not any(map(served.is_called, (model, model.removesuffix(":latest")))):
        message = f"the model {model[:100]!r} is not served here; {served.name!r} is"
        raise ApiError(404, message, "model_not_found", param="model")


def read_reply(fields: BodyFields, form: FormatName, logprobs: int | None) -> Reply:
    """Reads how the answer is to be given. Raises ApiError."""
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
    """Reads how many tokens the answer may have: at least `low`, or -1, which is as many as there is room for. Raises
    ApiError."""
    value: int | None = fields.get(key)
    if value == _ROOM:
        return MAX_TOKENS
    if value is not None and value < low:
        raise fields.out_of_range(key, value, low, MAX_TOKENS)
    return value


def read_sampling(fields: BodyFields, service: Service, logprobs: int | None) -> Sampling:
    """`logprobs`: how many alternatives are to be told; None: not even the tokens' own. Raises ApiError."""
    default, top_k, seed = service.usual_sampling, fields.get("top_k"), fields.get("seed")
    return Sampling(
        temperature=fields.get("temperature", default.temperature),
        top_k=default.top_k if top_k is None else max(top_k, 0),
        # 0 is allowed by OpenAI and means the likeliest token alone.
        top_p=max(fields.get("top_p", default.top_p), limits.TOP_P.low),
        min_p=min(fields.get("min_p", default.min_p), limits.MIN_P.high),
        repetition_penalty=fields.get("repetition_penalty", default.repetition_penalty),
        presence_penalty=fields.get("presence_penalty", default.presence_penalty),
        frequency_penalty=fields.get("frequency_penalty", default.frequency_penalty),
        logit_bias=_logit_bias(fields, service.vocab_size),
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
    """One text or list of token ids each. Raises ApiError."""
    value = fields.get(key)
    if isinstance(value, list) and value and isinstance(value[0], str | list):
        kind = str if isinstance(value[0], str) else list
        if not all(isinstance(one, kind) for one in value):
            raise fields.wrong(key, "mixes strings and arrays of token ids")
        return value
    if not isinstance(value, str | list):
        raise fields.wrong_type(key, "a string, an array of token ids, or an array of either", value)
    return [value]


def read_token_ids(value: str | Sequence[object], param: str, service: Service) -> tuple[int, ...]:
    """The token ids of a text, or the given ones. Raises ApiError where one is no token's."""
    if isinstance(value, str):
        return encode(value, service, param, add_special=True)
    ids = [token for token in value if type(token) is int and 0 <= token < service.vocab_size]
    if len(ids) < len(value):
        raise refused(f"'{param}' holds what is not a token id below {service.vocab_size}", param)
    return tuple(ids)


def answer_limit(prompt: str, maximum: int | None, prompt_tokens: int, service: Service) -> int:
    """Tokens of the answer: what was asked for, or the usual number, as far as they fit and another epoch could go on
    with them. `prompt` names a field. Raises ApiError."""
    if not prompt_tokens:
        raise refused("the prompt is empty: give at least one token", prompt)
    size = f"the prompt has {prompt_tokens} tokens"
    if prompt_tokens > MAX_PROMPT_TOKENS:
        raise PromptTooLong(size, prompt_tokens, MAX_PROMPT_TOKENS, prompt)
    room = service.max_sequence - prompt_tokens
    if room < (0 if maximum == 0 else 1):
        needed = max(prompt_tokens, service.max_sequence + 1)  # with a token of the answer
        raise PromptTooLong(size, needed, service.max_sequence, prompt)
    return min(room, ANSWER_TOKENS if maximum is None else maximum, MAX_ANSWER_TOKENS)


def request_of(
    prompt_ids: tuple[int, ...],
    limit: int,
    sampling: Sampling,
    service: Service,
    *,
    ignore_eos: bool = False,
    grammar: Grammar | None = None,
) -> GenerationRequest:
    """Makes a request for the cluster, still without an id. Raises ApiError."""
    if grammar is not None and ignore_eos:
        raise refused("'ignore_eos' cannot be kept where a grammar says where the answer ends", "ignore_eos")
    return GenerationRequest(
        id="",
        prompt_ids=prompt_ids,
        max_tokens=limit,
        sampling=sampling,
        stop_ids=service.eos_ids,
        ignore_eos=ignore_eos,
        keep_prefix=True,
        grammar=grammar,
    )


def named_choices(choices: Sequence[Choice], count: int, name: str) -> tuple[Choice, ...]:
    """`count` of each, with requests that have the answer's name, and a number where they are several.

    The first one of each is drawn with its seed, the second one with the next, and so on: so that a seed gives the
    same answers again, and not the same answer `count` times.
    """
    found: list[Choice] = []
    for choice in choices:
        request = choice.request
        for n in range(count):
            own = name if len(choices) * count == 1 else f"{name}-{len(found)}"
            drawn = replace(request.sampling, seed=(request.sampling.seed + n) % (MAX_SEED + 1))
            found.append(replace(choice, request=replace(request, id=own, sampling=drawn)))
    return tuple(found)


def check_characters(param: str, texts: Sequence[str], service: Service) -> None:
    """Raises ApiError for a text that cannot fit, whatever it says: all of these together."""
    characters = sum(map(len, texts))
    if characters > service.max_sequence * _CHARACTERS_PER_TOKEN:
        tokens = math.ceil(characters / _CHARACTERS_PER_TOKEN)
        size = f"'{param}' has {characters} characters"
        raise PromptTooLong(size, tokens, service.max_sequence, param, "".join(texts))


def encode(
    text: str, service: Service, param: str, *, add_special: bool, parse_special: bool = True
) -> tuple[int, ...]:
    """The token ids of `text`, which is the value of `param`, as of Tokenizer.encode. Raises ApiError."""
    check_characters(param, [text], service)
    if service.tokenizer is None:
        raise refused("the model has no tokenizer: send token ids to /v1/completions", param)
    limit = service.max_sequence
    try:
        ids = service.tokenizer.encode(text, add_special=add_special, parse_special=parse_special, most=limit)
        return tuple(ids)
    except TooManyTokens as error:
        why = f"'{param}' has more than {limit} tokens"
        raise PromptTooLong(why, error.tokens, limit, param, text) from None
    except UserError as error:
        raise refused(str(error), param) from None


def tokens_in(text: str, service: Service) -> int:
    """Counts the tokens of a text of any length. Of a text that is longer than `_COUNTED_CHARACTERS` the rest is taken
    to have as many for a character."""
    if service.tokenizer is None:
        return 0
    count = service.tokenizer.count(text[:_COUNTED_CHARACTERS])
    return math.ceil(count * max(1.0, len(text) / _COUNTED_CHARACTERS))
