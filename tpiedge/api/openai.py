"""Reads OpenAI's /v1/chat/completions and /v1/completions, and writes their answers. Requests of other APIs are
converted to these."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any, Final

from tpiedge.api import fields as t
from tpiedge.api import parsed as p
from tpiedge.api.answer_grammar import CONSTRAINTS, FORM, read_grammar
from tpiedge.api.call_grammars import begun_call_grammar, call_or_form_grammar
from tpiedge.api.errors import ApiError, refused
from tpiedge.api.formats import AnswerForm, AnswerFormat, Json, event
from tpiedge.api.grammar_schema import SchemaTooLarge
from tpiedge.api.messages import MESSAGES, message_texts, read_messages
from tpiedge.api.tools import TOOLS, read_tools, tool_form
from tpiedge.api.transcript import EchoedPrompt, TextPiece, call_id, joined
from tpiedge.engine.sampling import MAX_LOGPROBS
from tpiedge.errors import UserError
from tpiedge.local.served_models import ServedModel
from tpiedge.model.call_reader import CallArguments, CallBegun, CallEnded, call_form
from tpiedge.model.chat_prompt import chat_prompt
from tpiedge.model.output import (
    OutputForm,
    OutputPart,
    OutputText,
    Thinking,
    end_of_reasoning,
    thinking_after,
)
from tpiedge.wire.control import Token

_THINKS: Final = t.flag("Whether a reasoning model reasons; else its template decides.", None)
_EFFORT: Final = "reasoning_effort"
EFFORTS: Final = ("low", "medium", "high")
EFFORT: Final = t.word(
    "none", "minimal", *EFFORTS, "xhigh", description="How much a model reasons, if its template asks."
)
SWITCHES: Final = t.optional(
    t.body(enable_thinking=_THINKS, thinking=_THINKS, reasoning_effort=EFFORT),
    "Variables of the chat template.",
)
_CHAT: Final = t.body(
    "messages",
    **p.ANSWERING,
    **FORM,
    **TOOLS,
    continue_final_message=t.flag("Whether the answer continues the last message, an assistant's."),
    messages=MESSAGES,
    **dict.fromkeys(("max_tokens", "max_completion_tokens"), p.LIMIT),
    logprobs=t.flag("Whether to report log probabilities."),
    top_logprobs=p.TOP_LOGPROBS,
    chat_template_kwargs=SWITCHES,
    reasoning_effort=EFFORT,
    modalities=t.unsupported(["text"]),
    **dict.fromkeys(("audio", "prediction", "web_search_options"), t.unsupported("none")),
    prompt=t.unsupported(),
)
_TOKENS: Final = 16  # OpenAI's default
_COMPLETION: Final = t.body(
    "prompt",
    **p.ANSWERING,
    **FORM,
    prompt=p.prompts(p.MAX_CHOICES, "A text, token ids, or a list of either, which is answered one by one."),
    echo=t.flag("Whether the answer begins with the prompt; its scores come with `logprobs`."),
    max_tokens=p.LIMIT | {"default": _TOKENS},
    logprobs=t.integer(0, MAX_LOGPROBS, "Number of likeliest tokens to report, beside the drawn one."),
    suffix=t.unsupported(""),
    messages=t.unsupported(),
    best_of=t.integer(1, p.MAX_CHOICES, "The same as `n`."),
)


def _read_chat(fields: t.BodyFields, model: ServedModel) -> p.ParsedRequest:
    wanted, top = fields.get("logprobs", False), fields.get("top_logprobs")
    if top is not None and not wanted:
        raise fields.wrong("top_logprobs", "needs 'logprobs': true")
    logprobs = (top or 0) if wanted else None
    reply = p.read_reply(fields, "chat", logprobs)
    maximum = p.read_limit(fields, "max_tokens", 1)  # the older name of max_completion_tokens
    newer = p.read_limit(fields, "max_completion_tokens", 1)
    if maximum is not None and newer not in (None, maximum):
        raise refused("'max_tokens' and 'max_completion_tokens' differ: give one", "max_tokens")
    sampling = p.read_sampling(fields, model, logprobs)
    tools = read_tools(fields)
    older = tools.field == "functions"
    form, form_param = read_grammar(fields, model)
    goes_on = fields.get("continue_final_message", False)
    messages = read_messages(fields, goes_on=goes_on)
    if goes_on and messages[-1]["role"] != "assistant":
        raise fields.wrong("continue_final_message", "needs a last message of the assistant")
    calls = tool_form(tools, model)
    grammar = call_or_form_grammar(tools, calls, form, form_param, model)
    formed = grammar is not None
    effort = fields.get(_EFFORT)
    ids, thinking = rendered(
        fields, messages, model, tools.shown, goes_on=goes_on, formed=formed, effort=effort
    )
    if grammar is None and not fields.get("ignore_eos", False):
        try:
            grammar = begun_call_grammar(tools, calls, thinking, model)
        except SchemaTooLarge:
            fields.ignore_within(tools.field, "parameters" if older else "function.parameters")
    speech = OutputForm(calls, tools.read_as(calls), tools.several, thinking, bool(tools.required))
    param = form_param if form_param and not tools.required else "tools" if grammar else ""
    reply = replace(reply, speech=speech, grammar=param, functions=older, goes_on=goes_on)
    limit = p.answer_limit("messages", maximum if newer is None else newer, len(ids), model)
    request = p.request_of(ids, limit, sampling, fields, grammar, model)
    request = replace(request, preamble_tokens=_preamble_tokens(ids, fields, messages, model, tools.shown))
    return p.ParsedRequest((p.Choice(request),), reply, fields.ignored, fields.get("n") or 1)


def rendered(
    fields: t.BodyFields,
    messages: Sequence[Json],
    model: ServedModel,
    tools: Sequence[Mapping[str, Any]] = (),
    *,
    goes_on: bool = False,
    formed: bool = False,
    effort: str | None = None,
) -> tuple[tuple[int, ...], Thinking]:
    """Returns (the prompt's token ids, how reasoning may begin). `formed`: a grammar restricts the answer. `goes_on`:
    the answer continues the last message. `effort`: the field `reasoning_effort`. Raises ApiError."""
    told = (*message_texts(messages), *(json.dumps(tool, ensure_ascii=False) for tool in tools))
    p.check_characters("messages", told, model)
    template = model.template
    if template is None:
        raise refused(
            "the model has no chat template, so it continues texts and answers no messages: choose another "
            "model (an instruction-tuned one), import it with --chat-template, or send a text to /v1/completions",
            "messages",
        )
    source = template.source(tools=bool(tools))
    variables = _variables(fields, effort, source, model.name)
    try:
        text = chat_prompt(template, messages, tools=tools or None, variables=variables, begun=goes_on)
    except UserError as error:
        raise refused(str(error), "messages") from None
    begun = messages[-1]["content"] if goes_on else ""
    thinking = thinking_after(text, source, begun)
    if formed:
        text, thinking = text + end_of_reasoning(thinking, tools=bool(tools)), ""
    return p.encode(text, model, "messages", add_special=False), thinking


def _variables(fields: t.BodyFields, effort: str | None, template: str, model: str) -> Json:
    variables = given(fields.nested("chat_template_kwargs"), *SWITCHES["properties"])
    if effort is not None and _EFFORT in template:
        variables[_EFFORT] = effort
    elif effort is not None:
        fields.ignore(_EFFORT)
    if call_form(template) == "harmony" and variables.get(_EFFORT, EFFORTS[0]) not in EFFORTS:
        raise refused(f"'{_EFFORT}' of {model!r} must be one of {', '.join(EFFORTS)}", _EFFORT)
    return variables


def _preamble_tokens(
    ids: Sequence[int],
    fields: t.BodyFields,
    messages: Sequence[Json],
    model: ServedModel,
    tools: Sequence[Mapping[str, Any]],
) -> int:
    """Returns how many first tokens of a chat's prompt depend on system prompt and tools alone."""
    systems = list(takewhile(lambda one: one["role"] == "system", messages))
    if not (systems or tools):
        return 0
    said = next(iter(message_texts(messages[len(systems) :])), "")
    other = {"role": "user", "content": "1" if said.lstrip().startswith("0") else "0"}
    try:
        other_ids, _ = rendered(fields, [*systems, other], model, tools, effort=fields.get(_EFFORT))
    except ApiError:  # the template may refuse a chat that differs from the client's
        return 0
    alike = takewhile(lambda pair: pair[0] == pair[1], zip(ids, other_ids, strict=False))
    return sum(1 for _ in alike)


def parse_as_chat(
    chat: Json, fields: t.BodyFields, model: ServedModel, form: p.FormatName, names: Mapping[str, str]
) -> p.ParsedRequest:
    """Parses `chat`, made from `fields`. `names` maps field names in `chat` to the client's names. Raises ApiError."""
    for key, value in given(fields, *CONSTRAINTS).items():
        if chat.get(key, value) != value:
            why = f"and '{names.get(key, key)}' constrain the answer differently: give one"
            raise fields.wrong(key, why)
        if key not in chat:
            names = {ours: own for ours, own in names.items() if ours.partition(".")[0] != key}
        chat[key] = value
    chat, read = {"model": model.name, **chat}, COMPLETION if "prompt" in chat else CHAT
    try:
        parsed = read.read(t.BodyFields(chat, read.table), model)
    except ApiError as error:
        for ours, theirs in names.items():
            error.message = error.message.replace(f"'{ours}'", f"'{theirs}'")
            error.param = theirs if error.param == ours else error.param
        raise
    grammar = names.get(parsed.reply.grammar, parsed.reply.grammar)
    ignored = dict.fromkeys(fields.ignored)
    for place in parsed.ignored:
        ours = max((one for one in names if f"{place}.".startswith(f"{one}.")), key=len, default="")
        ignored[names[ours] + place.removeprefix(ours) if ours else place] = None
    reply = replace(parsed.reply, format=form, grammar=grammar)
    return replace(parsed, reply=reply, ignored=tuple(ignored))


def function_tool(tool: t.BodyFields, name: str, parameters: str = "parameters") -> Json:
    function = given(tool, "description", "strict", **{parameters: "parameters"})
    return {"type": "function", "function": {"name": name, **function}}


def function_call(identity: str | None, name: str, arguments: str) -> Json:
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}


