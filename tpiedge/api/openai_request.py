"""Requests of OpenAI's /v1/chat/completions and /v1/completions: every field is checked before any work is done for it.
Requests of other APIs become these: what one of them can do, the others can."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from tpiedge.api import asked as a
from tpiedge.api import fields as t
from tpiedge.api.answer_grammar import CONSTRAINTS, FORM, read_grammar
from tpiedge.api.asked import MAX_CHOICES, Asked, Choice, FormatName
from tpiedge.api.call_grammars import (
    begun_call_grammar,
    call_or_form_grammar,
    calls_are_known_by_tokens,
    required_call_grammar,
)
from tpiedge.api.errors import ApiError, refused
from tpiedge.api.fields import BodyFields
from tpiedge.api.formats import AnswerForm
from tpiedge.api.messages import MESSAGES, message_texts, read_messages
from tpiedge.api.openai_format import OpenAIFormat
from tpiedge.api.service import Service
from tpiedge.api.tools import TOOLS, read_tools, text_names, tool_form
from tpiedge.api.transcript import EchoedPrompt
from tpiedge.engine.sampling import MAX_LOGPROBS
from tpiedge.errors import UserError
from tpiedge.model.chat_prompt import chat_prompt
from tpiedge.model.speech import NO_THOUGHTS, Thinking, thinking_after
from tpiedge.model.tokenizer import unfinished

_THINKS: Final = t.flag("Whether a model that can think does.")
_TOOL: Final = re.compile(r"\btools(?:\[(\d*)\])?(?:\.function)?")
SWITCHES: Final = t.optional(
    t.body(enable_thinking=_THINKS, thinking=_THINKS), "Switches of the chat template."
)
_CHAT: Final = t.body(
    "model",
    "messages",
    **a.ANSWERING,
    **FORM,
    **TOOLS,
    functions=t.array(
        {"type": "object"}, "The older name of tools, of which at most one is called.", a.MAX_TOOLS
    ),
    function_call=t.any_of(
        {"enum": ["none", "auto", None]},
        t.body("name", name=t.TEXT),
        description="The older name of tool_choice.",
    ),
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


def _read_chat(fields: BodyFields, service: Service, name: str) -> Asked:
    """The answer goes on with the last message where `continue_final_message` says so, in the words of vLLM."""
    if fields.get("functions") or fields.get("function_call") not in (None, "none", "auto"):
        return _read_functions(fields.values, service, name)
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
    form, form_param = read_grammar(fields, service)
    goes_on, ignore_eos = fields.get("continue_final_message", False), fields.get("ignore_eos", False)
    variables, messages = read_variables(fields), read_messages(fields, goes_on=goes_on)
    if goes_on and messages[-1]["role"] != "assistant":
        raise fields.wrong("continue_final_message", "needs a last message of the assistant")
    calls, grammar = tool_form(tools, service), form
    # Where a call is required, the form is that of the text which comes after it, in another turn; where one may come,
    # the answer is that or of the form.
    if tools.required:
        grammar = required_call_grammar(tools, calls, service)
    elif form is not None and tools.shown:
        grammar = call_or_form_grammar(tools, calls, form, form_param, service)
    ids, thinking = rendered(
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
        texts=tuple(map(text_names, tools.schemas)) if calls == "qwen-xml" else (),
        several=tools.several,
        required=bool(tools.required),
        thinking=thinking,
        grammar=form_param if form_param and not tools.required else "tools" if grammar else "",
        goes_on=goes_on,
    )
    limit = a.answer_limit("messages", maximum if newer is None else newer, len(ids), service)
    request = a.request_of(ids, limit, sampling, service, ignore_eos=ignore_eos, grammar=grammar)
    choices = a.named_choices([Choice(request)], fields.get("n") or 1, name)
    return Asked(choices, reply, fields.ignored)


def _read_functions(values: Mapping[str, object], service: Service, name: str) -> Asked:
    """A request that names functions, as OpenAI's clients did before there were tools, of which at most one is
    called."""
    functions, call = values.get("functions") or [], values.get("function_call")
    if values.get("tools") or values.get("tool_choice"):
        raise refused("'functions' is the older name of 'tools': give one", "functions")
    chat = {key: value for key, value in values.items() if key not in ("functions", "function_call")}
    chat["tools"] = [{"type": "function", "function": one} for one in functions]  # type: ignore[attr-defined]
    chat["tool_choice"] = {"type": "function", "function": call} if isinstance(call, dict) else call
    chat["parallel_tool_calls"] = False

    def old_name(text: str) -> str:
        """Puts in the names of the fields that the client sent."""
        named = _TOOL.sub(lambda tool: f"functions[{tool[1]}]" if tool[1] is not None else "functions", text)
        return named.replace("tool_choice.function", "function_call").replace("tool_choice", "function_call")

    try:
        found = CHAT.asked(chat, service, name)
    except ApiError as error:
        error.message = old_name(error.message)
        error.param = None if error.param is None else old_name(error.param)
        raise
    reply = replace(found.reply, functions=True)
    return replace(found, reply=reply, ignored=tuple(map(old_name, found.ignored)))


def read_variables(fields: BodyFields) -> dict[str, object]:
    """The switches of a model's template that a client may set; no other variable of it. Raises ApiError."""
    switches = fields.nested("chat_template_kwargs")
    return {key: value for key in SWITCHES["properties"] if (value := switches.get(key)) is not None}


