"""Requests of Ollama's /api/chat and /api/generate, as chats and completions; of /api/embed, as embeddings."""

import json
import time
from typing import Final

from tpiedge.api.asked import AnsweredAtOnce, Asked, FormatName, Reply, check_model
from tpiedge.api.completion_request import read_completion
from tpiedge.api.embedding_request import check_dimensions, embedding_choices, embedding_inputs, read_pooling
from tpiedge.api.errors import ApiError, refused
from tpiedge.api.fields import BodyFields
from tpiedge.api.ollama_format import moment
from tpiedge.api.service import Service
from tpiedge.api.translation import Chat, Dialect, copied, objects, renamed
from tpiedge.engine.sampling import MAX_LOGPROBS

_OPTIONS: Final = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "seed": "seed",
    "stop": "stop",
    "repeat_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
}
"""By their names, what a chat calls them."""
_NAMES: Final = {ours: f"options.{theirs}" for theirs, ours in _OPTIONS.items()} | {
    "max_tokens": "options.num_predict",
    "response_format": "format",
    "response_format.json_schema.schema": "format",
}
_IGNORED: Final = ("keep_alive", "truncate", "shift", "context")
_CHATS: Final = Dialect("ollama-chat", _NAMES, _IGNORED)
_TEXTS: Final = Dialect("ollama-generate", _NAMES, _IGNORED)
_TEXTS_IN_CHATS: Final = Dialect("ollama-generate", _NAMES | {"messages": "prompt"}, _IGNORED)
_ROLES: Final = ("system", "user", "assistant", "tool")
_ENDLESS: Final = (-1, -2)
"""As many tokens as there is room for."""


def read_ollama_chat(values: dict[str, object], service: Service, name: str) -> Asked:
    """`name`: the answer's. Raises ApiError."""
    fields = BodyFields(values)
    check_model(fields, service)
    stream = fields.flag("stream", True)
    chat = _wishes(fields)
    messages, tools = _messages(fields), fields.raw("tools")
    if not messages:
        raise _loaded(fields, service, {"message": {"role": "assistant", "content": ""}})
    chat["messages"] = messages
    # The answer goes on with what the assistant has begun to say.
    chat["continue_final_message"] = messages[-1]["role"] == "assistant" and "tool_calls" not in messages[-1]
    if tools:
        chat["tools"] = tools
    return _CHATS.asked(chat, fields, service, name, stream=stream)


def read_generate(values: dict[str, object], service: Service, name: str) -> Asked:
    """`name`: the answer's. Raises ApiError."""
    fields = BodyFields(values)
    check_model(fields, service)
    stream = fields.flag("stream", True)
    asked = _wishes(fields)
    fields.unsupported(("suffix", "template"), "")
    fields.unsupported(("images",))
    raw, system, prompt = fields.flag("raw"), fields.text("system"), fields.text("prompt")
    if not prompt:
        raise _loaded(fields, service, {"response": ""})
    if raw or service.template is None:  # without the model's template
        asked.pop("chat_template_kwargs", None)
        top = asked.pop("top_logprobs", None)
        if asked.pop("logprobs", False):
            asked["logprobs"] = top or 0  # as completions have it
        fields.ignore([key for key in ("system", "think") if fields.raw(key)])
        asked["prompt"] = prompt
        return _TEXTS.asked(asked, fields, service, name, stream=stream, read=read_completion)
    messages = [{"role": "system", "content": system}] if system else []
    asked["messages"] = [*messages, {"role": "user", "content": prompt}]
    return _TEXTS_IN_CHATS.asked(asked, fields, service, name, stream=stream)


def read_embed(values: dict[str, object], service: Service, name: str) -> Asked:
    """`name`: the answer's. Raises ApiError."""
    return _embedded(values, service, name, "input", "ollama-embed")


def read_old_embeddings(values: dict[str, object], service: Service, name: str) -> Asked:
    """Of /api/embeddings, which is older: one text. `name`: the answer's. Raises ApiError."""
    return _embedded(values, service, name, "prompt", "ollama-embeddings")


