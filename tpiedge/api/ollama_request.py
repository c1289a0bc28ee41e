"""Requests of Ollama's /api/chat and /api/generate, as chats and completions; of /api/embed, as embeddings."""

import json
import time
from typing import Final

from tpiedge.api import tables as t
from tpiedge.api.answer_fields import MODEL, SAMPLING, TOP_LOGPROBS, check_model
from tpiedge.api.answer_grammar import FORM
from tpiedge.api.asked import MAX_TOOLS, AnsweredAtOnce, Asked
from tpiedge.api.completion_request import read_completion
from tpiedge.api.embedding_request import INPUT, POOLED, embedded
from tpiedge.api.errors import refused
from tpiedge.api.fields import BodyFields
from tpiedge.api.ollama_format import moment
from tpiedge.api.service import Service
from tpiedge.api.translation import Chat, Dialect, copied

_MAX_LIMIT: Final = 2**31
_OPTIONS: Final = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "seed": "seed",
    "repeat_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "stop": "stop",
}
"""By their names, what a chat calls them."""
_NAMES: Final = {ours: f"options.{theirs}" for theirs, ours in _OPTIONS.items()} | {
    "max_tokens": "options.num_predict",
    "response_format": "format",
    "response_format.json_schema.schema": "format",
}
_CHATS: Final = Dialect("ollama-chat", _NAMES)
_TEXTS: Final = Dialect("ollama-generate", _NAMES)
_TEXTS_IN_CHATS: Final = Dialect("ollama-generate", _NAMES | {"messages": "prompt"})
_CALL: Final = t.body(
    "function",
    function=t.body("name", name=t.TEXT, arguments=t.OBJECT, index=t.VAIN),
    id=t.text(),
    type=t.VAIN,
)
_SAID: Final = {
    "content": t.text(),
    "images": t.unsupported(),
    "thinking": t.text(),
    "tool_calls": t.array(_CALL),
}
_RESULT: Final = {"tool_call_id": t.text(), "tool_name": t.text(), "name": t.text()}
_MESSAGES: Final = t.tagged(
    "role", **dict.fromkeys(("system", "user", "assistant"), t.body(**_SAID)), tool=t.body(**_SAID | _RESULT)
)
_UNNEEDED: Final = t.vain("keep_alive", "truncate", "shift", "context")
_ANSWERING: Final[dict[str, t.JsonSchema]] = {
    **FORM,
    "model": MODEL,
    "stream": t.flag("Whether the answer comes in lines of JSON; true without."),
    "options": t.optional(
        t.body(
            **{theirs: SAMPLING[ours] for theirs, ours in _OPTIONS.items() if ours in SAMPLING},
            stop=t.any_of(t.TEXT, t.array(t.TEXT)),
            num_predict=t.integer(-2, _MAX_LIMIT, "Tokens of the answer; -1, -2: as many as fit."),
        ),
        "How the answer is drawn.",
    ),
    "format": {
        "description": "`json`, or a schema that the answer has.",
        "type": ["string", "object", "null"],
    },
    "logprobs": t.flag("Whether probabilities are told."),
    "top_logprobs": TOP_LOGPROBS,
    "think": {"description": "Whether a model that can think does.", "type": ["boolean", "string", "null"]},
    **_UNNEEDED,
}
OLLAMA_CHAT: Final = t.body(
    "model",
    **_ANSWERING,
    messages=t.array(t.any_of(*_MESSAGES.values())),
    tools=t.array(t.OBJECT, most=MAX_TOOLS),
)
OLLAMA_GENERATE: Final = t.body(
    "model",
    **_ANSWERING,
    prompt=t.text(),
    system=t.text(),
    raw=t.flag("Whether the prompt is not put into the model's template."),
    **dict.fromkeys(("suffix", "template"), t.unsupported("")),
    images=t.unsupported(),
)
_EMBED: Final = {**POOLED, "options": t.optional(t.body(), "Has no effect."), **_UNNEEDED}
OLLAMA_EMBED: Final = t.body("model", "input", **_EMBED, input=INPUT)
OLLAMA_EMBEDDINGS: Final = t.body("model", "prompt", **_EMBED, prompt=t.TEXT)