def given(fields: t.BodyFields, *same: str, **renamed: str) -> Json:
    """Returns the fields `same` and `renamed` that the request has. `renamed` maps their names to names in the
    result."""
    names = {**{key: key for key in same}, **renamed}
    return {ours: fields.get(theirs) for theirs, ours in names.items() if fields.get(theirs) is not None}


def _read_text(fields: t.BodyFields, model: ServedModel) -> p.ParsedRequest:
    logprobs, maximum = fields.get("logprobs"), p.read_limit(fields, "max_tokens", 0)
    reply = p.read_reply(fields, "completion", logprobs)
    sampling = p.read_sampling(fields, model, logprobs)
    count, echo = fields.get("n") or 1, fields.get("echo", False)
    if fields.get("best_of") not in (None, count):
        raise fields.wrong("best_of", "is not supported", "unsupported_parameter")
    grammar, param = read_grammar(fields, model)
    prompts = p.read_prompts(fields, "prompt")
    if count * len(prompts) > p.MAX_CHOICES:
        why = f"{len(prompts)} prompts with {count} answers each: at most {p.MAX_CHOICES} in all"
        raise refused(why, "prompt")
    choices = []
    for number, prompt in enumerate(prompts):
        ids = p.read_token_ids(prompt, "prompt", model)
        limit = p.answer_limit("prompt", _TOKENS if maximum is None else maximum, len(ids), model)
        request = p.request_of(ids, limit, sampling, fields, grammar, model)
        request = replace(request, prompt_scores=echo and logprobs is not None)
        echoed = EchoedPrompt.of(prompt, ids, model.tokenizer) if echo else None
        choices.append(p.Choice(request, number, echoed))
    reply = replace(reply, grammar=param, goes_on=True)
    return p.ParsedRequest(tuple(choices), reply, fields.ignored, count)


