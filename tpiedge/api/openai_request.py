"""Reads requests of OpenAI's /v1/chat/completions and /v1/completions. Requests of other APIs become these."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from tpiedge.api import asked as a
from tpiedge.api import fields as t
from tpiedge.api.answer_grammar import CONSTRAINTS, FORM, read_grammar
from tpiedge.api.asked import MAX_CHOICES, Asked, Choice, FormatName
from tpiedge.api.call_grammars import GrammarTooLarge, begun_call_grammar, call_or_form_grammar
from tpiedge.api.errors import ApiError, refused
from tpiedge.api.fields import BodyFields
from tpiedge.api.formats import AnswerForm, Json
from tpiedge.api.messages import MESSAGES, message_texts, read_messages
from tpiedge.api.openai_format import OpenAIFormat
from tpiedge.api.service import Service
from tpiedge.api.tools import TOOLS, read_tools, tool_form
from tpiedge.api.transcript import EchoedPrompt
from tpiedge.engine.sampling import MAX_LOGPROBS
from tpiedge.errors import UserError
from tpiedge.model.chat_prompt import chat_prompt
from tpiedge.model.speech import NO_THOUGHTS, SpeechForm, Thinking, thinking_after

_THINKS: Final = t.flag("Whether a model that can think does.")
SWITCHES: Final = t.optional(
    t.body(enable_thinking=_THINKS, thinking=_THINKS), "Switches of the chat template."
)
_CHAT: Final = t.body(
    "model",
    "messages",
    **a.ANSWERING,
    **FORM,
    **TOOLS,
    continue_final_message=t.flag("Whether the answer goes on with the last message, an assistant's."),
    messages=MESSAGES,
    max_tokens=a.LIMIT,
    max_completion_tokens=a.LIMIT,
    logprobs=t.flag("Whether probabilities are told."),
    top_logprobs=a.TOP_LOGPROBS,
    chat_template_kwargs=SWITCHES,
    modalities=t.unsupported(["text"]),
    **dict.fromkeys(("audio", "prediction", "web_search_options"), t.unsupported("none")),
    prompt=t.unsupported(),
)
_TOKENS: Final = 16  # OpenAI's default
Dialect = tuple[FormatName, Mapping[str, str]]
"""A form, and its requests' own names of a chat's fields."""
_COMPLETION: Final = t.body(
    "model",
    "prompt",
    **a.ANSWERING,
    **FORM,
    prompt=a.prompts(MAX_CHOICES, "A text, token ids, or a list of either, which is answered one by one."),
    echo=t.flag("Whether the answer begins with the prompt; its scores come with `logprobs`."),
    max_tokens={**a.LIMIT, "description": f"{a.LIMIT['description']} {_TOKENS} without."},
    logprobs=t.integer(0, MAX_LOGPROBS, "How many of the likeliest tokens are told, beside the drawn one."),
    suffix=t.unsupported(""),
    messages=t.unsupported(),
    best_of=t.integer(1, MAX_CHOICES, "The same as `n`."),
)


def _read_chat(fields: BodyFields, service: Service) -> Asked:
    wanted, top = fields.get("logprobs", False), fields.get("top_logprobs")
    if top is not None and not wanted:
        raise fields.wrong("top_logprobs", "needs 'logprobs': true")
    logprobs = (top or 0) if wanted else None
    reply = a.read_reply(fields, "chat", logprobs)
    maximum = a.read_limit(fields, "max_tokens", 1)  # by its old name, or its new one
    newer = a.read_limit(fields, "max_completion_tokens", 1)
    if maximum is not None and newer not in (None, maximum):
        raise refused("'max_tokens' and 'max_completion_tokens' differ: give one", "max_tokens")
    sampling = a.read_sampling(fields, service, logprobs)
    tools = read_tools(fields)
    older = tools.field == "functions"
    form, form_param = read_grammar(fields, service)
    goes_on = fields.get("continue_final_message", False)
    messages = read_messages(fields, goes_on=goes_on)
    if goes_on and messages[-1]["role"] != "assistant":
        raise fields.wrong("continue_final_message", "needs a last message of the assistant")
    calls = tool_form(tools, service)
    grammar = call_or_form_grammar(tools, calls, form, form_param, service)
    formed = grammar is not None
    ids, thinking = rendered(fields, messages, service, tools.shown, goes_on=goes_on, formed=formed)
    if grammar is None and not fields.get("ignore_eos", False):
        try:
            grammar = begun_call_grammar(tools, calls, thinking, service)
        except GrammarTooLarge:
            fields.leave_out(tools.field, "parameters" if older else "function.parameters")
    speech = SpeechForm(calls, tools.read_as(calls), tools.several, thinking, bool(tools.required))
    param = form_param if form_param and not tools.required else "tools" if grammar else ""
    reply = replace(reply, speech=speech, grammar=param, functions=older, goes_on=goes_on)
    limit = a.answer_limit("messages", maximum if newer is None else newer, len(ids), service)
    request = a.request_of(ids, limit, sampling, fields, grammar, service)
    return Asked((Choice(request),), reply, fields.ignored, fields.get("n") or 1)


def rendered(
    fields: BodyFields,
    messages: Sequence[Json],
    service: Service,
    tools: Sequence[Mapping[str, Any]] = (),
    *,
    goes_on: bool = False,
    formed: bool = False,
) -> tuple[tuple[int, ...], Thinking]:
    """Returns the prompt's token ids, and how the answer may begin with thoughts. `goes_on`: it continues the last
    message; `formed`: a grammar holds from its beginning, so there are no thoughts. Raises ApiError."""
    told = (*message_texts(messages), *(json.dumps(tool, ensure_ascii=False) for tool in tools))
    a.check_characters("messages", told, service)
    template = service.template
    if template is None:
        raise refused(
            "the model has no chat template, so it continues texts and answers no messages: send a text to "
            "/v1/completions, or serve a model that has one (an instruction-tuned model)",
            "messages",
        )
    variables: Json = {}
    copied(fields.nested("chat_template_kwargs"), variables, *SWITCHES["properties"])
    try:
        text = chat_prompt(template, messages, tools=tools or None, variables=variables, begun=goes_on)
    except UserError as error:
        raise refused(str(error), "messages") from None
    begun = messages[-1]["content"] if goes_on else ""
    thinking = thinking_after(text, template.source(tools=bool(tools)), begun)
    if formed:
        text, thinking = (text + NO_THOUGHTS if thinking == "begun" else text), ""
    return a.encode(text, service, "messages", add_special=False), thinking


def asked_by_chat(chat: Json, fields: BodyFields, service: Service, dialect: Dialect) -> Asked:
    """Reads `chat`, which was made of the request `fields`, as a chat, or as a completion if it has a prompt.
    CONSTRAINTS of the request hold, too. Raises ApiError."""
    form, names = dialect
    for key in CONSTRAINTS:
        value = fields.get(key)
        if value is None:
            continue
        if chat.get(key, value) != value:
            why = f"and '{names.get(key, key)}' both say what the answer must be, and not the same: give one"
            raise fields.wrong(key, why)
        if key not in chat:
            names = {ours: own for ours, own in names.items() if ours.partition(".")[0] != key}
        chat[key] = value
    try:
        read = COMPLETION if "prompt" in chat else CHAT
        found = read.asked({"model": service.model().name, **chat}, service)
    except ApiError as error:
        for ours, theirs in names.items():
            error.message = error.message.replace(f"'{ours}'", f"'{theirs}'")
            error.param = theirs if error.param == ours else error.param
        raise
    grammar = names.get(found.reply.grammar, found.reply.grammar)
    ignored = dict.fromkeys(fields.ignored)
    for place in found.ignored:
        ours = max((one for one in names if place.startswith(f"{one}.")), key=len, default="")
        ignored[names[ours] + place.removeprefix(ours) if ours else place] = None
    reply = replace(found.reply, format=form, stream=bool(chat.get("stream")), grammar=grammar)
    return replace(found, reply=reply, ignored=tuple(ignored))


def function_tool(tool: BodyFields, name: str, parameters: str = "parameters") -> Json:
    function: Json = {"name": name}
    copied(tool, function, "description", "strict", **{parameters: "parameters"})
    return {"type": "function", "function": function}


def function_call(identity: str | None, name: str, arguments: str) -> Json:
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}


def copied(fields: BodyFields, chat: Json, *same: str, **renamed: str) -> None:
    """Copies the fields that are given into `chat`, which has some of them by another name."""
    for theirs, ours in {**{key: key for key in same}, **renamed}.items():
        value = fields.get(theirs)
        if value is not None:
            chat[ours] = value


def _read_text(fields: BodyFields, service: Service) -> Asked:
    logprobs, maximum = fields.get("logprobs"), a.read_limit(fields, "max_tokens", 0)
    reply = a.read_reply(fields, "completion", logprobs)
    sampling = a.read_sampling(fields, service, logprobs)
    count, echo = fields.get("n") or 1, fields.get("echo", False)
    if fields.get("best_of") not in (None, count):
        raise fields.wrong("best_of", "is not supported", "unsupported_parameter")
    grammar, param = read_grammar(fields, service)
    prompts = a.read_prompts(fields, "prompt")
    if count * len(prompts) > MAX_CHOICES:
        why = f"{len(prompts)} prompts with {count} answers each: at most {MAX_CHOICES} in all"
        raise refused(why, "prompt")
    choices = []
    for number, prompt in enumerate(prompts):
        ids = a.read_token_ids(prompt, "prompt", service)
        limit = a.answer_limit("prompt", _TOKENS if maximum is None else maximum, len(ids), service)
        request = a.request_of(ids, limit, sampling, fields, grammar, service)
        scored = echo and logprobs is not None
        echoed = EchoedPrompt.of(prompt, ids, service.tokenizer) if echo else None
        choices.append(Choice(replace(request, prompt_scores=scored), number, echoed))
    reply = replace(reply, grammar=param, goes_on=True)
    return Asked(tuple(choices), reply, fields.ignored, count)


CHAT: Final = AnswerForm(
    "/v1/chat/completions", "Answer a chat", "chatcmpl", _CHAT, _read_chat, OpenAIFormat, "chat.completion"
)
COMPLETION: Final = AnswerForm(
    "/v1/completions", "Go on with a text", "cmpl", _COMPLETION, _read_text, OpenAIFormat, "text_completion"
)
