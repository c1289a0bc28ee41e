"""Reads a chat's messages: text, documents, tool calls and their results."""

import base64
import binascii
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from tpiedge.api import fields as t
from tpiedge.api.errors import refused
from tpiedge.model.call_reader import short_call_id
from tpiedge.model.chat_prompt import GivenArguments

_FILE: Final[dict[str, t.JsonSchema]] = {
    "filename": t.text(),
    "file_data": t.text("Of text alone: data:text/plain;base64,..."),
}
_PARTS: Final = t.tagged(
    "type", text=t.body(text=t.TEXT), file=t.body(**_FILE, file=t.optional(t.body(**_FILE)))
)
_SAID_PARTS: Final = _PARTS | t.tagged("type", refusal=t.body(refusal=t.TEXT))
_CALL: Final = t.body(
    "function",
    id=t.text(),
    type=t.word("function"),
    function=t.body("name", name={**t.TEXT, "minLength": 1}, arguments=t.text()),
)
_COMMON: Final[dict[str, t.JsonSchema]] = {
    "content": t.text_or(_SAID_PARTS, description="Null only of an assistant."),
    "name": t.text(most=64),
    "audio": t.unsupported(),
}
_USER: Final = t.body(
    **_COMMON | dict.fromkeys(("function_call", "tool_calls", "tool_call_id"), t.unsupported())
)
_TOOL: Final = t.body(
    **_COMMON, tool_call_id=t.text("The id of the call that it answers."), function_call=t.unsupported()
)
_ASSISTANT: Final = t.body(
    **_COMMON,
    reasoning_content=t.text("Its reasoning."),
    reasoning=t.text("The same."),
    thinking=t.text("The same."),
    refusal=t.text("In place of content."),
    tool_calls=t.array(_CALL, most=128),
    function_call={**t.OBJECT, "description": "A call of a function, as before there were tools."},
)
_ROLES: Final = {
    "system": "system", "user": "user", "assistant": "assistant", "tool": "tool", "developer": "system",
    "function": "tool",
}  # fmt: skip
_MESSAGES: Final = t.tagged(
    "role",
    **{role: {"assistant": _ASSISTANT, "tool": _TOOL}.get(meant, _USER) for role, meant in _ROLES.items()},
)
MESSAGES: Final[t.JsonSchema] = t.array(t.any_of(*_MESSAGES.values()))

TEXT_PART: Final = t.body(text=t.TEXT)
TEXTS: Final = t.tagged("type", text=TEXT_PART)
_TEXT_OR_TEXTS: Final = t.text_or(TEXTS)
_SOURCES: Final = t.tagged(
    "type", text=t.body(data=t.TEXT, media_type=t.text()), content=t.body(content=_TEXT_OR_TEXTS)
)
DOCUMENT: Final = t.body("source", source=t.any_of(*_SOURCES.values()), title=t.text(), context=t.text())
SEARCH_RESULT: Final = t.body(content=_TEXT_OR_TEXTS, title=t.text(), source=t.text())


def read_messages(fields: t.BodyFields, *, goes_on: bool = False) -> list[dict[str, Any]]:
    """Returns messages for `chat_prompt`. `goes_on`: the answer continues the last message. Raises ApiError."""
    given = fields.kinds("messages", _MESSAGES, "role")
    if not given:
        raise fields.wrong("messages", "is empty: give at least one message")
    last = len(given) - 1 if goes_on else None
    found = [_message(role, message, begun=at == last) for at, (role, message) in enumerate(given)]
    _identify_calls(found)
    return found


def message_texts(messages: Sequence[dict[str, Any]]) -> Iterator[str]:
    for message in messages:
        yield message["content"] or ""
        yield message.get("reasoning_content", "")
        for call in message.get("tool_calls", ()):
            yield call["function"]["name"]
            yield call["function"]["arguments"].text


def content_text(fields: t.BodyFields, key: str, parts: Mapping[str, t.JsonSchema]) -> str:
    value = fields.get(key)
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise fields.wrong_type(key, "a string or an array", value)
    return "\n".join(part_text(*found) for found in fields.kinds(key, parts))


