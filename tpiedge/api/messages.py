"""The messages of a chat: text, documents and files of text, calls of tools, and what these gave."""

import base64
import binascii
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from tpiedge.api.errors import refused
from tpiedge.api.fields import (
    OBJECT,
    TEXT,
    VAIN,
    BodyFields,
    JsonSchema,
    any_of,
    array,
    body,
    optional,
    tagged,
    text,
    unsupported,
    vain,
    word,
)
from tpiedge.model.call_forms import short_call_id
from tpiedge.model.chat_prompt import GivenArguments

_MAX_NAME: Final = 64
_MAX_CALLS: Final = 128
_FILE: Final[dict[str, JsonSchema]] = {
    "filename": text(),
    "file_data": text("Of text alone: data:text/plain;base64,..."),
}
_PARTS: Final = tagged(
    "type",
    {
        "text": body({"text": TEXT}, "text"),
        "file": body({**_FILE, "file": optional(body(_FILE))}),
    },
)
_SAID_PARTS: Final = _PARTS | tagged("type", {"refusal": body({"refusal": TEXT}, "refusal")})
_CALL: Final = body(
    {
        "id": text(),
        "type": word("function"),
        "function": body({"name": {**TEXT, "minLength": 1}, "arguments": text()}, "name"),
        "index": VAIN,
    },
    "function",
)
_COMMON: Final[dict[str, JsonSchema]] = {
    "content": any_of(TEXT, array(any_of(*_SAID_PARTS.values())), description="Null only of an assistant."),
    "name": text(most=_MAX_NAME),
    "annotations": VAIN,
}
_USER: Final = body(
    _COMMON | dict.fromkeys(("audio", "function_call", "tool_calls", "tool_call_id"), unsupported())
)
_TOOL: Final = body(
    {
        **_COMMON,
        "tool_call_id": text("The call that it answers."),
        "audio": unsupported(),
        "function_call": unsupported(),
    }
)
_ASSISTANT: Final = body(
    {
        **_COMMON,
        "audio": unsupported(),
        "reasoning_content": text("Its thoughts."),
        "reasoning": text("The same."),
        "thinking": text("The same."),
        "refusal": text("In place of content."),
        "tool_calls": array(_CALL, most=_MAX_CALLS),
        "function_call": {**OBJECT, "description": "A call of a function, as before there were tools."},
    }
)
_ROLES: Final = {
    "system": "system", "user": "user", "assistant": "assistant", "tool": "tool", "developer": "system",
    "function": "tool",
}  # fmt: skip
_MESSAGES: Final = tagged(
    "role",
    {role: {"assistant": _ASSISTANT, "tool": _TOOL}.get(meant, _USER) for role, meant in _ROLES.items()},
)
MESSAGES: Final[JsonSchema] = array(any_of(*_MESSAGES.values()))

_CITED: Final = vain("cache_control", "citations")
CITED_TEXT: Final = body({"text": TEXT, **_CITED}, "text")
_TEXTS: Final = tagged("type", {"text": CITED_TEXT})
_TEXT_OR_TEXTS: Final = any_of(TEXT, array(any_of(*_TEXTS.values())))
_SOURCES: Final = tagged(
    "type",
    {
        "text": body({"data": TEXT, "media_type": text()}, "data"),
        "content": body({"content": _TEXT_OR_TEXTS}),
    },
)
DOCUMENT: Final = body(
    {"source": any_of(*_SOURCES.values()), "title": text(), "context": text(), **_CITED}, "source"
)
SEARCH_RESULT: Final = body({"content": _TEXT_OR_TEXTS, "title": text(), "source": text(), **_CITED})


def read_messages(fields: BodyFields, *, goes_on: bool = False) -> list[dict[str, Any]]:
    """{"role", "content"} and, where given, "name", "reasoning_content", "tool_calls" and "tool_call_id" of every
    message, as `chat_prompt` takes them. `goes_on`: the answer goes on with the last message. Raises ApiError that
    names the field."""
    given = fields.kinds("messages", _MESSAGES, "role")
    if not given:
        raise refused("'messages' is empty: give at least one message", "messages")
    last = len(given) - 1 if goes_on else None
    found = [_message(role, message, begun=at == last) for at, (role, message) in enumerate(given)]
    _identify_calls(found)
    return found


