"""Requests of Anthropic's /v1/messages, as chats."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Final

from tpiedge.api import encoding
from tpiedge.api.asked import MAX_TOKENS, Asked, check_model
from tpiedge.api.documents import document_text, search_result_text
from tpiedge.api.errors import ApiError, PromptTooLong, refused
from tpiedge.api.fields import BodyFields, needed
from tpiedge.api.service import Service
from tpiedge.api.tools import is_left_out
from tpiedge.api.translation import Chat, Dialect, copied, objects, text_parts

_COPIED: Final = {"temperature": "temperature", "top_p": "top_p", "top_k": "top_k", "stop_sequences": "stop"}
_DIALECT: Final = Dialect(
    "message",
    names={
        "stop": "stop_sequences",
        "response_format": "output_config.format",
        "response_format.json_schema.schema": "output_config.format.schema",
        "tools[].function.parameters": "tools[].input_schema",
    },
    ignored=(
        "metadata", "service_tier", "inference_geo", "speed", "context_management", "cache_control", "betas",
        "diagnostics", "user_profile_id", "workspace_id",
    ),
)  # fmt: skip
_STATEFUL: Final = ("container", "mcp_servers")
_THINKING: Final = ("enabled", "adaptive", "between_tools", "disabled")
_RESULTS: Final = ("text", "document", "search_result")
_CHOICES: Final = {"auto": "auto", "any": "required", "none": "none"}


def read_messages_request(values: dict[str, object], service: Service, name: str) -> Asked:
    """`name`: the answer's. Raises ApiError."""
    fields = BodyFields(values)
    check_model(fields, service)
    _refuse_thread(fields)
    maximum = fields.integer("max_tokens", None, 0, MAX_TOKENS)
    if maximum is None:
        raise refused("you must provide 'max_tokens'", "max_tokens", "missing_required_parameter")
    asked = _read(fields, service, name, max(1, maximum))
    if maximum:
        return asked
    # The prompt is read, so that its pages are in the cache for the next request.
    (choice,) = asked.choices
    return replace(asked, choices=(replace(choice, request=replace(choice.request, max_tokens=0)),))


def count_tokens(fields: BodyFields, service: Service) -> dict[str, object]:
    """What /v1/messages/count_tokens answers. Raises ApiError."""
    check_model(fields, service)
    _refuse_thread(fields)
    fields.ignore(("max_tokens",))
    try:
        found = len(_read(fields, service, "count", 1).choices[0].request.prompt_ids)
    except PromptTooLong as error:  # clients ask this to find out whether to shorten the conversation
        found = max(error.tokens, encoding.count_tokens(error.text, service))
    return {"input_tokens": found}


def _refuse_thread(fields: BodyFields) -> None:
    """Their clients know this error, and send the whole conversation then."""
    if fields.raw("thread") is not None:
        why = "'thread' is not supported, as no message is stored: send the whole conversation as 'messages'"
        details = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
        raise ApiError(400, why, "unsupported_parameter", param="thread", details=details)


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
    # The answer goes on with what the assistant has begun to say.
    chat["continue_final_message"] = messages[-1]["role"] == "assistant"
    fields.unsupported(_STATEFUL)
    return _DIALECT.asked(chat, fields, service, name, stream=stream)


def _messages(fields: BodyFields) -> list[Chat]:
    value = fields.raw("messages")
    if value is None:
        raise refused("you must provide 'messages'", "messages", "missing_required_parameter")
    found: list[Chat] = []
    given = objects(fields, "messages", value)
    for role, turn in groupby(given, _role):
        messages = [*turn]
        found += _turn(messages, role, begun=role == "assistant" and messages[-1] is given[-1])
    if not found:
        raise refused("'messages' is empty: give at least one message", "messages")
    return found


def _role(message: BodyFields) -> str:
    role = message.text("role")
    if role not in ("user", "assistant", "system"):
        where = message.name("role")
        raise refused(f"'{where}' must be 'user' or 'assistant'", where)
    return role


