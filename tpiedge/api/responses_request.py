"""Requests of OpenAI's /v1/responses, as chats. Nothing is stored: what goes on with an earlier answer is refused."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from tpiedge.api import tables as t
from tpiedge.api.answer_fields import LIMIT, MODEL, SAMPLING, STREAM, TOP_LOGPROBS, check_model
from tpiedge.api.answer_grammar import FORM
from tpiedge.api.asked import MAX_ECHO, MAX_TOOL_NAME, MAX_TOOLS, Asked
from tpiedge.api.chat_request import Chat, Dialect, copied
from tpiedge.api.errors import refused
from tpiedge.api.fields import BodyFields
from tpiedge.api.messages import CITED_TEXT, content_text
from tpiedge.api.service import Service
from tpiedge.api.tools import is_function

_VAIN: Final = (
    "metadata", "store", "user", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_options",
    "prompt_cache_retention", "max_tool_calls", "context_management", "moderation",
)  # fmt: skip
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
)
_JOINT: Final = "__"
_SCORES: Final = "message.output_text.logprobs"
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

_PARTS: Final = t.tagged(
    "type",
    **dict.fromkeys(("input_text", "output_text", "text"), CITED_TEXT),
    refusal=t.body("refusal", refusal=t.TEXT),
    input_file=t.body(filename=t.text(), file_data=t.text()),
)
_THOUGHTS: Final = t.tagged("type", **dict.fromkeys(("reasoning_text", "text"), CITED_TEXT))
_CONTENT: Final = t.any_of(t.TEXT, t.array(t.any_of(*_PARTS.values())))
_ITEM: Final[dict[str, t.JsonSchema]] = t.vain("id", "status", "phase")
_CALL: Final[dict[str, t.JsonSchema]] = {
    **_ITEM,
    "call_id": t.TEXT,
    "name": t.TEXT,
    "namespace": t.text(),
}
_OUTPUT: Final = t.body("call_id", **_ITEM, call_id=t.TEXT, output=_CONTENT, **t.vain("name", "namespace"))
_ITEMS: Final = t.tagged(
    "type",
    message=t.body(
        "role", **_ITEM, role=t.word("system", "developer", "user", "assistant"), content=_CONTENT
    ),
    function_call=t.body("call_id", "name", "arguments", **_CALL, arguments=t.TEXT),
    custom_tool_call=t.body("call_id", "name", "input", **_CALL, input=t.TEXT),
    function_call_output=_OUTPUT,
    custom_tool_call_output=_OUTPUT,
    reasoning=t.body(**_ITEM, content=t.array(t.OBJECT), **t.vain("summary", "encrypted_content")),
)
_ITEMS["message"]["required"].remove("type")
_FUNCTION: Final = t.body(
    "name",
    type={"const": "function"},
    name=t.TEXT,
    description=t.text(),
    parameters=t.OBJECT,
    strict=t.flag(""),
)
_NAMESPACE: Final = t.body(
    "name", "tools", type={"const": "namespace"}, name=t.TEXT, tools=t.array(t.OBJECT), description=t.VAIN
)
_CHOSEN: Final = t.tagged("type", function=t.body("name", name=t.TEXT, namespace=t.text()))
_CHOICES: Final = _CHOSEN | t.tagged(
    "type",
    allowed_tools=t.body(
        "tools", mode=t.word("auto", "required"), tools=t.array(t.any_of(*_CHOSEN.values()))
    ),
)
_NOT_STORED: Final = t.unsupported(why=", as no answer is stored: send the whole conversation as 'input'")
RESPONSES: Final = t.body(
    "model",
    "input",
    **FORM,
    model=MODEL,
    **dict.fromkeys(("previous_response_id", "conversation", "prompt"), _NOT_STORED),
    background=t.unsupported(False),
    input=t.any_of(t.TEXT, t.array(t.any_of(*_ITEMS.values()))),
    instructions=t.text(),
    max_output_tokens=LIMIT,
    temperature=SAMPLING["temperature"],
    top_p=SAMPLING["top_p"],
    stream=STREAM,
    stream_options=t.optional(t.body(**t.vain("include_obfuscation")), "Has no effect."),
    text=t.optional(t.body(format=t.OBJECT, verbosity=t.VAIN), "The form of the text."),
    reasoning=t.optional(t.body(effort=t.text(), **t.vain("summary", "generate_summary"))),
    tools=t.array(t.OBJECT, most=MAX_TOOLS),
    tool_choice=t.any_of({"enum": ["none", "auto", "required", None]}, *_CHOICES.values()),
    parallel_tool_calls=t.flag("Whether several tools may be called at once; true without."),
    include=t.array(t.TEXT, f"With `{_SCORES}`, probabilities are told."),
    top_logprobs=TOP_LOGPROBS,
    truncation=t.word(
        "auto", "disabled", description="Both are taken: nothing is left out of an input that is too long."
    ),
    **t.vain(*_VAIN),
)
_FORMAT: Final = t.body(
    "type", type=t.TEXT, **{key: {} for key in ("name", "schema", "strict", "description")}
)


def read_response(values: dict[str, object], service: Service, name: str) -> Asked:
    """`name`: the answer's. Raises ApiError."""
    fields = BodyFields(values, RESPONSES)
    check_model(fields, service)
    if fields.raw("truncation") == "auto":
        fields.note("truncation")
    stream = fields.flag("stream")
    chat: Chat = {"stream": stream}
    copied(fields, chat, _COPIED)
    included, top = fields.raw("include") or [], fields.integer("top_logprobs")
    if any(one != _SCORES for one in included):
        fields.note("include")
    if top or _SCORES in included:
        chat |= {"logprobs": True, "top_logprobs": top}
    _read_text(fields, chat)
    reasoning = fields.nested("reasoning")
    if reasoning is not None and reasoning.text("effort") is not None:
        chat["reasoning_effort"] = reasoning.text("effort")
    namespaces = _read_tools(fields, chat)
    instructions = fields.text("instructions")
    told: list[Chat] = [] if instructions is None else [{"role": "system", "content": instructions}]
    chat["messages"] = [*told, *_input(fields)]
    asked = _DIALECT.asked(chat, fields, service, name, stream=stream)
    found = tuple(namespaces.get(tool, "") for tool in asked.reply.tools)
    reply = replace(asked.reply, echo=_echo(values), namespaces=found if any(found) else ())
    return replace(asked, reply=reply)