def message_texts(messages: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yields all texts in them."""
    for message in messages:
        yield message["content"] or ""
        yield message.get("reasoning_content", "")
        for call in message.get("tool_calls", ()):
            function: Mapping[str, Any] = call["function"]
            arguments: GivenArguments = function["arguments"]
            yield from (function["name"], arguments.text)


def content_text(fields: BodyFields, key: str, parts: Mapping[str, JsonSchema]) -> str:
    """A string, or the texts of an array of `parts` as one. Raises ApiError."""
    value = fields.raw(key)
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise fields.wrong_type(key, "a string or an array", value)
    return "\n".join(part_text(*found) for found in fields.kinds(key, parts))


def part_text(kind: str, part: BodyFields) -> str:
    """The text of a part of that `type`. Raises ApiError."""
    match kind:
        case "document":
            return _document_text(part)
        case "search_result":
            return _below([part.text("title"), part.text("source")], content_text(part, "content", _TEXTS))
        case "file":
            return _file_text(part.nested("file") or part)
        case "input_file":
            return _file_text(part)
        case "refusal":
            return part.needed("refusal")
    return part.needed("text")


def _document_text(block: BodyFields) -> str:
    """Below its title and its context."""
    kind, source = block.kind(block.raw("source"), "source", _SOURCES)
    text = source.needed("data") if kind == "text" else content_text(source, "content", _TEXTS)
    return _below([block.text("title"), block.text("context")], text)


def _file_text(file: BodyFields) -> str:
    """The text of OpenAI's file with data of its own, below its name."""
    data, where = file.text("file_data") or "", file.name("file_data")
    kind, _, encoded = data.partition(";base64,")
    if not kind.startswith("data:text/") or not encoded:
        why = f"'{where}' must be data:text/plain;base64,...: only text is read here"
        raise refused(why, where, "unsupported_value")
    try:
        text = base64.b64decode(encoded, validate=True).decode("utf-8")
    except (binascii.Error, ValueError):
        raise refused(f"'{where}' is not UTF-8 text in base64", where) from None
    return _below([file.text("filename")], text)


def _below(heads: list[str | None], text: str) -> str:
    return "\n".join([*(head for head in heads if head), text])


def _message(role: str, message: BodyFields, *, begun: bool) -> dict[str, Any]:
    """`begun`: the answer goes on with it."""
    found: dict[str, Any] = {"role": _ROLES[role], "content": None}
    if role != "assistant" or message.raw("content") is not None:
        found["content"] = content_text(message, "content", _SAID_PARTS if role == "assistant" else _PARTS)
    if message.text("name") is not None:
        found["name"] = message.text("name")
    if role == "assistant":
        found |= _assistant(message, begun=begun)
        # Only beside calls may there be no content at all; a refusal is what was said instead.
        refusal = message.text("refusal")
        if refusal and not found["content"]:
            found["content"] = refusal
        elif found["content"] is None and "tool_calls" not in found:
            found["content"] = ""
    elif _ROLES[role] == "tool":
        found["tool_call_id"] = message.text("tool_call_id") or ""
    return found


def _assistant(message: BodyFields, *, begun: bool) -> dict[str, Any]:
    """Its thoughts and its calls."""
    found: dict[str, Any] = {}
    thoughts = message.text("reasoning_content") or message.text("reasoning") or message.text("thinking")
    if thoughts:
        found["reasoning_content"] = thoughts
    calls, function = message.objects("tool_calls", _CALL), message.raw("function_call")
    if function is not None and not calls:  # as before there were tools
        calls = [message.inner({"function": function}, "function_call", _CALL)]
    if calls and begun:
        param = message.name("tool_calls" if message.raw("tool_calls") else "function_call")
        raise refused(f"'{param}': an answer cannot go on with a message that has calls", param)
    if calls:
        found["tool_calls"] = [_call(call) for call in calls]
    return found


def _call(call: BodyFields) -> dict[str, Any]:
    function = call.within("function")
    name = function.needed("name")
    if not name:
        raise function.missing("name")
    called = {"name": name, "arguments": _arguments(function)}
    return {"id": call.text("id") or "", "type": "function", "function": called}


def _arguments(function: BodyFields) -> GivenArguments:
    """Nothing is an empty object; what is no object at all stays a text."""
    text = function.text("arguments") or "{}"
    value = function.parsed("arguments") if function.text("arguments") else {}
    return GivenArguments(text, value if isinstance(value, dict) else text)


def _identify_calls(messages: Sequence[dict[str, Any]]) -> None:
    """Gives ids to calls that have none. A result without an id is that of the first call, of its tool where it names
    one, that has no result yet."""
    open_calls: list[dict[str, Any]] = []
    latest: dict[str | None, str] = {}
    for index, message in enumerate(messages):
        if message["role"] == "tool":
            _match(message, open_calls, latest, index)
        if message.get("tool_calls") and messages[index - 1]["role"] != "assistant":
            open_calls.clear()
        for number, call in enumerate(message.get("tool_calls", ())):
            call["id"] = call["id"] or short_call_id(f"{index}/{number}")
            latest[None] = latest[call["function"]["name"]] = call["id"]
            open_calls.append(call)


def _match(
    result: dict[str, Any], open_calls: list[dict[str, Any]], latest: dict[str | None, str], index: int
) -> None:
    """Gives a result its id, and takes its call from those that have no result."""
    identity, name = result["tool_call_id"], result.get("name")
    if name is None and not identity:
        candidates = open_calls
    else:
        candidates = [
            call
            for call in open_calls
            if (call["id"] == identity if identity else call["function"]["name"] == name)
        ]
    if candidates:
        call = candidates[0]
        open_calls.remove(call)
        result["tool_call_id"] = call["id"]
    elif not identity:
        result["tool_call_id"] = latest.get(name) or short_call_id(f"{index}")
