"""Requests of /v1/chat/completions: every field is checked before any work is done for it. Requests of other APIs
become chats, too: what one of these can do, the others can."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from tpiedge.api import tables as t
from tpiedge.api.answer_fields import (
    ANSWERING,
    LIMIT,
    TOP_LOGPROBS,
    check_model,
    read_limit,
    read_reply,
    read_sampling,
)
from tpiedge.api.answer_grammar import CONSTRAINTS, FORM, read_grammar
from tpiedge.api.asked import (
    MAX_TOOLS,
    Asked,
    Choice,
    FormatName,
    answer_limit,
    check_characters,
    encode,
    named_choices,
    request_of,
)
from tpiedge.api.call_grammars import (
    begun_call_grammar,
    call_or_form_grammar,
    calls_are_known_by_tokens,
    required_call_grammar,
)
from tpiedge.api.errors import ApiError, refused
from tpiedge.api.fields import BodyFields
from tpiedge.api.messages import MESSAGES, message_texts, read_messages
from tpiedge.api.service import Service
from tpiedge.api.tools import TOOLS, AskedTools, read_tools, text_parameters, tool_form
from tpiedge.errors import UserError
from tpiedge.model.call_reader import CallForm
from tpiedge.model.chat_prompt import chat_prompt
from tpiedge.model.speech import NO_THOUGHTS, Thinking, thinking_after
from tpiedge.wire.requests import Grammar

_THINKS: Final = t.flag("Whether a model that can think does.")
_TOOL: Final = re.compile(r"\btools(?:\[(\d*)\])?(?:\.function)?")
SWITCHES: Final = t.optional(
    t.body(enable_thinking=_THINKS, thinking=_THINKS), "Switches of the chat template."
)
CHAT: Final = t.body(
    "model",
    "messages",
    **ANSWERING,
    **FORM,
    **TOOLS,
    functions=t.array(
        {"type": "object"}, "The older name of tools, of which at most one is called.", MAX_TOOLS
    ),
    function_call=t.any_of(
        {"enum": ["none", "auto", None]},
        t.body("name", name=t.TEXT),
        description="The older name of tool_choice.",
    ),
    continue_final_message=t.flag("Whether the answer goes on with the last message, an assistant's."),
    messages=MESSAGES,
    max_tokens=LIMIT,
    max_completion_tokens=LIMIT,
    logprobs=t.flag("Whether probabilities are told."),
    top_logprobs=TOP_LOGPROBS,
    chat_template_kwargs=SWITCHES,
    modalities=t.unsupported(["text"]),
    **dict.fromkeys(("audio", "prediction", "web_search_options"), t.unsupported("none")),
    prompt=t.unsupported(),
)


def read_chat(values: dict[str, object], service: Service, name: str) -> Asked:
    """`name`: the answer's. The answer goes on with the last message where `continue_final_message` says so, in the
    words of vLLM. Raises ApiError."""
    if values.get("functions") or values.get("function_call") not in (None, "none", "auto"):
        return _read_functions(values, service, name)
    fields = BodyFields(values, CHAT)
    check_model(fields, service)
    wanted, top = fields.flag("logprobs"), fields.integer("top_logprobs")
    if top is not None and not wanted:
        raise refused("'top_logprobs' needs 'logprobs': true", "top_logprobs")
    logprobs = (top or 0) if wanted else None
    reply = read_reply(fields, "chat", logprobs)
    maximum = _max_tokens(fields)
    sampling = read_sampling(fields, service, logprobs)
    tools = read_tools(fields)
    form, form_param = read_grammar(fields, service)
    variables = read_variables(fields)
    goes_on, ignore_eos = fields.flag("continue_final_message"), fields.flag("ignore_eos")
    messages = read_messages(fields, goes_on=goes_on)
    if goes_on and messages[-1]["role"] != "assistant":
        why = "'continue_final_message' needs a last message of the assistant"
        raise refused(why, "continue_final_message")
    calls = tool_form(tools, service)
    grammar = _grammar(form, form_param, tools, calls, service)
    ids, thinking = _prompt(
        messages, variables, service, tools.shown, goes_on=goes_on, formed=grammar is not None
    )
    if grammar is None and not ignore_eos:
        grammar = begun_call_grammar(tools, calls, thinking, service)
        if grammar is None and calls_are_known_by_tokens(calls, thinking, service):
            fields.leave_out("tools", "function.parameters")  # too many for a grammar
    reply = replace(
        reply,
        calls=calls,
        tools=tools.names,
        texts=text_parameters(tools) if calls == "qwen-xml" else (),
        several=tools.several,
        required=bool(tools.required),
        thinking=thinking,
        grammar=form_param if form_param and not tools.required else "tools" if grammar else "",
        goes_on=goes_on,
    )
    limit = answer_limit("messages", maximum, len(ids), service)
    request = request_of(ids, limit, sampling, service, ignore_eos=ignore_eos, grammar=grammar)
    return Asked(named_choices([Choice(request)], fields.integer("n") or 1, name), reply, fields.ignored)


def _read_functions(values: dict[str, object], service: Service, name: str) -> Asked:
    """A request that names functions, as OpenAI's clients did before there were tools, of which at most one is
    called."""
    functions, call = values.get("functions") or [], values.get("function_call")
    if not isinstance(functions, list):
        raise refused("'functions' must be an array", "functions", "invalid_type")
    if values.get("tools") or values.get("tool_choice"):
        raise refused("'functions' is the older name of 'tools': give one", "functions")
    chat = {key: value for key, value in values.items() if key not in ("functions", "function_call")}
    chat["tools"] = [{"type": "function", "function": one} for one in functions]
    chat["tool_choice"] = {"type": "function", "function": call} if isinstance(call, dict) else call
    chat["parallel_tool_calls"] = False
    try:
        found = read_chat(chat, service, name)
    except ApiError as error:
        error.message = _old_name(error.message)
        error.param = None if error.param is None else _old_name(error.param)
        raise
    reply = replace(found.reply, functions=True)
    return replace(found, reply=reply, ignored=tuple(map(_old_name, found.ignored)))


def _old_name(text: str) -> str:
    """With the names of the fields that the client sent."""
    named = _TOOL.sub(lambda tool: f"functions[{tool[1]}]" if tool[1] is not None else "functions", text)
    return named.replace("tool_choice.function", "function_call").replace("tool_choice", "function_call")


def _max_tokens(fields: BodyFields) -> int | None:
    """The limit of the answer, by the old or the new name of the field."""
    old, new = read_limit(fields, "max_tokens", 1), read_limit(fields, "max_completion_tokens", 1)
    if old is not None and new is not None and old != new:
        raise refused("'max_tokens' and 'max_completion_tokens' differ: give one", "max_tokens")
    return old if new is None else new


def read_variables(fields: BodyFields) -> dict[str, object]:
    """The switches of a model's template that a client may set; no other variable of it. Raises ApiError."""
    switches = fields.nested("chat_template_kwargs")
    given = SWITCHES["properties"] if switches is not None else ()
    return {key: switches.raw(key) for key in given if switches is not None and switches.raw(key) is not None}