def part_text(kind: str, part: t.BodyFields) -> str:
    match kind:
        case "document":
            of, source = part.kind(part.get("source"), "source", _SOURCES)
            text = source.needed("data") if of == "text" else content_text(source, "content", TEXTS)
            return _below([part.get("title"), part.get("context")], text)
        case "search_result":
            return _below([part.get("title"), part.get("source")], content_text(part, "content", TEXTS))
        case "file" | "input_file":
            file = part.nested("file") if kind == "file" and part.get("file") is not None else part
            form, _, encoded = (file.get("file_data") or "").partition(";base64,")
            if not form.startswith("data:text/") or not encoded:
                why = "must be data:text/plain;base64,...: only text is read here"
                raise file.wrong("file_data", why, "unsupported_value")
            try:
                text = base64.b64decode(encoded, validate=True).decode("utf-8")
            except (binascii.Error, ValueError):
                raise file.wrong("file_data", "is not UTF-8 text in base64") from None
            return _below([file.get("filename")], text)
        case "refusal":
            return part.needed("refusal")
    return part.needed("text")


def _below(heads: list[str | None], text: str) -> str:
    return "\n".join([*(head for head in heads if head), text])


def _message(role: str, message: t.BodyFields, *, begun: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"role": _ROLES[role], "content": None}
    if role != "assistant" or message.get("content") is not None:
        found["content"] = content_text(message, "content", _SAID_PARTS if role == "assistant" else _PARTS)
    if message.get("name") is not None:
        found["name"] = message.get("name")
    if role == "assistant":
        reasoning = message.get("reasoning_content") or message.get("reasoning") or message.get("thinking")
        if reasoning:
            found["reasoning_content"] = reasoning
        key, items = "tool_calls", [*message.entries("tool_calls")]
        function = message.get("function_call")
        if function is not None and not items:  # the form before there were tools
            key, items = "function_call", [("function_call", {"function": function})]
        if items:
            found["tool_calls"] = [_call(message.inner(item, where, _CALL)) for where, item in items]
        if items and begun:
            param = message.name(key)
            raise refused(f"'{param}': an answer cannot continue a message that has calls", param)
        # Content is null only beside calls; a refusal replaces it.
        if message.get("refusal") and not found["content"]:
            found["content"] = message.get("refusal")
        elif found["content"] is None and "tool_calls" not in found:
            found["content"] = ""
    elif _ROLES[role] == "tool":
        found["tool_call_id"] = message.get("tool_call_id") or ""
    return found


def _call(call: t.BodyFields) -> dict[str, Any]:
    function = call.nested("function")
    name = function.needed("name")
    if not name:
        raise function.missing("name")
    # Missing arguments mean an empty object; arguments that are no object stay a text.
    text = function.get("arguments") or "{}"
    value = function.parsed("arguments") if function.get("arguments") else {}
    called = {"name": name, "arguments": GivenArguments(text, value if isinstance(value, dict) else text)}
    return {"id": call.get("id") or "", "type": "function", "function": called}


def _identify_calls(messages: Sequence[dict[str, Any]]) -> None:
    """Gives ids to calls and results. A result without an id belongs to the first call without a result, of the tool
    that it names, if any."""
    open_calls: list[dict[str, Any]] = []
    latest: dict[str | None, str] = {}
    for index, message in enumerate(messages):
        if message["role"] == "tool":
            identity, name = message["tool_call_id"], message.get("name")
            for call in open_calls:
                if call["id"] == identity if identity else name in (None, call["function"]["name"]):
                    open_calls.remove(call)
                    identity = call["id"]
                    break
            message["tool_call_id"] = identity or latest.get(name) or short_call_id(f"{index}")
        if message.get("tool_calls") and messages[index - 1]["role"] != "assistant":
            open_calls.clear()
        for number, call in enumerate(message.get("tool_calls", ())):
            call["id"] = call["id"] or short_call_id(f"{index}/{number}")
            latest[None] = latest[call["function"]["name"]] = call["id"]
            open_calls.append(call)
