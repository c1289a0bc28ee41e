"""Requests of Anthropic's /v1/messages, as chats."""

import json
from typing import Final

from tpiedge.api.asked import MAX_TOKENS, Asked, check_model
from tpiedge.api.errors import refused
from tpiedge.api.fields import BodyFields
from tpiedge.api.service import Service
from tpiedge.api.tools import is_left_out
from tpiedge.api.translation import Chat, Dialect, copied, needed, objects, text_parts

__all__ = ["count_tokens", "read_messages_request"]

_COPIED: Final = {"temperature": "temperature", "top_p": "top_p", "top_k": "top_k", "stop_sequences": "stop"}
_DIALECT: Final = Dialect(
    "message",
    names={"stop": "stop_sequences", "response_format": "output_config.format"},
    ignored=(
        "metadata", "service_tier", "inference_geo", "speed", "context_management", "cache_control", "betas",
        "diagnostics", "user_profile_id", "workspace_id",
    ),
)  # fmt: skip
_STATEFUL: Final = ("container", "mcp_servers")
_THOUGHTS: Final = ("thinking", "redacted_thinking")
_CHOICES: Final = {"auto": "auto", "any": "required", "none": "none"}


def read_messages_request(values: dict[str, object], service: Service, name: str) -> Asked:
    """`name`: the answer's. Raises ApiError."""
    fields = BodyFields(values)
    check_model(fields, service)
    maximum = fields.integer("max_tokens", None, 1, MAX_TOKENS)
    if maximum is None:
        raise refused("you must provide 'max_tokens'", "max_tokens", "missing_required_parameter")
    return _read(fields, service, name, maximum)


def count_tokens(fields: BodyFields, service: Service) -> dict[str, object]:
    """What /v1/messages/count_tokens answers. Raises ApiError."""
    check_model(fields, service)
    fields.ignore(("max_tokens",))
    asked = _read(fields, service, "count", 1)
    return {"input_tokens": len(asked.choices[0].request.prompt_ids)}


def _read(fields: BodyFields, service: Service, name: str, maximum: int) -> Asked:
    stream = fields.flag("stream")
    chat: Chat = {"max_tokens": maximum, "stream": stream}
    copied(fields, chat, _COPIED)
    _read_thinking(fields, chat)
    _read_tools(fields, chat)
    _read_output(fields, chat)
    messages: list[Chat] = []
    if fields.raw("system") is not None:
        messages.append({"role": "system", "content": text_parts(fields, "system", ("text",))})
    messages += _messages(fields)
    chat["messages"] = messages
    # What the assistant has begun to say, the answer goes on with.
    chat["continue_final_message"] = messages[-1]["role"] == "assistant"
    fields.unsupported(_STATEFUL)
    return _DIALECT.asked(chat, fields, service, name, stream=stream)


def _messages(fields: BodyFields) -> list[Chat]:
    value = fields.raw("messages")
    if value is None:
        raise refused("you must provide 'messages'", "messages", "missing_required_parameter")
    found: list[Chat] = []
    given = objects(fields, "messages", value)
    for message in given:
        role = message.text("role")
        if role not in ("user", "assistant", "system"):
            where = message.name("role")
            raise refused(f"'{where}' must be 'user' or 'assistant'", where)
        found += _turn(message, role, begun=role == "assistant" and message is given[-1])
        message.overlook()
    if not found:
        raise refused("'messages' is empty: give at least one message", "messages")
    return found


