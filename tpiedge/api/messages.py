"""The messages of a chat: text, calls of tools, and what these gave."""

from collections.abc import Sequence
from typing import Any

from tpiedge.api.errors import refused
from tpiedge.api.fields import BodyFields

__all__ = ["message_characters", "read_messages"]

_MAX_MESSAGES = 4096
_MAX_NAME = 64
_MAX_CALLS = 128
_ROLES = {role: role for role in ("system", "user", "assistant", "tool")} | {
    "developer": "system",
    "function": "tool",
}
_IGNORED = ("refusal", "annotations")


def read_messages(fields: BodyFields, *, goes_on: bool = False) -> list[dict[str, Any]]:
    """{"role", "content"} and, where given, "name", "reasoning_content", "tool_calls" and "tool_call_id" of every
    message, as chat templates take them. `goes_on`: the answer goes on with the last message, of which only the text
    counts. Raises ApiError that names the field."""
    value = fields.raw("messages")
    if value is None:
        raise refused("you must provide 'messages'", "messages", "missing_required_parameter")
    if not isinstance(value, list):
        raise fields.wrong_type("messages", "an array", value)
    if not 1 <= len(value) <= _MAX_MESSAGES:
        raise refused(f"'messages' has {len(value)} messages: 1 to {_MAX_MESSAGES}", "messages")
    begun = len(value) - 1 if goes_on else None
    return [_message(item, index, fields, begun=index == begun) for index, item in enumerate(value)]


def message_characters(messages: Sequence[dict[str, Any]]) -> int:
    """Of all texts in them; of calls about as many."""
    return sum(
        len(message["content"])
        + len(message.get("reasoning_content", ""))
        + sum(len(str(call)) for call in message.get("tool_calls", ()))
        for message in messages
    )


def _message(item: object, index: int, fields: BodyFields, *, begun: bool) -> dict[str, Any]:
    """`begun`: the answer goes on with it."""
    where = f"messages[{index}]"
    if not isinstance(item, dict):
        raise fields.wrong_type(where, "an object", item)
    message = fields.inner(item, where)
    role = message.text("role")
    if role not in _ROLES:
        known = ", ".join(_ROLES)
        raise refused(f"'{where}.role' must be one of {known}", f"{where}.role")
    found: dict[str, Any] = {
        "role": _ROLES[role],
        "content": _content(message, optional=role == "assistant"),
    }
    name = message.text("name")
    if name is not None:
        if len(name) > _MAX_NAME:
            raise refused(f"'{where}.name' has more than {_MAX_NAME} characters", f"{where}.name")
        found["name"] = name
    if role == "assistant":
        found |= _begun(message) if begun else _assistant(message)
    elif _ROLES[role] == "tool":
        found["tool_call_id"] = message.text("tool_call_id") or ""
    else:
        message.unsupported(("tool_calls", "tool_call_id"))
    message.unsupported(("audio",) if role == "assistant" and not begun else ("function_call", "audio"))
    message.ignore(_IGNORED)
    message.overlook()
    return found


def _assistant(message: BodyFields) -> dict[str, Any]:
    """Its thoughts and its calls."""
    found: dict[str, Any] = {}
    thoughts = message.text("reasoning_content") or message.text("reasoning")
    if thoughts:
        found["reasoning_content"] = thoughts
    calls = message.raw("tool_calls")
    if calls is not None and not (isinstance(calls, list) and len(calls) <= _MAX_CALLS):
        raise message.wrong_type("tool_calls", f"an array of at most {_MAX_CALLS}", calls)
    function = message.nested("function_call")
    if function is not None and not calls:  # as before there were tools
        calls = [{"function": dict(function.items())}]
    if calls:
        found["tool_calls"] = [_call(call, index, message) for index, call in enumerate(calls)]
    return found


def _begun(message: BodyFields) -> dict[str, Any]:
    """Nothing but its text comes before the answer."""
    if message.raw("tool_calls"):
        param = message.name("tool_calls")
        raise refused(f"'{param}': an answer cannot go on with a message that has calls", param)
    message.ignore([key for key in ("reasoning_content", "reasoning") if message.text(key)])
    return {}


def _call(item: object, index: int, message: BodyFields) -> dict[str, Any]:
    key = f"tool_calls[{index}]"
    if not isinstance(item, dict):
        raise message.wrong_type(key, "an object", item)
    call = message.inner(item, key)
    function = call.nested("function")
    if function is None or call.raw("type") not in (None, "function"):
        raise refused(f"'{call.name('function')}' is missing", call.name("function"))
    name, arguments = function.text("name"), _arguments(function)
    if not name:
        raise refused(f"'{function.name('name')}' is missing", function.name("name"))
    call.ignore(("index",))
    identity = call.text("id") or ""
    function.overlook()
    call.overlook()
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}


def _arguments(function: BodyFields) -> object:
    """As an object, which templates write as they like it; what is none stays a text."""
    text = function.text("arguments")
    value = function.parsed("arguments") if text else {}
    return value if isinstance(value, dict) else text


def _content(message: BodyFields, *, optional: bool) -> str:
    """`optional`: one who has said nothing may have null."""
    value = message.raw("content")
    if value is None and optional:
        return ""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise message.wrong_type("content", "a string or an array of parts", value)
    return "\n".join(_part(part, index, message) for index, part in enumerate(value))


def _part(part: object, index: int, message: BodyFields) -> str:
    key = f"content[{index}]"
    if not isinstance(part, dict):
        raise message.wrong_type(key, "an object", part)
    fields = message.inner(part, key)
    kind, text = fields.raw("type"), None
    if kind != "text":
        raise refused(f"'{fields.name('type')}' must be 'text'", fields.name("type"), "unsupported_value")
    text = fields.text("text")
    if text is None:
        raise refused(f"'{fields.name('text')}' is missing", fields.name("text"))
    fields.overlook()
    return text