class OpenAIFormat(AnswerFormat):
    @property
    def _chat(self) -> bool:
        return self.reply.format == "chat"

    def opening(self) -> Sequence[bytes]:
        shown: Json = {"delta": {"role": "assistant", "content": ""}}
        choices = range(len(self.parsers) if self._chat else 0)
        return [self._chunk(self._choice(choice, shown, None)) for choice in choices]

    def frames(self, choice: int, piece: TextPiece) -> Sequence[bytes]:
        if not self._chat:
            return [self._chunk(self._choice(choice, {"text": piece.text}, piece, piece.last))]
        parts = self.parsers[choice].feed(piece.text, piece.last)
        deltas = [self._delta(choice, one) for one in parts if not isinstance(one, CallEnded)]
        told = self.reply.logprobs is not None or self.reply.token_ids
        if not deltas and piece.last is None and not told:
            return ()
        # The first chunk has the tokens, the last one the ending.
        last, shown = self._ending(choice, piece.last), list[Json]()
        for delta in deltas or [{}]:
            shown.append(self._choice(choice, {"delta": delta}, piece))
            piece = TextPiece("", (), ())
        shown[-1]["finish_reason"] = last
        return [self._chunk(one) for one in shown]

    def closing(self) -> Sequence[bytes]:
        usage = [self._chunk(usage=self._usage())] if self.reply.include_usage else []
        return [*usage, b"data: [DONE]\n\n"]

    def whole(self, pieces: Sequence[Sequence[TextPiece]]) -> Json:
        choices: list[Json] = []
        for number, parts in enumerate(pieces):
            text, last = "".join(piece.text for piece in parts), parts[-1].last
            tokens = tuple(token for piece in parts for token in piece.tokens)
            offsets = tuple(offset for piece in parts for offset in piece.offsets)
            shown: Json = {"text": text}
            if self._chat:
                shown = {"message": self._message(number, self.parsers[number].feed(text, last))}
                last = self._ending(number, last)
            choices.append(self._choice(number, shown, TextPiece(text, tokens, offsets), last))
        return self._object(choices) | {"usage": self._usage()}

    def failure(self, error: ApiError) -> Json:
        return super().failure(error) | {"tokens": sum(one.count for one in self.transcripts)}

    def _delta(self, choice: int, part: OutputText | CallBegun | CallArguments) -> Json:
        match part:
            case OutputText(text=text, reasoning=reasoning):
                return {"reasoning_content" if reasoning else "content": text}
            case CallBegun(index=index, name=name):
                call = function_call(call_id(self.accepted.name, choice, index), name, "")
            case CallArguments(text=text):
                call = {"function": {"arguments": text}}
        if self.reply.functions:
            return {"function_call": call["function"]}
        return {"tool_calls": [{"index": part.index} | call]}

    def _message(self, choice: int, parts: Sequence[OutputPart]) -> Json:
        name, ended = self.accepted.name, [one for one in parts if isinstance(one, CallEnded)]
        calls = [function_call(call_id(name, choice, one.index), one.name, one.arguments) for one in ended]
        content = joined(parts, reasoning=False)
        message: Json = {"role": "assistant", "content": content or (None if calls else ""), "refusal": None}
        if self.reply.speech.thinking:
            message["reasoning_content"] = joined(parts, reasoning=True) or None
        if calls and self.reply.functions:
            message["function_call"] = calls[0]["function"]
        elif calls:
            message["tool_calls"] = calls
        return message

    def _ending(self, choice: int, last: str | None) -> str | None:
        last = self.parsers[choice].ending(last)
        return "function_call" if last == "tool_calls" and self.reply.functions else last

    def _chunk(self, *choices: Json, usage: Json | None = None) -> bytes:
        more: Json = {"usage": usage} if self.reply.include_usage else {}
        return event(self._object(choices, ".chunk") | more)

    def _object(self, choices: Sequence[Json], part: str = "") -> Json:
        kind, about = f"chat.completion{part}" if self._chat else "text_completion", self.accepted
        named: Json = {"id": about.name, "object": kind, "created": about.created, "model": about.model}
        return named | {"choices": choices}

    def _choice(self, number: int, shown: Json, piece: TextPiece | None, last: str | None = None) -> Json:
        choice: Json = {"index": number, **shown, "logprobs": None, "finish_reason": last}
        if piece is not None and self._chat and self.reply.logprobs is not None:
            choice["logprobs"] = {"content": self.scores.written(piece.tokens), "refusal": None}
        elif piece is not None and self.reply.logprobs is not None:
            choice["logprobs"] = {
                "tokens": [self.scores.text(token.token) for token in piece.tokens],
                "token_logprobs": [self.scores.own(token) for token in piece.tokens],
                "top_logprobs": [self._top(one) for one in piece.tokens] if self.reply.logprobs else None,
                "text_offset": list(piece.offsets),
            }
        if piece is not None and self.reply.token_ids:
            choice["token_ids"] = [token.token for token in piece.tokens]
        return choice

    def _usage(self) -> Json:
        """Returns counts of steps, tokens and pauses. Several answers share their prompt's tokens."""
        transcripts, prompt = self.transcripts, self.prompt_tokens
        told = sum(one.count for one in transcripts)
        usage: Json = {"prompt_tokens": prompt, "completion_tokens": told, "total_tokens": prompt + told}
        ends = [one.finished for one in transcripts if one.finished is not None]
        # Steps are unknown if tokens came from several epochs.
        if len(ends) == len(transcripts) and all(end.steps or not end.tokens for end in ends):
            cached = sum(end.cached_tokens for end in ends[:: self.accepted.each])
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
            steps = sum(end.steps for end in ends)
            if steps:
                usage["tokens_per_step"] = round(sum(end.tokens for end in ends) / steps, 2)
        if pauses := sum(one.pauses for one in transcripts):
            paused_s = sum(one.paused_s for one in transcripts)
            usage["pauses"] = {"count": pauses, "seconds": round(paused_s, 3)}
        return usage

    def _top(self, token: Token) -> dict[str, float] | None:
        if not token.logprobs:
            return None
        found: dict[str, float] = {}
        for other, score in token.logprobs[: self.reply.logprobs]:
            found.setdefault(self.scores.text(other), score)
        return found


CHAT: Final = AnswerForm(
    "/v1/chat/completions", "Answer a chat", "chatcmpl", _CHAT, _read_chat, OpenAIFormat, "chat.completion"
)
COMPLETION: Final = AnswerForm(
    "/v1/completions", "Continue a text", "cmpl", _COMPLETION, _read_text, OpenAIFormat, "text_completion"
)
