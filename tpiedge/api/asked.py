"""What requests of all forms come to: token ids that fit the context, what the cluster is asked for, and how the answer
is to be given."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal, Self, TypeAlias

from msgspec import Meta

from tpiedge.api.errors import PromptTooLong, refused
from tpiedge.api.service import Service
from tpiedge.api.transcript import EchoedPrompt
from tpiedge.engine.sampling import MAX_LOGPROBS, MAX_SEED
from tpiedge.errors import UserError
from tpiedge.model.call_reader import CallForm, ReadTool
from tpiedge.model.speech import SpeechForm, Thinking
from tpiedge.model.tokenizer import TooManyTokens
from tpiedge.wire.fields import U32
from tpiedge.wire.limits import MAX_ANSWER_TOKENS, MAX_PROMPT_TOKENS
from tpiedge.wire.requests import GenerationRequest, Grammar, Sampling

MAX_TOKENS = 2**32 - 1
ANSWER_TOKENS = 2048
"""Of an answer for which nobody says how long it may be: a model that never comes to an end is stopped."""
MAX_CHOICES = 128
"""That one request may have: as many as OpenAI's."""
MAX_TOOLS = 128
MAX_TOOL_NAME = 64
MAX_TEXTS = 128
MAX_TEXT_NAME = 64
"""Of the parameters that are known to be texts; of others the answer itself shows what they are."""

MAX_ECHO = 131_072
"""Characters of what an answer repeats of its request."""

MAX_STOPS = 64
MAX_STOP_CHARACTERS = 256
FormatName = Literal[
    "completion",
    "chat",
    "embeddings",
    "embeddings-base64",
    "message",
    "response",
    "ollama-chat",
    "ollama-generate",
    "ollama-embed",
    "ollama-embeddings",
]
"""The form of an answer; `formats` has what makes it."""

_Stop: TypeAlias = Annotated[str, Meta(max_length=MAX_STOP_CHARACTERS)]
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
    stops: Annotated[tuple[_Stop, ...], Meta(max_length=MAX_STOPS)]
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
        """What is looked for in the text."""
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
    """What a client wants, at least one choice, and the names of the fields that it sent in vain."""

    choices: tuple[Choice, ...]
    reply: Reply
    ignored: tuple[str, ...]

    def within(self, scope: str) -> Self:
        """Returns the same request with that scope, as of GenerationRequest."""
        choices = [replace(one, request=replace(one.request, scope=scope)) for one in self.choices]
        return replace(self, choices=tuple(choices))


class AnsweredAtOnce(Exception):
    """In place of an Asked: nothing is wanted of the model, and the client is told `body`; `ignored` as of Asked."""

    def __init__(self, body: dict[str, object], ignored: tuple[str, ...]) -> None:
        super().__init__("answered at once")
        self.body = body
        self.ignored = ignored


def read_token_ids(value: Sequence[object], param: str, service: Service) -> tuple[int, ...]:
    """Raises ApiError where one is no token's."""
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
    ignore_eos: bool,
    grammar: Grammar | None = None,
) -> GenerationRequest:
    """For the cluster, still without an id. Raises ApiError."""
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
    every = [
        replace(choice, request=_reseeded(choice.request, n)) for choice in choices for n in range(count)
    ]
    names = [name] if len(every) == 1 else [f"{name}-{number}" for number in range(len(every))]
    return tuple(
        replace(choice, request=replace(choice.request, id=own))
        for choice, own in zip(every, names, strict=True)
    )


def _reseeded(request: GenerationRequest, number: int) -> GenerationRequest:
    seed = (request.sampling.seed + number) % (MAX_SEED + 1)
    return replace(request, sampling=replace(request.sampling, seed=seed))


_CHARACTERS_PER_TOKEN = 64
"""A text with more characters than this per position cannot fit: it is refused before it is tokenized."""
_COUNTED_CHARACTERS = 1 << 20


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
    if service.tokenizer is None:
        raise refused("the model has no tokenizer: send token ids to /v1/completions", param)
    try:
        ids = service.tokenizer.encode(
            text, add_special=add_special, parse_special=parse_special, most=service.max_sequence
        )
        return tuple(ids)
    except TooManyTokens as error:
        limit = service.max_sequence
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