def bare_name(namespace: str, full: str) -> str:
    """The function's own name, of that by which the model knows it."""
    return full.removeprefix(_prefix(namespace))


def _full_name(namespace: str | None, name: str) -> str:
    """The function's name for the model. Codex sends tools of MCP servers in namespaces: their names begin with that,
    unless both are too long for one name."""
    full = f"{_prefix(namespace or '')}{name}"
    return full if len(full) <= MAX_TOOL_NAME else name


def _prefix(namespace: str) -> str:
    return namespace if not namespace or namespace.endswith(_JOINT) else f"{namespace}{_JOINT}"


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
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, list):
        raise fields.wrong_type("input", "a string or an array", value)
    found: list[Chat] = []
    thoughts = ""
    for where, given in fields.entries("input"):
        if given.get("type") in _OF_SERVERS:
            fields.note(f"{where}.{given['type']}")
            continue
        kind, item = fields.kind(given, where, _ITEMS, usual="message")
        match kind:
            case "message":
                found.append({"role": item.raw("role"), "content": content_text(item, "content", _PARTS)})
            case "function_call":
                _add_call(found, item, item.needed("arguments"))
            case "custom_tool_call":
                _add_call(found, item, json.dumps({"input": item.needed("input")}))
            case "reasoning":  # of the assistant's next message, which an answer of ours has as they were
                thoughts = content_text(item, "content", _THOUGHTS) if item.raw("content") else ""
                continue
            case _:
                output = content_text(item, "output", _PARTS)
                found.append({"role": "tool", "tool_call_id": item.needed("call_id"), "content": output})
        if thoughts and found[-1]["role"] == "assistant":
            found[-1].setdefault("reasoning_content", thoughts)
        thoughts = ""
    if not found:
        raise refused("'input' is empty: give at least one message", "input")
    return found


def _add_call(found: list[Chat], item: BodyFields, arguments: str) -> None:
    """A call of a function is the assistant's, in one message with what it said before, and with its other calls."""
    function = {"name": _full_name(item.text("namespace"), item.needed("name")), "arguments": arguments}
    call: Chat = {"id": item.needed("call_id"), "type": "function", "function": function}
    if not found or found[-1]["role"] != "assistant":
        found.append({"role": "assistant", "content": None})
    before = found[-1].get("tool_calls")
    found[-1]["tool_calls"] = [*(before if isinstance(before, list) else []), call]


def _read_text(fields: BodyFields, chat: Chat) -> None:
    """The form of the text."""
    outer = fields.nested("text")
    given = None if outer is None else outer.raw("format")
    if outer is None or given is None:
        return
    if given.get("type") != "json_schema":
        chat["response_format"] = given
        return
    form, schema = outer.inner(given, "format", _FORMAT), dict[str, object]()
    copied(form, schema, {key: key for key in ("name", "schema", "strict", "description")})
    chat["response_format"] = {"type": "json_schema", "json_schema": schema}


def _read_tools(fields: BodyFields, chat: Chat) -> dict[str, str]:
    """The namespace of each tool, by its name for the model; "" for one without."""
    found = [*_unfolded(fields)]
    if found:
        chat["tools"] = [function for _, _, function in found]
    choice = fields.raw("tool_choice")
    if choice is not None:
        chat["tool_choice"] = _tool_choice(fields, choice) if isinstance(choice, dict) else choice
    return {name: namespace for namespace, name, _ in found}


def _tool_choice(fields: BodyFields, given: object) -> Chat:
    """One function, or some of which one may be called, or must be."""
    kind, choice = fields.kind(given, "tool_choice", _CHOICES)
    if kind == "function":
        return _chosen(choice)
    tools = [_chosen(tool) for _, tool in choice.kinds("tools", _CHOSEN)]
    return {"type": kind, "allowed_tools": {"mode": choice.raw("mode"), "tools": tools}}


def _chosen(choice: BodyFields) -> Chat:
    name = _full_name(choice.text("namespace"), choice.needed("name"))
    return {"type": "function", "function": {"name": name}}


def _unfolded(fields: BodyFields) -> Iterator[tuple[str, str, Chat]]:
    """The functions, also those of namespaces: namespace, name for the model, and what a chat has of it; nothing for
    what is no function."""
    for where, item in fields.entries("tools"):
        namespace, inner = "", [(where, item)]
        outer = fields
        if item.get("type") == "namespace":
            outer = fields.inner(item, where, _NAMESPACE)
            namespace, inner = outer.needed("name"), [*outer.entries("tools")]
        for place, one in inner:
            if is_function(outer, place, one):
                tool = outer.inner(one, place, _FUNCTION)
                name = _full_name(namespace, tool.needed("name"))
                function: Chat = {"name": name}
                copied(tool, function, {key: key for key in ("description", "parameters", "strict")})
                yield namespace, name, {"type": "function", "function": function}
