"""The messages of a chat: text only."""

from tpiedge.api.errors import refused
from tpiedge.api.fields import BodyFields

__all__ = ["read_messages"]

_MAX_MESSAGES = 4096
_MAX_NAME = 64
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_IGNORED = ("refusal", "annotations", "reasoning", "reasoning_content")


def read_messages(fields: BodyFields) -> list[dict[str, str]]:
    """{"role", "content"} and, where given, "name" of every message. Raises ApiError that names the field."""
    value = fields.raw("messages")
    if value is None:
        raise refused("you must provide 'messages'", "messages", "missing_required_parameter")
    if not isinstance(value, list):
        raise fields.wrong_type("messages", "an array", value)
    if not 1 <= len(value) <= _MAX_MESSAGES:
        raise refused(f"'messages' has {len(value)} messages: 1 to {_MAX_MESSAGES}", "messages")
    return [_message(item, index, fields) for index, item in enumerate(value)]


def _message(item: object, index: int, fields: BodyFields) -> dict[str, str]:
    where = f"messages[{index}]"
    if not isinstance(item, dict):
        raise fields.wrong_type(where, "an object", item)
    message = fields.inner(item, where)
    role = message.text("role")
    if role not in _ROLES:
        known = ", ".join(_ROLES)
        raise refused(f"'{where}.role' must be one of {known}", f"{where}.role")
    found = {"role": _ROLES[role], "content": _content(message, optional=role == "assistant")}
    name = message.text("name")
    if name is not None:
        if len(name) > _MAX_NAME:
            raise refused(f"'{where}.name' has more than {_MAX_NAME} characters", f"{where}.name")
        found["name"] = name
    message.unsupported(("tool_calls", "function_call", "tool_call_id", "audio"))
    message.ignore(_IGNORED)
    message.overlook()
    return found


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
