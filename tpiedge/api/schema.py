"""OpenAI's requests to ours: every field is checked before any work is done for it.

Clients of other servers send fields that are not known here. They are accepted, and told back as ignored.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from tpiedge.api.encoding import check_characters, encode
from tpiedge.api.errors import ApiError, refused
from tpiedge.api.fields import BodyFields
from tpiedge.api.messages import read_messages
from tpiedge.api.sampling import read_sampling
from tpiedge.api.service import Service
from tpiedge.engine.sampling import MAX_LOGPROBS
from tpiedge.errors import UserError
from tpiedge.wire.fields import MaxItems, MaxLength, Range
from tpiedge.wire.limits import MAX_ANSWER_TOKENS, MAX_PROMPT_TOKENS
from tpiedge.wire.requests import GenerationRequest, Sampling

__all__ = [
    "Asked",
    "Reply",
    "check_model",
    "read_chat",
    "read_completion",
    "read_token_ids",
    "read_variables",
    "render_chat",
]

_MAX_STOPS = 16
_MAX_STOP_CHARACTERS = 256
_MAX_TOKENS = 2**32 - 1
_COMPLETION_TOKENS = 16  # OpenAI's default
_ANSWER_TOKENS = 2048  # a model that never comes to an end is stopped

_IGNORED = (
    "user",
    "store",
    "metadata",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "parallel_tool_calls",
    "reasoning_effort",
    "verbosity",
)
_SWITCHES = ("enable_thinking", "thinking")


@dataclass(frozen=True, slots=True)
class Reply:
    """How the answer is to be given.

    `logprobs`: how many alternatives to report per token; None reports nothing.
    """

    chat: bool
    stream: bool
    include_usage: bool
    logprobs: Annotated[int, Range(0, MAX_LOGPROBS)] | None
    stops: Annotated[tuple[Annotated[str, MaxLength(_MAX_STOP_CHARACTERS)], ...], MaxItems(_MAX_STOPS)]
    token_ids: bool


@dataclass(frozen=True, slots=True)
class Asked:
    """What a client wants, and the names of the fields that it sent in vain."""

    request: GenerationRequest
    reply: Reply
    ignored: tuple[str, ...]


def read_completion(values: dict[str, object], service: Service, request_id: str) -> Asked:
    """A request of /v1/completions. Raises ApiError."""
    fields = BodyFields(values)
    check_model(fields, service)
    logprobs = fields.integer("logprobs", None, 0, MAX_LOGPROBS)
    reply = _reply(fields, logprobs, chat=False)
    maximum = fields.integer("max_tokens", _COMPLETION_TOKENS, 1, _MAX_TOKENS)
    sampling = read_sampling(fields, service.vocab_size, logprobs, service.usual_sampling)
    fields.unsupported(("suffix",), "")
    fields.unsupported(("messages",))
    fields.unsupported(("echo",), False)
    fields.unsupported(("best_of",), 1)
    given = fields.raw("prompt")
    ignore_eos = _rest(fields)
    prompt = _prompt_ids(given, fields, service)
    limit = _limit("prompt", maximum, len(prompt), service)
    request = _request(request_id, prompt, limit, sampling, service, ignore_eos)
    return Asked(request, reply, fields.ignored)


def read_chat(values: dict[str, object], service: Service, request_id: str) -> Asked:
    """A request of /v1/chat/completions. Raises ApiError."""
    fields = BodyFields(values)
    check_model(fields, service)
    top = fields.integer("top_logprobs", None, 0, MAX_LOGPROBS)
    wanted = fields.flag("logprobs")
    if top is not None and not wanted:
        raise refused("'top_logprobs' needs 'logprobs': true", "top_logprobs")
    logprobs = (top or 0) if wanted else None
    reply = _reply(fields, logprobs, chat=True)
    maximum = _chat_tokens(fields)
    sampling = read_sampling(fields, service.vocab_size, logprobs, service.usual_sampling)
    _only_text(fields)
    variables = read_variables(fields)
    messages = read_messages(fields)
    ignore_eos = _rest(fields)
    check_characters("messages", sum(len(message["content"]) for message in messages), service)
    prompt = render_chat(messages, variables, service)
    limit = _limit("messages", maximum, len(prompt), service)
    request = _request(request_id, prompt, limit, sampling, service, ignore_eos)
    return Asked(request, reply, fields.ignored)


def check_model(fields: BodyFields, service: Service, *, needed: bool = True) -> None:
    """Raises ApiError where the request names another model, or none although one is `needed`."""
    model = fields.text("model")
    if model is None and not needed:
        return
    if model is None:
        raise refused("you must provide a 'model'", "model", "missing_required_parameter")
    served = service.model()
    if model not in (served.name, *served.also_called):
        message = f"the model {model[:100]!r} is not served here; {served.name!r} is"
        raise ApiError(404, message, "model_not_found", param="model")


def _reply(fields: BodyFields, logprobs: int | None, *, chat: bool) -> Reply:
    stream = fields.flag("stream")
    options = fields.nested("stream_options")
    include_usage = False
    if options is not None:
        if not stream:
            raise refused("'stream_options' needs 'stream': true", "stream_options")
        include_usage = options.flag("include_usage")
        options.ignore(("include_obfuscation",))
        options.overlook()
    return Reply(chat, stream, include_usage, logprobs, _stops(fields), fields.flag("return_token_ids"))


def _stops(fields: BodyFields) -> tuple[str, ...]:
    value = fields.raw("stop")
    if value is None:
        return ()
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise fields.wrong_type("stop", "a string or an array of strings", value)
    if len(stops) > _MAX_STOPS:
        raise refused(f"'stop' has {len(stops)} strings: at most {_MAX_STOPS}", "stop")
    if not all(0 < len(stop) <= _MAX_STOP_CHARACTERS for stop in stops):
        raise refused(f"a string of 'stop' must have 1 to {_MAX_STOP_CHARACTERS} characters", "stop")
    return tuple(stops)


def _rest(fields: BodyFields) -> bool:
    """`ignore_eos`; whatever else is left has no effect."""
    ignore_eos = fields.flag("ignore_eos")
    fields.ignore(_IGNORED)
    fields.overlook()
    return ignore_eos


def _prompt_ids(value: object, fields: BodyFields, service: Service) -> tuple[int, ...]:
    if isinstance(value, list) and value and isinstance(value[0], str | list):
        if len(value) > 1:
            raise refused("'prompt' has several prompts: send one per request", "prompt")
        value = value[0]
    if isinstance(value, str):
        check_characters("prompt", len(value), service)
        return encode(value, service, "prompt", add_special=True)
    if value is None:
        raise refused("you must provide a 'prompt'", "prompt", "missing_required_parameter")
    if not isinstance(value, list):
        raise fields.wrong_type("prompt", "a string or an array of token ids", value)
    return read_token_ids(value, "prompt", service)


def read_token_ids(value: list[object], param: str, service: Service) -> tuple[int, ...]:
    """Raises ApiError where one is no token's."""
    ids = [token for token in value if type(token) is int and 0 <= token < service.vocab_size]
    if len(ids) < len(value):
        raise refused(f"'{param}' holds what is not a token id below {service.vocab_size}", param)
    return tuple(ids)


