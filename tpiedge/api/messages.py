"""The messages of a chat: text, calls of tools, and what these gave."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tpiedge.api.documents import file_text
from tpiedge.api.errors import refused
from tpiedge.api.fields import BodyFields, needed
from tpiedge.model.call_forms import short_call_id
from tpiedge.model.chat_prompt import GivenArguments

_MAX_MESSAGES = 4096
_MAX_NAME = 64
_MAX_CALLS = 128
_ROLES = {role: role for role in ("system", "user", "assistant", "tool")} | {
    "developer": "system",
    "function": "tool",
}
_IGNORED = ("annotations",)


def read_messages(fields: BodyFields, *, goes_on: bool = False) -> list[dict[str, Any]]:
    """{"role", "content"} and, where given, "name", "reasoning_content", "tool_calls" and "tool_call_id" of every
    message, as `chat_prompt` takes them. `goes_on`: the answer goes on with the last message. Raises ApiError that
    names the field."""
    value = fields.raw("messages")
    if value is None:
        raise refused("you must provide 'messages'", "messages", "missing_required_parameter")
    if not isinstance(value, list):
        raise fields.wrong_type("messages", "an array", value)
    if not 1 <= len(value) <= _MAX_MESSAGES:
        raise refused(f"'messages' has {len(value)} messages: 1 to {_MAX_MESSAGES}", "messages")
    begun = len(value) - 1 if goes_on else None
    found = [_message(item, index, fields, begun=index == begun) for index, item in enumerate(value)]
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
    found: dict[str, Any] = {"role": _ROLES[role], "content": _content(message)}
    name = message.text("name")
    if name is not None:
        if len(name) > _MAX_NAME:
            raise refused(f"'{where}.name' has more than {_MAX_NAME} characters", f"{where}.name")
        found["name"] = name
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
    else:
        message.unsupported(("tool_calls", "tool_call_id"))
    message.unsupported(("audio",) if role == "assistant" and not begun else ("function_call", "audio"))
    message.ignore(_IGNORED)
    message.overlook()
    return found


def _assistant(message: BodyFields, *, begun: bool) -> dict[str, Any]:
    """Its thoughts and its calls."""
    found: dict[str, Any] = {}
    thoughts = message.text("reasoning_content") or message.text("reasoning") or message.text("thinking")
    if thoughts:
        found["reasoning_content"] = thoughts
    calls = message.raw("tool_calls")
    if calls is not None and not (isinstance(calls, list) and len(calls) <= _MAX_CALLS):
        raise message.wrong_type("tool_calls", f"an array of at most {_MAX_CALLS}", calls)
    if calls and begun:
        param = message.name("tool_calls")
        raise refused(f"'{param}': an answer cannot go on with a message that has calls", param)
    function = message.nested("function_call")
    if function is not None and not calls:  # as before there were tools
        calls = [{"function": dict(function.items())}]
    if calls:
        found["tool_calls"] = [_call(call, index, message) for index, call in enumerate(calls)]
    return found


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


def _arguments(function: BodyFields) -> GivenArguments:
    """Nothing is an empty object; what is no object at all stays a text."""
    text = function.text("arguments") or "{}"
    value = function.parsed("arguments")
    if not function.text("arguments"):
        value = {}
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


def _content(message: BodyFields) -> str | None:
    """None only of the assistant."""
    value = message.raw("content")
    if value is None and message.raw("role") == "assistant":
        return None
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
    kind = fields.raw("type")
    if kind == "file":
        text = file_text(fields.nested("file") or fields)
    elif kind == "refusal" and message.raw("role") == "assistant":
        text = needed(fields, "refusal")
    elif kind == "text":
        text = needed(fields, "text")
    else:
        raise refused(f"'{fields.name('type')}' must be 'text'", fields.name("type"), "unsupported_value")
    fields.overlook()
    return text