def _loaded(fields: BodyFields, service: Service, said: Chat) -> AnsweredAtOnce:
    """What a request without a prompt is told: it wants the model in memory, where it always is. Everything else of
    `fields` was read. Raises ApiError."""
    fields.ignore(_IGNORED)
    fields.overlook()
    head = {"model": service.model().name, "created_at": moment(time.time())}
    return AnsweredAtOnce({**head, **said, "done": True, "done_reason": "load"}, fields.ignored)


def _embedded(values: dict[str, object], service: Service, name: str, key: str, form: FormatName) -> Asked:
    fields = BodyFields(values)
    check_model(fields, service)
    check_dimensions(fields, service)
    pooling = read_pooling(fields, service)
    given = fields.text(key) if key == "prompt" else fields.raw(key)
    options = fields.nested("options")
    if options is not None:
        options.overlook()
    fields.ignore(_IGNORED)
    fields.overlook()
    try:
        choices = embedding_choices(embedding_inputs(given, fields), service, pooling, name)
    except ApiError as error:
        raise renamed(error, {"input": key}) from None
    return Asked(choices, Reply(form, True, False, None, (), False), fields.ignored)


def _wishes(fields: BodyFields) -> Chat:
    """How the answer is drawn, how long it may be, and its form."""
    asked: Chat = {}
    options = fields.nested("options")
    if options is not None:
        copied(options, asked, _OPTIONS)
        limit = options.integer("num_predict", None, -2, 2**31)
        if limit is not None and limit not in _ENDLESS:
            asked["max_tokens"] = max(1, limit)
        elif limit is not None:
            asked["max_tokens"] = 2**31
        options.overlook()
    asked.setdefault("max_tokens", 2**31)  # theirs end by themselves
    scored, top = fields.flag("logprobs"), fields.integer("top_logprobs", None, 0, MAX_LOGPROBS)
    if scored:
        asked |= {"logprobs": True, "top_logprobs": top}
    elif top:
        raise refused("'top_logprobs' needs 'logprobs': true", "top_logprobs")
    form = fields.raw("format")
    if isinstance(form, dict):
        schema = {"name": "answer", "schema": form}
        asked["response_format"] = {"type": "json_schema", "json_schema": schema}
    elif form == "json":
        asked["response_format"] = {"type": "json_object"}
    elif form not in (None, ""):
        raise refused("'format' must be 'json' or a schema", "format")
    think = fields.raw("think")
    if think is not None:
        asked["chat_template_kwargs"] = {"enable_thinking": bool(think)}
    return asked


def _messages(fields: BodyFields) -> list[Chat]:
    """Calls and results need no ids: results follow in the order of the calls."""
    found: list[Chat] = []
    for message in objects(fields, "messages", fields.raw("messages") or []):
        role = message.text("role")
        if role not in _ROLES:
            where = message.name("role")
            raise refused(f"'{where}' must be one of {', '.join(_ROLES)}", where)
        message.unsupported(("images",))
        said: Chat = {"role": role, "content": message.text("content") or ""}
        calls = message.raw("tool_calls")
        if calls:
            said["tool_calls"] = [_call(call) for call in objects(message, "tool_calls", calls)]
        if role == "tool":
            said["tool_call_id"] = message.text("tool_call_id")
            said["name"] = message.text("tool_name") or message.text("name")
        thoughts = message.text("thinking")
        if thoughts:
            said["reasoning_content"] = thoughts
        message.overlook()
        found.append(said)
    return found


def _call(call: BodyFields) -> Chat:
    """A call, whose arguments are an object."""
    function = call.nested("function")
    name = None if function is None else function.text("name")
    if function is None or name is None:
        where = call.name("function.name")
        raise refused(f"'{where}' is missing", where)
    arguments = function.nested("arguments")
    text = json.dumps(dict(arguments.items()) if arguments else {}, ensure_ascii=False)
    function.ignore(("index",))
    function.overlook()
    identity = call.text("id")
    call.ignore(("type",))
    call.overlook()
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": text}}