def read_ollama_chat(values: dict[str, object], service: Service, name: str) -> Asked:
    """`name`: the answer's. Raises ApiError."""
    fields = BodyFields(values, OLLAMA_CHAT)
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
    fields = BodyFields(values, OLLAMA_GENERATE)
    check_model(fields, service)
    stream = fields.flag("stream", True)
    asked = _wishes(fields)
    raw, system, prompt = fields.flag("raw"), fields.text("system"), fields.text("prompt")
    if not prompt:
        raise _loaded(fields, service, {"response": ""})
    if raw or service.template is None:  # without the model's template
        asked.pop("chat_template_kwargs", None)
        top = asked.pop("top_logprobs", None)
        if asked.pop("logprobs", False):
            asked["logprobs"] = top or 0  # as completions have it
        for key in ("system", "think"):
            if fields.raw(key):
                fields.note(key)
        asked["prompt"] = prompt
        return _TEXTS.asked(asked, fields, service, name, stream=stream, read=read_completion)
    messages = [{"role": "system", "content": system}] if system else []
    asked["messages"] = [*messages, {"role": "user", "content": prompt}]
    return _TEXTS_IN_CHATS.asked(asked, fields, service, name, stream=stream)


def read_embed(values: dict[str, object], service: Service, name: str) -> Asked:
    """`name`: the answer's. Raises ApiError."""
    fields = BodyFields(values, OLLAMA_EMBED)
    return embedded(fields, service, name, "input", "ollama-embed")


def read_old_embeddings(values: dict[str, object], service: Service, name: str) -> Asked:
    """Of /api/embeddings, which is older: one text. `name`: the answer's. Raises ApiError."""
    fields = BodyFields(values, OLLAMA_EMBEDDINGS)
    return embedded(fields, service, name, "prompt", "ollama-embeddings")


def _loaded(fields: BodyFields, service: Service, said: Chat) -> AnsweredAtOnce:
    """What a request without a prompt is told: it wants the model in memory, where it always is."""
    head = {"model": service.model().name, "created_at": moment(time.time())}
    return AnsweredAtOnce({**head, **said, "done": True, "done_reason": "load"}, fields.ignored)


def _wishes(fields: BodyFields) -> Chat:
    """How the answer is drawn, how long it may be, and its form."""
    asked: Chat = {}
    options = fields.nested("options")
    if options is not None:
        copied(options, asked, _OPTIONS)
    limit = None if options is None else options.integer("num_predict")
    # Without a limit theirs end by themselves.
    asked["max_tokens"] = _MAX_LIMIT if limit is None or limit < 0 else max(1, limit)
    scored, top = fields.flag("logprobs"), fields.integer("top_logprobs")
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
    for role, message in fields.kinds("messages", _MESSAGES, "role"):
        said: Chat = {"role": role, "content": message.text("content") or ""}
        calls = [_call(call) for call in message.objects("tool_calls", _CALL)]
        if calls:
            said["tool_calls"] = calls
        if role == "tool":
            said["tool_call_id"] = message.text("tool_call_id")
            said["name"] = message.text("tool_name") or message.text("name")
        thoughts = message.text("thinking")
        if thoughts:
            said["reasoning_content"] = thoughts
        found.append(said)
    return found


def _call(call: BodyFields) -> Chat:
    """A call, whose arguments are an object."""
    function = call.within("function")
    arguments = json.dumps(function.raw("arguments") or {}, ensure_ascii=False)
    called = {"name": function.needed("name"), "arguments": arguments}
    return {"id": call.text("id"), "type": "function", "function": called}