def render_chat(
    messages: Sequence[dict[str, Any]], variables: dict[str, object], service: Service
) -> tuple[int, ...]:
    """The prompt's token ids. Raises ApiError."""
    ids, _ = _prompt(messages, variables, service, (), formed=False)
    return ids


def _prompt(
    messages: Sequence[dict[str, Any]],
    variables: dict[str, object],
    service: Service,
    tools: Sequence[Mapping[str, Any]],
    *,
    goes_on: bool = False,
    formed: bool,
) -> tuple[tuple[int, ...], Thinking]:
    """The prompt's token ids, and how the answer to it may begin with thoughts: not at all where it must have a form,
    which it has from its beginning on. `goes_on`: the answer goes on with the last message. Raises ApiError."""
    told = (*message_texts(messages), *(json.dumps(tool, ensure_ascii=False) for tool in tools))
    check_characters("messages", told, service)
    if service.template is None:
        raise refused(
            "the model has no chat template, so it continues texts and answers no messages: send a text to "
            "/v1/completions, or serve a model that has one (an instruction-tuned model)",
            "messages",
        )
    try:
        text = chat_prompt(
            service.template, messages, tools=tools or None, variables=variables, begun=goes_on
        )
    except UserError as error:
        raise refused(str(error), "messages") from None
    check_characters("messages", [text], service)
    begun = messages[-1]["content"] if goes_on else ""
    thinking = thinking_after(text, service.template.source(tools=bool(tools)), begun)
    if formed:
        text, thinking = (text + NO_THOUGHTS if thinking == "begun" else text), ""
    return encode(text, service, "messages", add_special=False), thinking