@dataclass(slots=True)
class _Turn:
    """The contents of neighbouring messages of one role, which are one turn; `begun`: with which the answer goes on."""

    begun: bool
    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: list[Chat] = field(default_factory=list)
    results: list[Chat] = field(default_factory=list)

    def add(self, block: BodyFields, role: str) -> None:
        """Raises ApiError."""
        kind = block.text("type")
        block.ignore(("cache_control", "citations"))
        match kind, role:
            case "text", _:
                self.texts.append(needed(block, "text"))
            case "document", "user":
                self.texts.append(document_text(block))
            case "search_result", "user":
                self.texts.append(search_result_text(block))
            case "tool_result", "user":
                self.results.append(_result(block))
            case "tool_use", "assistant" if self.begun:
                where = block.name("type")
                raise refused(f"'{where}': an answer cannot go on with a message that has calls", where)
            case "tool_use", "assistant":
                self.calls.append(_call(block))
            case (("thinking" | "redacted_thinking"), "assistant"):
                self.thoughts.append(block.text("thinking") or "")
                block.ignore(("signature", "data"))
            case _:
                where = block.name("type")
                why = f"'{where}' must be 'text': nothing else is read here"
                raise refused(why, where, "unsupported_value")
        block.overlook()

    def messages(self, role: str) -> list[Chat]:
        """Results of tools are messages of their own, before what is said."""
        if self.results and not self.texts:
            return self.results
        said: Chat = {
            "role": role,
            "content": "\n".join(self.texts) if self.texts or not self.calls else None,
        }
        if self.calls:
            said["tool_calls"] = self.calls
        if any(self.thoughts):
            said["reasoning_content"] = "".join(self.thoughts)
        return [*self.results, said]


def _turn(messages: Sequence[BodyFields], role: str, *, begun: bool) -> list[Chat]:
    """The messages that neighbours of one role become; `begun`: the answer goes on with them."""
    turn = _Turn(begun)
    for message in messages:
        content = message.raw("content")
        if isinstance(content, str):
            turn.texts.append(content)
        else:
            for block in objects(message, "content", content):
                turn.add(block, role)
        message.overlook()
    return turn.messages(role)


def _call(block: BodyFields) -> Chat:
    arguments = block.nested("input")
    text = json.dumps(dict(arguments.items()) if arguments else {}, ensure_ascii=False)
    function = {"name": needed(block, "name"), "arguments": text}
    return {"id": needed(block, "id"), "type": "function", "function": function}


def _result(block: BodyFields) -> Chat:
    if block.flag("is_error"):
        block.ignore(("is_error",))
    content = "" if block.raw("content") is None else text_parts(block, "content", _RESULTS)
    return {"role": "tool", "tool_call_id": needed(block, "tool_use_id"), "content": content}


def _read_thinking(fields: BodyFields, chat: Chat) -> None:
    thinking = fields.nested("thinking")
    if thinking is None:  # their clients take the first block for the answer
        chat["chat_template_kwargs"] = {"enable_thinking": False}
        return
    kind = thinking.text("type")
    if kind not in _THINKING:
        raise refused(f"'thinking.type' must be one of {', '.join(_THINKING)}", "thinking.type")
    # Between tools means: none but the words between two calls, which are the answer's text here.
    chat["chat_template_kwargs"] = {"enable_thinking": kind in ("enabled", "adaptive")}
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
    """A schema that the answer is to have, by its name of today or by that of the beta."""
    output = fields.nested("output_config")
    today = None if output is None else output.nested("format")
    beta = fields.nested("output_format")
    if output is not None:
        output.ignore(("effort", "task_budget"))
        output.overlook()
    found = [_form(form) for form in (today, beta) if form is not None]
    if len(found) == 2 and found[0] != found[1]:
        why = "'output_config.format' and 'output_format' both say what the answer must be, and not the same: give one"
        raise refused(why, "output_format")
    if found:
        chat["response_format"] = found[0]


def _form(form: BodyFields) -> Chat:
    if form.text("type") != "json_schema":
        where = form.name("type")
        raise refused(f"'{where}' must be 'json_schema'", where, "unsupported_value")
    schema = form.nested("schema")
    form.ignore(("name", "description"))
    strict = form.flag("strict")
    form.overlook()
    wanted = {"name": "answer", "schema": dict(schema.items()) if schema else {}, "strict": strict}
    return {"type": "json_schema", "json_schema": wanted}