def _chat_tokens(fields: BodyFields) -> int | None:
    """The limit of the answer, by the old or the new name of the field."""
    old = fields.integer("max_tokens", None, 1, _MAX_TOKENS)
    new = fields.integer("max_completion_tokens", None, 1, _MAX_TOKENS)
    if old is not None and new is not None and old != new:
        raise refused("'max_tokens' and 'max_completion_tokens' differ: give one", "max_tokens")
    return old if new is None else new


def _only_text(fields: BodyFields) -> None:
    fields.unsupported(
        ("tools", "functions", "function_call", "audio", "prediction", "web_search_options"), "none"
    )
    fields.unsupported(("prompt",))
    fields.unsupported(("tool_choice",), "none", "auto")
    fields.unsupported(("modalities",), ["text"])
    fields.unsupported(("response_format",), {"type": "text"})


def read_variables(fields: BodyFields) -> dict[str, object]:
    """The switches of a model's template that a client may set; no other variable of it. Raises ApiError."""
    switches = fields.nested("chat_template_kwargs")
    if switches is None:
        return {}
    variables: dict[str, object] = {
        key: switches.flag(key) for key in _SWITCHES if switches.raw(key) is not None
    }
    switches.overlook()
    return variables


def render_chat(
    messages: Sequence[dict[str, str]], variables: dict[str, object], service: Service
) -> tuple[int, ...]:
    """The prompt's token ids. Raises ApiError."""
    if service.template is None:
        raise refused("the model has no chat template: use /v1/completions", "messages")
    try:
        text = service.template.render(messages, variables=variables)
    except UserError as error:
        raise refused(str(error), "messages") from None
    check_characters("messages", len(text), service)
    return encode(text, service, "messages", add_special=False)


def _limit(prompt: str, maximum: int | None, prompt_tokens: int, service: Service) -> int:
    """Tokens of the answer: what was asked for, or the usual number, as far as they fit and another epoch could go on
    with them. `prompt` names a field."""
    if not prompt_tokens:
        raise refused("the prompt is empty: give at least one token", prompt)
    if prompt_tokens > MAX_PROMPT_TOKENS:
        message = f"the prompt has {prompt_tokens} tokens; a request may have {MAX_PROMPT_TOKENS}"
        raise refused(message, prompt, "context_length_exceeded")
    room = service.max_sequence - prompt_tokens
    if room < 1:
        message = f"the context has {service.max_sequence} tokens; the prompt needs {prompt_tokens}"
        raise refused(message, prompt, "context_length_exceeded")
    return min(room, maximum or _ANSWER_TOKENS, MAX_ANSWER_TOKENS)


def _request(
    request_id: str,
    prompt: tuple[int, ...],
    limit: int,
    sampling: Sampling,
    service: Service,
    ignore_eos: bool,
) -> GenerationRequest:
    return GenerationRequest(
        id=request_id,
        prompt_ids=prompt,
        max_tokens=limit,
        sampling=sampling,
        stop_ids=service.eos_ids,
        ignore_eos=ignore_eos,
        keep_prefix=True,
    )