def _grammar(
    form: Grammar | None, param: str, tools: AskedTools, calls: CallForm, service: Service
) -> Grammar | None:
    """What the answer must keep to from its beginning on. Where a call is required, the form is that of the text which
    comes after it, in another turn; where one may come, the answer is that or of the form. Raises ApiError."""
    if tools.required:
        return required_call_grammar(tools, calls, service)
    if form is not None and tools.shown:
        return call_or_form_grammar(tools, calls, form, param, service)
    return form


Chat = dict[str, object]
"""The JSON of a chat request."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """How requests of one form become chats. `names`: what they call a chat's fields that they have by another name."""

    form: FormatName
    names: Mapping[str, str]

    def asked(
        self,
        chat: Chat,
        fields: BodyFields,
        service: Service,
        name: str,
        *,
        stream: bool,
        read: Callable[[Chat, Service, str], Asked] = read_chat,
    ) -> Asked:
        """What `chat` asks for, as `read` does, with an answer of that name. `fields`: of the request that it was made
        of. Raises ApiError."""
        names = _pass_constraints(fields, chat, self.names)
        try:
            found = read({"model": service.model().name, **chat}, service, name)
        except ApiError as error:
            for ours, theirs in names.items():
                error.message = error.message.replace(f"'{ours}'", f"'{theirs}'")
                error.param = theirs if error.param == ours else error.param
            raise
        grammar = names.get(found.reply.grammar, found.reply.grammar)
        reply = replace(found.reply, format=self.form, stream=stream, grammar=grammar)
        ignored = (_renamed_place(place, names) for place in found.ignored)
        return replace(found, reply=reply, ignored=tuple(dict.fromkeys((*fields.ignored, *ignored))))


def _renamed_place(place: str, names: Mapping[str, str]) -> str:
    """A place within a field, in the words of the request."""
    ours = max((name for name in names if place.startswith(f"{name}.")), key=len, default="")
    return names[ours] + place.removeprefix(ours) if ours else place


def _pass_constraints(fields: BodyFields, chat: Chat, names: Mapping[str, str]) -> Mapping[str, str]:
    """What a request says of its answer in the words of a chat is never ignored. Returns the names without those of
    fields that the request calls as a chat does. Raises ApiError where it says the same in its own words, too, and not
    the same."""
    for key in CONSTRAINTS:
        value = fields.raw(key)
        if value is None:
            continue
        theirs = names.get(key, key)
        if chat.get(key, value) != value:
            why = f"'{key}' and '{theirs}' both say what the answer must be, and not the same: give one"
            raise refused(why, key)
        if key not in chat:
            names = {ours: own for ours, own in names.items() if ours.partition(".")[0] != key}
        chat[key] = value
    return names


def copied(fields: BodyFields, chat: Chat, names: Mapping[str, str]) -> None:
    """Those of the fields that are given go into `chat`, which has another name for each."""
    for theirs, ours in names.items():
        value = fields.raw(theirs)
        if value is not None:
            chat[ours] = value