def rendered(
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
    a.check_characters("messages", told, service)
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
    begun = messages[-1]["content"] if goes_on else ""
    thinking = thinking_after(text, service.template.source(tools=bool(tools)), begun)
    if formed:
        text, thinking = (text + NO_THOUGHTS if thinking == "begun" else text), ""
    return a.encode(text, service, "messages", add_special=False), thinking


Chat = dict[str, object]
"""The JSON of a chat request."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """How requests of one form become chats. `names`: what they call a chat's fields that they have by another name."""

    form: FormatName
    names: Mapping[str, str]

    def asked(
        self, chat: Chat, fields: BodyFields, service: Service, name: str, of: AnswerForm | None = None
    ) -> Asked:
        """Reads `chat` as a request of OpenAI's form `of`, else as a chat. `fields` are those of the request that it
        was made of. What that says of its answer in the words of a chat is never ignored. Raises ApiError where it says
        something else of it in its own words."""
        names = dict(self.names)
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
            found = (of or CHAT).asked({"model": service.model().name, **chat}, service, name)
        except ApiError as error:
            for ours, theirs in names.items():
                error.message = error.message.replace(f"'{ours}'", f"'{theirs}'")
                error.param = theirs if error.param == ours else error.param
            raise
        grammar = names.get(found.reply.grammar, found.reply.grammar)
        ignored = dict.fromkeys(fields.ignored)
        for place in found.ignored:  # in the words of the request
            ours = max((one for one in names if place.startswith(f"{one}.")), key=len, default="")
            ignored[names[ours] + place.removeprefix(ours) if ours else place] = None
        stream = bool(chat.get("stream"))
        reply = replace(found.reply, format=self.form, stream=stream, grammar=grammar)
        return replace(found, reply=reply, ignored=tuple(ignored))


def copied(fields: BodyFields, chat: Chat, *same: str, **renamed: str) -> None:
    """Copies the fields that are given into `chat`, which has some of them by another name."""
    for theirs, ours in {**{key: key for key in same}, **renamed}.items():
        value = fields.get(theirs)
        if value is not None:
            chat[ours] = value


def _read_completion(fields: BodyFields, service: Service, name: str) -> Asked:
    logprobs, maximum = fields.get("logprobs"), a.read_limit(fields, "max_tokens", 0)
    reply = a.read_reply(fields, "completion", logprobs)
    sampling = a.read_sampling(fields, service, logprobs)
    count, echo, ignore_eos = fields.get("n") or 1, fields.get("echo", False), fields.get("ignore_eos", False)
    if fields.get("best_of") not in (None, count):
        raise fields.wrong("best_of", "is not supported", "unsupported_parameter")
    grammar, param = read_grammar(fields, service)
    prompts = a.read_prompts(fields, "prompt")
    if count * len(prompts) > MAX_CHOICES:
        raise refused(
            f"{len(prompts)} prompts with {count} answers each: at most {MAX_CHOICES} in all", "prompt"
        )
    choices = []
    for number, prompt in enumerate(prompts):
        ids = a.read_token_ids(prompt, "prompt", service)
        limit = a.answer_limit("prompt", _TOKENS if maximum is None else maximum, len(ids), service)
        request = a.request_of(ids, limit, sampling, service, ignore_eos=ignore_eos, grammar=grammar)
        scored = echo and logprobs is not None
        echoed = _echo(prompt, ids, service) if echo else None
        choices.append(Choice(replace(request, prompt_scores=scored), number, echoed))
    reply = replace(reply, grammar=param, goes_on=True)
    return Asked(a.named_choices(choices, count, name), reply, fields.ignored)


def _echo(prompt: str | list[object], ids: tuple[int, ...], service: Service) -> EchoedPrompt:
    tokenizer, text = service.tokenizer, ""
    if isinstance(prompt, str):
        text = prompt
    elif tokenizer is not None:
        whole = ids[: len(ids) - unfinished(tokenizer, ids)]  # the answer has the rest of a character
        text = tokenizer.decode(whole, skip_special=False)
    return EchoedPrompt.of(text, ids, tokenizer)


CHAT: Final = AnswerForm(
    "/v1/chat/completions", "Answer a chat", "chatcmpl", _CHAT, _read_chat, OpenAIFormat, "chat.completion"
)
COMPLETION: Final = AnswerForm(
    "/v1/completions",
    "Go on with a text",
    "cmpl",
    _COMPLETION,
    _read_completion,
    OpenAIFormat,
    "text_completion",
)
FORMS: Final[Mapping[FormatName, AnswerForm]] = {"completion": COMPLETION, "chat": CHAT}
