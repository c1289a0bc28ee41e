"""Requests of OpenAI's /v1/responses, as chats. Nothing is stored: what goes on with an earlier answer is refused."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from tpiedge.api.asked import MAX_ECHO, Asked, check_model
from tpiedge.api.errors import refused
from tpiedge.api.fields import BodyFields, needed
from tpiedge.api.namespaces import full_name
from tpiedge.api.service import Service
from tpiedge.api.tools import is_left_out
from tpiedge.api.translation import Chat, Dialect, copied, objects, text_parts

_COPIED: Final = {
    "max_output_tokens": "max_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "parallel_tool_calls": "parallel_tool_calls",
}
_DIALECT: Final = Dialect(
    "response",
    names={
        "messages": "input",
        "max_tokens": "max_output_tokens",
        "response_format": "text.format",
        "response_format.json_schema": "text.format",
        "tools[].function": "tools[]",
    },
    ignored=(
        "metadata", "store", "user", "service_tier", "safety_identifier", "prompt_cache_key",
        "prompt_cache_options", "prompt_cache_retention", "max_tool_calls", "context_management", "moderation",
    ),
)  # fmt: skip
_STATEFUL: Final = ("previous_response_id", "conversation", "prompt")
_SCORES: Final = "message.output_text.logprobs"
_ROLES: Final = ("system", "developer", "user", "assistant")
_TEXTS: Final = ("input_text", "output_text", "text", "refusal", "input_file")
_ECHOED: Final = (
    "temperature", "top_p", "max_output_tokens", "max_tool_calls", "parallel_tool_calls", "tool_choice", "truncation",
    "top_logprobs", "user", "safety_identifier", "prompt_cache_key", "reasoning", "text", "metadata", "instructions",
    "tools",
)  # fmt: skip
"""The fields of a request that its answer repeats."""
_OF_SERVERS: Final = (
    "code_interpreter_call", "file_search_call", "image_generation_call", "mcp_list_tools", "tool_search_call",
    "tool_search_output", "web_search_call",
)  # fmt: skip
"""Items about tools that no client runs, which another server answered with."""


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
    _read_scores(fields, chat)
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
    reply = replace(asked.reply, echo=_echo(values), namespaces=found if any(found) else ())
    return replace(asked, reply=reply)


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
            _add_call(found, item, needed(item, "arguments"))
        elif kind == "custom_tool_call":
            _add_call(found, item, json.dumps({"input": needed(item, "input")}))
        elif kind in ("function_call_output", "custom_tool_call_output"):
            item.ignore(("name", "namespace"))
            call, output = needed(item, "call_id"), text_parts(item, "output", _TEXTS)
            found.append({"role": "tool", "tool_call_id": call, "content": output})
        elif kind == "reasoning":
            thoughts = _thoughts(item)
        elif kind in _OF_SERVERS:
            item.pass_over(kind)
            item.items()
        else:
            where = item.name("type")
            raise refused(f"'{where}' must be 'message': only text is read here", where, "unsupported_value")
        item.overlook()
        if kind != "reasoning" and kind not in _OF_SERVERS:
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


def _add_call(found: list[Chat], item: BodyFields, arguments: str) -> None:
    """A call of a function is the assistant's, in one message with what it said before, and with its other calls."""
    name = full_name(item.text("namespace") or "", needed(item, "name"))
    function = {"name": name, "arguments": arguments}
    call: Chat = {"id": needed(item, "call_id"), "type": "function", "function": function}
    if not found or found[-1]["role"] != "assistant":
        found.append({"role": "assistant", "content": None})
    before = found[-1].get("tool_calls")
    found[-1]["tool_calls"] = [*(before if isinstance(before, list) else []), call]


def _read_scores(fields: BodyFields, chat: Chat) -> None:
    """The log probabilities that are wanted."""
    included, top = fields.raw("include"), fields.raw("top_logprobs")
    others = [one for one in included if one != _SCORES] if isinstance(included, list) else included
    if others:
        fields.ignore(("include",))
    if top or (isinstance(included, list) and _SCORES in included):
        chat |= {"logprobs": True, "top_logprobs": top}


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
        chat["response_format"] = dict(form.items())
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
        chat["tool_choice"] = _tool_choice(fields.inner(choice, "tool_choice"))
    elif choice is not None:
        chat["tool_choice"] = choice
    return {name: namespace for namespace, name, _ in found}


def _tool_choice(choice: BodyFields) -> Chat:
    """One function, or some of which one may be called, or must be."""
    kind = choice.text("type")
    if kind == "allowed_tools":
        tools = objects(choice, "tools", choice.raw("tools"))
        allowed: Chat = {"mode": choice.text("mode"), "tools": [_tool_choice(tool) for tool in tools]}
        choice.overlook()
        return {"type": kind, "allowed_tools": allowed}
    if kind != "function":
        where = choice.name("type")
        raise refused(f"'{where}' must be 'function'", where, "unsupported_value")
    name = full_name(choice.text("namespace") or "", needed(choice, "name"))
    choice.overlook()
    return {"type": kind, "function": {"name": name}}


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