def _turn(message: BodyFields, role: str, *, begun: bool) -> list[Chat]:
    """The messages that one of theirs becomes: results of tools are messages of their own. `begun`: the answer goes on
    with its text."""
    content = message.raw("content")
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[Chat] = []
    results: list[Chat] = []
    for block in objects(message, "content", content):
        kind = block.text("type")
        block.ignore(("cache_control", "citations"))
        if kind == "text":
            texts.append(needed(block, "text"))
        elif kind == "tool_use" and begun:
            where = block.name("type")
            raise refused(f"'{where}': an answer cannot go on with a message that has calls", where)
        elif kind == "tool_use" and role == "assistant":
            calls.append(_call(block))
        elif kind == "tool_result" and role == "user":
            results.append(_result(block))
        elif kind in _THOUGHTS and role == "assistant":
            thought = block.text("thinking") or ""
            if not begun:
                thoughts.append(thought)
            block.ignore(("signature", "data", "thinking") if begun else ("signature", "data"))
        else:
            where = block.name("type")
            raise refused(f"'{where}' must be 'text': nothing else is read here", where, "unsupported_value")
        block.overlook()
    said: Chat = {"role": role, "content": "\n".join(texts)}
    if calls:
        said["tool_calls"] = calls
    if any(thoughts):
        said["reasoning_content"] = "".join(thoughts)
    return [*results, said] if texts or calls or not results else results


def _call(block: BodyFields) -> Chat:
    arguments = block.nested("input")
    text = json.dumps(dict(arguments.items()) if arguments else {})
    function = {"name": needed(block, "name"), "arguments": text}
    return {"id": needed(block, "id"), "type": "function", "function": function}


def _result(block: BodyFields) -> Chat:
    if block.flag("is_error"):
        block.ignore(("is_error",))
    content = "" if block.raw("content") is None else text_parts(block, "content", ("text",))
    return {"role": "tool", "tool_call_id": needed(block, "tool_use_id"), "content": content}


def _read_thinking(fields: BodyFields, chat: Chat) -> None:
    thinking = fields.nested("thinking")
    if thinking is None:  # their clients take the first block for the answer
        chat["chat_template_kwargs"] = {"enable_thinking": False}
        return
    kind = thinking.text("type")
    if kind not in ("enabled", "adaptive", "disabled"):
        raise refused("'thinking.type' must be 'enabled', 'adaptive' or 'disabled'", "thinking.type")
    chat["chat_template_kwargs"] = {"enable_thinking": kind != "disabled"}
    thinking.ignore(("budget_tokens", "display"))
    thinking.overlook()


def _read_tools(fields: BodyFields, chat: Chat) -> None:
    value = fields.raw("tools")
    if value:
        tools = [_tool(tool) for tool in objects(fields, "tools", value)]
        chat["tools"] = [tool for tool in tools if tool is not None]
    choice = fields.nested("tool_choice")
    if choice is None:
        return
    kind = choice.text("type")
    if kind == "tool":
        chat["tool_choice"] = {"type": "function", "function": {"name": needed(choice, "name")}}
    elif kind in _CHOICES:
        chat["tool_choice"] = _CHOICES[kind]
    else:
        raise refused("'tool_choice.type' must be 'auto', 'any', 'tool' or 'none'", "tool_choice.type")
    if choice.flag("disable_parallel_tool_use"):
        chat["parallel_tool_calls"] = False
    choice.overlook()


def _tool(tool: BodyFields) -> Chat | None:
    """None for one that their servers run, or whose schema only their models know."""
    if tool.raw("type") is not None and is_left_out(tool, ("custom",)):
        return None
    schema = tool.nested("input_schema")
    function: Chat = {"name": needed(tool, "name"), "parameters": dict(schema.items()) if schema else {}}
    copied(tool, function, {"description": "description", "strict": "strict"})
    tool.ignore(("cache_control",))
    tool.overlook()
    return {"type": "function", "function": function}


def _read_output(fields: BodyFields, chat: Chat) -> None:
    """A schema that the answer is to have."""
    output = fields.nested("output_config")
    form = None if output is None else output.nested("format")
    if output is not None:
        output.ignore(("effort", "task_budget"))
        output.overlook()
    if form is None:
        return
    if form.text("type") != "json_schema":
        where = form.name("type")
        raise refused(f"'{where}' must be 'json_schema'", where, "unsupported_value")
    schema = form.nested("schema")
    wanted = {"name": "answer", "schema": dict(schema.items()) if schema else {}, "strict": True}
    chat["response_format"] = {"type": "json_schema", "json_schema": wanted}
    form.overlook()
