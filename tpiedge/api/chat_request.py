"""Requests of /v1/chat/completions: every field is checked before any work is done for it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tpiedge.api.answer_grammar import read_grammar
from tpiedge.api.asked import (
    MAX_CHOICES,
    Asked,
    Choice,
    answer_limit,
    check_model,
    named_choices,
    read_limit,
    read_reply,
    request_of,
    rest_of,
)
from tpiedge.api.call_grammars import (
    begun_call_grammar,
    call_or_form_grammar,
    calls_are_known_by_tokens,
    required_call_grammar,
)
from tpiedge.api.encoding import check_characters, encode
from tpiedge.api.errors import refused
from tpiedge.api.fields import BodyFields
from tpiedge.api.messages import message_texts, read_messages
from tpiedge.api.old_functions import has_functions, read_functions
from tpiedge.api.sampling import read_sampling
from tpiedge.api.service import Service
from tpiedge.api.tools import AskedTools, read_tools, text_parameters, tool_form
from tpiedge.engine.sampling import MAX_LOGPROBS
from tpiedge.errors import UserError
from tpiedge.model.call_forms import CallForm
from tpiedge.model.chat_prompt import chat_prompt
from tpiedge.model.speech import NO_THOUGHTS, Thinking, thinking_after
from tpiedge.wire.requests import Grammar

_SWITCHES = ("enable_thinking", "thinking")


def read_chat(values: dict[str, object], service: Service, name: str) -> Asked:
    """`name`: the answer's. The answer goes on with the last message where `continue_final_message` says so, in the
    words of vLLM. Raises ApiError."""
    if has_functions(values):
        return read_functions(values, service, name, read_chat)
    fields = BodyFields(values)
    check_model(fields, service)
    top = fields.integer("top_logprobs", None, 0, MAX_LOGPROBS)
    wanted = fields.flag("logprobs")
    if top is not None and not wanted:
        raise refused("'top_logprobs' needs 'logprobs': true", "top_logprobs")
    logprobs = (top or 0) if wanted else None
    reply = read_reply(fields, "chat", logprobs)
    maximum = _max_tokens(fields)
    sampling = read_sampling(fields, service.vocab_size, logprobs, service.usual_sampling)
    count = fields.integer("n", 1, 1, MAX_CHOICES) or 1
    _only_text(fields)
    tools = read_tools(fields)
    form, form_param = read_grammar(fields, service)
    variables = read_variables(fields)
    goes_on = fields.flag("continue_final_message")
    messages = read_messages(fields, goes_on=goes_on)
    if goes_on and messages[-1]["role"] != "assistant":
        why = "'continue_final_message' needs a last message of the assistant"
        raise refused(why, "continue_final_message")
    ignore_eos = rest_of(fields)
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
    return Asked(named_choices([Choice(request)], count, name), reply, fields.ignored)


def _max_tokens(fields: BodyFields) -> int | None:
    """The limit of the answer, by the old or the new name of the field."""
    old = read_limit(fields, "max_tokens", None, 1)
    new = read_limit(fields, "max_completion_tokens", None, 1)
    if old is not None and new is not None and old != new:
        raise refused("'max_tokens' and 'max_completion_tokens' differ: give one", "max_tokens")
    return old if new is None else new


def _only_text(fields: BodyFields) -> None:
    fields.unsupported(("audio", "prediction", "web_search_options"), "none")
    for key in ("functions", "function_call"):  # which name nothing here
        fields.raw(key)
    fields.unsupported(("prompt",))
    fields.unsupported(("modalities",), ["text"])


def read_variables(fields: BodyFields) -> dict[str, object]:
    """The switches of a model's template that a client may set; no other variable of it. Raises ApiError."""
    switches = fields.nested("chat_template_kwargs")
    if switches is None:
        return {}
    variables: dict[str, object] = {
        key: switches.flag(key) for key in _SWITCHES if switches.raw(key) is not None
    }
    switches.overlook()
    return variables


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
