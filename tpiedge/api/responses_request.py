"""Requests of OpenAI's /v1/responses, as chats. Nothing is stored: what goes on with an earlier answer is refused."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from tpiedge.api.asked import MAX_ECHO, Asked, check_model
from tpiedge.api.errors import refused
from tpiedge.api.fields import BodyFields, needed
from tpiedge.api.service import Service
from tpiedge.api.translation import Chat, Dialect, copied, objects, text_parts

__all__ = ["read_response"]

_COPIED: Final = {
    "max_output_tokens": "max_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "parallel_tool_calls": "parallel_tool_calls",
}
_DIALECT: Final = Dialect(
    "response",
    names={"messages": "input", "max_tokens": "max_output_tokens", "response_format": "text.format"},
    ignored=(
        "metadata", "store", "user", "service_tier", "safety_identifier", "prompt_cache_key",
        "prompt_cache_options", "prompt_cache_retention", "include", "max_tool_calls", "top_logprobs",
        "context_management", "moderation",
    ),
)  # fmt: skip
_STATEFUL: Final = ("previous_response_id", "conversation", "prompt")
_ROLES: Final = ("system", "developer", "user", "assistant")
_TEXTS: Final = ("input_text", "output_text", "text", "refusal", "input_file")
_ECHOED: Final = (
    "temperature", "top_p", "max_output_tokens", "max_tool_calls", "parallel_tool_calls", "tool_choice", "truncation",
    "top_logprobs", "user", "safety_identifier", "prompt_cache_key", "reasoning", "text", "metadata", "instructions",
    "tools",
)  # fmt: skip
"""The fields of a request that its answer repeats."""


def read_response(values: dict[str, object], service: Service, name: str) -> Asked:
    """`name`: the answer's. Raises ApiError."""
    fields = BodyFields(values)
    check_model(fields, service)
    for key in _STATEFUL:
        if fields.raw(key) is not None:
            raise refused(
                f"'{key}' is not supported, as no answer is stored: send the whole conversation as 'input'",
                key,
                "unsupported_parameter",
            )
    fields.unsupported(("background",), False)
    fields.unsupported(("truncation",), "disabled")
    stream = fields.flag("stream")
    options = fields.nested("stream_options")
    if options is not None:
        options.ignore(("include_obfuscation",))
        options.overlook()
    chat: Chat = {"stream": stream}
    copied(fields, chat, _COPIED)
    _read_text(fields, chat)
    _read_reasoning(fields, chat)
    _read_tools(fields, chat)
    messages: list[Chat] = []
    instructions = fields.text("instructions")
    if instructions is not None:
        messages.append({"role": "system", "content": instructions})
    chat["messages"] = [*messages, *_input(fields)]
    asked = _DIALECT.asked(chat, fields, service, name, stream=stream)
    return replace(asked, reply=replace(asked.reply, echo=_echo(values)))


def _echo(values: Mapping[str, object]) -> str:
    """The fields that the answer repeats, as JSON: all that fit, the small fields first."""
    found: dict[str, object] = {}
    length = 2
    for key in _ECHOED:
        value = values.get(key)
        more = len(json.dumps({key: value}))
        if value is not None and length + more <= MAX_ECHO:
            found[key] = value
            length += more
    return json.dumps(found)


def _input(fields: BodyFields) -> list[Chat]:
    value = fields.raw("input")
    if value is None:
        raise refused("you must provide an 'input'", "input", "missing_required_parameter")
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    found: list[Chat] = []
    thoughts = ""
    for item in objects(fields, "input", value):
        kind = item.text("type") or "message"
        item.ignore(("id", "status", "phase"))
        if kind == "message":
            found.append(_message(item))
        elif kind == "function_call":
            _add_call(found, item)
        elif kind == "function_call_output":
            call, output = needed(item, "call_id"), text_parts(item, "output", _TEXTS)
            found.append({"role": "tool", "tool_call_id": call, "content": output})
        elif kind == "reasoning":
            thoughts = _thoughts(item)
        else:
            where = item.name("type")
            raise refused(f"'{where}' must be 'message': only text is read here", where, "unsupported_value")
        item.overlook()
        if kind != "reasoning":
            if thoughts and found[-1]["role"] == "assistant":
                found[-1].setdefault("reasoning_content", thoughts)
            thoughts = ""
    if not found:
        raise refused("'input' is empty: give at least one message", "input")
    return found


def _thoughts(item: BodyFields) -> str:
    """The thoughts of the assistant's next message, which an answer of ours has as they were."""
    item.ignore(("summary", "encrypted_content"))
    if not isinstance(item.raw("content"), list):
        return ""
    return text_parts(item, "content", ("reasoning_text", "text"))


def _message(item: BodyFields) -> Chat:
    role = item.text("role")
    if role not in _ROLES:
        where = item.name("role")
        raise refused(f"'{where}' must be one of {', '.join(_ROLES)}", where)
    return {"role": role, "content": text_parts(item, "content", _TEXTS)}


def _add_call(found: list[Chat], item: BodyFields) -> None:
    """A call of a function is the assistant's, in one message with what it said before, and with its other calls."""
    function = {"name": needed(item, "name"), "arguments": needed(item, "arguments")}
    call: Chat = {"id": needed(item, "call_id"), "type": "function", "function": function}
    if not found or found[-1]["role"] != "assistant":
        found.append({"role": "assistant", "content": None})
    before = found[-1].get("tool_calls")
    found[-1]["tool_calls"] = [*(before if isinstance(before, list) else []), call]


def _read_text(fields: BodyFields, chat: Chat) -> None:
    """The form of the text."""
    text = fields.nested("text")
    form = None if text is None else text.nested("format")
    if text is not None:
        text.ignore(("verbosity",))
        text.overlook()
    if form is None:
        return
    kind = form.text("type")
    if kind != "json_schema":
        chat["response_format"] = {"type": kind}
        form.overlook()
        return
    schema: Chat = {}
    copied(form, schema, {key: key for key in ("name", "schema", "strict", "description")})
    form.overlook()
    chat["response_format"] = {"type": kind, "json_schema": schema}


def _read_reasoning(fields: BodyFields, chat: Chat) -> None:
    reasoning = fields.nested("reasoning")
    if reasoning is None:
        return
    effort = reasoning.text("effort")
    if effort is not None:
        chat["reasoning_effort"] = effort
    reasoning.ignore(("summary", "generate_summary"))
    reasoning.overlook()


def _read_tools(fields: BodyFields, chat: Chat) -> None:
    value = fields.raw("tools")
    if value:
        chat["tools"] = [_tool(tool) for tool in objects(fields, "tools", value)]
    choice = fields.raw("tool_choice")
    if isinstance(choice, dict):
        named = fields.inner(choice, "tool_choice")
        if named.text("type") != "function":
            raise refused("'tool_choice.type' must be 'function'", "tool_choice.type", "unsupported_value")
        chat["tool_choice"] = {"type": "function", "function": {"name": needed(named, "name")}}
        named.overlook()
    elif choice is not None:
        chat["tool_choice"] = choice


def _tool(tool: BodyFields) -> Chat:
    if tool.text("type") != "function":
        where = tool.name("type")
        raise refused(f"'{where}' must be 'function': no tools run here", where, "unsupported_value")
    function: Chat = {"name": needed(tool, "name")}
    copied(tool, function, {key: key for key in ("description", "parameters", "strict")})
    tool.overlook()
    return {"type": "function", "function": function}
