"""Requests of OpenAI's /v1/responses, as chats. Nothing is stored: what goes on with an earlier answer is refused."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from tpiedge.api.asked import Asked, check_model
from tpiedge.api.errors import refused
from tpiedge.api.fields import BodyFields
from tpiedge.api.namespaces import full_name
from tpiedge.api.service import Service
from tpiedge.api.tools import is_left_out
from tpiedge.api.translation import Chat, Dialect, copied, needed, objects, text_parts

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
_OF_SERVERS: Final = (
    "code_interpreter_call", "file_search_call", "image_generation_call", "mcp_list_tools", "tool_search_call",
    "tool_search_output", "web_search_call",
)  # fmt: skip
"""Items about tools that no client runs, which another server answered with."""
_TEXTS: Final = ("input_text", "output_text", "text")


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
    if fields.text("truncation") not in (None, "auto", "disabled"):
        raise refused("'truncation' must be 'auto' or 'disabled'", "truncation")
    if fields.raw("truncation") == "auto":  # of what is too long, nothing is left out
        fields.ignore(("truncation",))
    stream = fields.flag("stream")
    options = fields.nested("stream_options")
    if options is not None:
        options.ignore(("include_obfuscation",))
        options.overlook()
    chat: Chat = {"stream": stream}
    copied(fields, chat, _COPIED)
    _read_text(fields, chat)
    _read_reasoning(fields, chat)
    namespaces = _read_tools(fields, chat)
    messages: list[Chat] = []
    instructions = fields.text("instructions")
    if instructions is not None:
        messages.append({"role": "system", "content": instructions})
    chat["messages"] = [*messages, *_input(fields)]
    asked = _DIALECT.asked(chat, fields, service, name, stream=stream)
    found = tuple(namespaces.get(tool, "") for tool in asked.reply.tools)
    return replace(asked, reply=replace(asked.reply, namespaces=found if any(found) else ()))


def _input(fields: BodyFields) -> list[Chat]:
    value = fields.raw("input")
    if value is None:
        raise refused("you must provide an 'input'", "input", "missing_required_parameter")
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    found: list[Chat] = []
    for item in objects(fields, "input", value):
        kind = item.text("type") or "message"
        item.ignore(("id", "status", "phase"))
        if kind == "message":
            found.append(_message(item))
        elif kind == "function_call":
            _add_call(found, item, needed(item, "arguments"))
        elif kind == "custom_tool_call":
            _add_call(found, item, json.dumps({"input": needed(item, "input")}))
        elif kind in ("function_call_output", "custom_tool_call_output"):
            item.ignore(("name", "namespace"))
            call, output = needed(item, "call_id"), text_parts(item, "output", _TEXTS)
            found.append({"role": "tool", "tool_call_id": call, "content": output})
        elif kind == "reasoning":
            item.ignore(("summary", "content", "encrypted_content"))
        elif kind in _OF_SERVERS:
            item.pass_over(kind)
            item.items()
        else:
            where = item.name("type")
            raise refused(f"'{where}' must be 'message': only text is read here", where, "unsupported_value")
        item.overlook()
    if not found:
        raise refused("'input' is empty: give at least one message", "input")
    return found


def _message(item: BodyFields) -> Chat:
    role = item.text("role")
    if role not in _ROLES:
        where = item.name("role")
        raise refused(f"'{where}' must be one of {', '.join(_ROLES)}", where)
    return {"role": role, "content": text_parts(item, "content", _TEXTS)}


def _add_call(found: list[Chat], item: BodyFields, arguments: str) -> None:
    """A call of a function is the assistant's, in one message with what it said before, and with its other calls."""
    name = full_name(item.text("namespace") or "", needed(item, "name"))
    function = {"name": name, "arguments": arguments}
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


def _read_tools(fields: BodyFields, chat: Chat) -> dict[str, str]:
    """The namespace of each tool, by its name for the model; "" for one without."""
    value = fields.raw("tools")
    found = [one for tool in objects(fields, "tools", value) for one in _unfolded(tool)] if value else []
    if found:
        chat["tools"] = [function for _, _, function in found]
    choice = fields.raw("tool_choice")
    if isinstance(choice, dict):
        named = fields.inner(choice, "tool_choice")
        if named.text("type") != "function":
            raise refused("'tool_choice.type' must be 'function'", "tool_choice.type", "unsupported_value")
        name = full_name(named.text("namespace") or "", needed(named, "name"))
        chat["tool_choice"] = {"type": "function", "function": {"name": name}}
        named.overlook()
    elif choice is not None:
        chat["tool_choice"] = choice
    return {name: namespace for namespace, name, _ in found}


def _unfolded(tool: BodyFields) -> Iterator[tuple[str, str, Chat]]:
    """The functions of a namespace, or the tool itself: namespace, name for the model, and what a chat has of it;
    nothing for what is no function."""
    namespace, inner = "", [tool]
    if tool.text("type") == "namespace":
        namespace, inner = needed(tool, "name"), [*objects(tool, "tools", tool.raw("tools"))]
        tool.ignore(("description",))
        tool.overlook()
    for one in inner:
        if not is_left_out(one):
            name = full_name(namespace, needed(one, "name"))
            yield namespace, name, _function(one, name)


def _function(tool: BodyFields, name: str) -> Chat:
    function: Chat = {"name": name}
    copied(tool, function, {key: key for key in ("description", "parameters", "strict")})
    tool.overlook()
    return {"type": "function", "function": function}
