"""Reads requests to Anthropic's /v1/messages as chats. Writes answers as content blocks."""

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import Final

from tpiedge.api import fields as t
from tpiedge.api.answer_grammar import FORM
from tpiedge.api.errors import PromptTooLong, anthropic_error, refused
from tpiedge.api.formats import AnswerForm, AnswerFormat, Json, comment, typed_event
from tpiedge.api.messages import DOCUMENT, SEARCH_RESULT, TEXT_PART, TEXTS, content_text, part_text
from tpiedge.api.openai import function_call, function_tool, given, parse_as_chat
from tpiedge.api.parsed import MAX_TOKENS, MAX_TOOLS, MODEL, SAMPLING, STREAM, ParsedRequest, tokens_in
from tpiedge.api.tools import is_function
from tpiedge.api.transcript import TextPiece, call_id
from tpiedge.local.served_models import ServedModel
from tpiedge.model.call_reader import CallArguments, CallBegun, CallEnded
from tpiedge.model.output import OutputText

_NAMES: Final = {
    "stop": "stop_sequences",
    "response_format": "output_config.format",
    "response_format.json_schema.schema": "output_config.format.schema",
    "tools[].function.parameters": "tools[].input_schema",
}
_CHOICES: Final = {"auto": "auto", "any": "required", "none": "none"}
_READ: Final = TEXTS | t.tagged("type", document=DOCUMENT, search_result=SEARCH_RESULT)
_RESULT: Final = t.body(
    tool_use_id=t.TEXT, content=t.text_or(_READ, "null"), is_error=t.flag("Has no effect.")
)
_REASONING: Final = t.body(thinking=t.text())
_USE: Final = t.body(id=t.TEXT, name=t.TEXT, input=t.OBJECT)
_BLOCKS: Final = {
    "user": _READ | t.tagged("type", tool_result=_RESULT),
    "assistant": TEXTS | t.tagged("type", tool_use=_USE, thinking=_REASONING, redacted_thinking=_REASONING),
    "system": TEXTS,
}
_MESSAGES: Final = t.tagged(
    "role", **{role: t.body(content=t.text_or(blocks)) for role, blocks in _BLOCKS.items()}
)
_TOOL: Final = t.body(
    type=t.word("custom"), name=t.TEXT, input_schema=t.OBJECT, description=t.text(), strict=t.flag("")
)
_CHOICE: Final = t.body(
    "type", type=t.word(*_CHOICES, "tool"), name=t.text(), disable_parallel_tool_use=t.flag("")
)
_FORMAT: Final = t.body("type", type=t.word("json_schema"), schema=t.OBJECT, strict=t.flag(""))
_THINKING: Final = t.body("type", type=t.word("enabled", "adaptive", "between_tools", "disabled"))
_NO_THREAD: Final = t.unsupported(why=", as no message is stored: send the whole conversation as 'messages'")
# Anthropic's clients read these details and send the whole conversation.
_NO_THREAD.details = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
_FIELDS: Final[dict[str, t.JsonSchema]] = {
    **FORM,
    "model": MODEL,
    "messages": t.array(t.any_of(*_MESSAGES.values())),
    "system": t.any_of(t.TEXT, t.array(TEXT_PART), {"type": "null"}),
    **{key: SAMPLING[key] for key in ("temperature", "top_p", "top_k")},
    "stop_sequences": t.any_of(t.TEXT, t.array(t.TEXT)),
    "stream": STREAM,
    "thinking": t.optional(_THINKING),
    "tools": t.array({"type": "object"}, most=MAX_TOOLS),
    "tool_choice": t.optional(_CHOICE),
    "output_config": t.optional(t.body(format=t.optional(_FORMAT))),
    "output_format": t.optional(_FORMAT, "The same as `output_config.format`, by its older name."),
    "thread": _NO_THREAD,
    **dict.fromkeys(("container", "mcp_servers"), t.unsupported()),
}
_LIMIT: Final = t.integer(0, MAX_TOKENS, "Of the answer; 0 only reads the prompt.")
_TABLE: Final = t.body("messages", "max_tokens", **_FIELDS, max_tokens=_LIMIT)
COUNT: Final = t.body("messages", **_FIELDS)


def _read_turns(fields: t.BodyFields, model: ServedModel) -> ParsedRequest:
    maximum = fields.get("max_tokens") or 0
    parsed = _read(fields, model, max(1, maximum))
    (choice,) = parsed.prompts
    # With `max_tokens` 0 the prompt is only read into the cache.
    request = choice.request if maximum else replace(choice.request, max_tokens=0)
    return replace(parsed, prompts=(replace(choice, request=request),))


def count_tokens(fields: t.BodyFields, model: ServedModel) -> dict[str, object]:
    try:
        found = len(_read(fields, model, 1).prompts[0].request.prompt_ids)
    except PromptTooLong as error:
        found = error.tokens
    return {"input_tokens": found}


def _read(fields: t.BodyFields, model: ServedModel, maximum: int) -> ParsedRequest:
    chat: Json = {"max_tokens": maximum, "stream": fields.get("stream", False)}
    chat |= given(fields, "temperature", "top_p", "top_k", stop_sequences="stop")
    # Off by default: clients take the first block for the answer. "between_tools" means text between calls.
    thinks = fields.nested("thinking").get("type") in ("enabled", "adaptive")
    chat["chat_template_kwargs"] = {"enable_thinking": thinks}
    chat["tools"] = []
    for where, item in fields.entries("tools"):
        # Tools of other types run on Anthropic's servers, or have a schema that only its models know.
        if item.get("type") is None or is_function(fields, where, item, "custom"):
            tool = fields.inner(item, where, _TOOL)
            chat["tools"].append(function_tool(tool, tool.needed("name"), "input_schema"))
    choice = fields.nested("tool_choice")
    chat["tool_choice"] = _CHOICES.get(choice.get("type"))
    if choice.get("type") == "tool":
        chat["tool_choice"] = {"type": "function", "function": {"name": choice.needed("name")}}
    chat["parallel_tool_calls"] = not choice.get("disable_parallel_tool_use", False)
    for form in (fields.nested("output_config").nested("format"), fields.nested("output_format")):
        if form.values:
            schema = {"name": "answer", "schema": form.get("schema", {}), "strict": form.get("strict", False)}
            described = {"type": "json_schema", "json_schema": schema}
            if chat.setdefault("response_format", described) != described:
                why = "constrain the answer differently: give one"
                raise refused(f"'output_config.format' and 'output_format' {why}", "output_format")
    messages: list[Json] = []
    if fields.get("system") is not None:
        messages.append({"role": "system", "content": content_text(fields, "system", TEXTS)})
    turns = fields.kinds("messages", _MESSAGES, "role")
    if not turns:
        raise fields.wrong("messages", "is empty: give at least one message")
    # If the last message is an assistant's, the answer continues it.
    chat["continue_final_message"] = turns[-1][0] == "assistant"
    for role, neighbours in groupby(turns, lambda one: one[0]):
        turn = [message for _, message in neighbours]
        messages += _turn(turn, role, begun=role == "assistant" and turn[-1] is turns[-1][1])
    chat["messages"] = messages
    try:
        return parse_as_chat(chat, fields, model, "message", _NAMES)
    except PromptTooLong as error:  # clients shorten the conversation by what is too much
        error.tokens = max(error.tokens, tokens_in(error.text, model))
        raise


def _turn(messages: Sequence[t.BodyFields], role: str, *, begun: bool) -> list[Json]:
    """Joins consecutive messages of one role. Tool results come before the joined message. `begun`: the answer
    continues the message."""
    texts: list[str] = []
    reasoning, calls, results = "", list[Json](), list[Json]()
    for message in messages:
        content = message.get("content")
        if isinstance(content, str):
            texts.append(content)
            continue
        if not isinstance(content, list):
            raise message.wrong_type("content", "a string or an array", content)
        for kind, block in message.kinds("content", _BLOCKS[role]):
            match kind:
                case "tool_result":
                    content = "" if block.get("content") is None else content_text(block, "content", _READ)
                    call = block.needed("tool_use_id")
                    if block.get("is_error", False):
                        block.ignore("is_error")
                    results.append({"role": "tool", "tool_call_id": call, "content": content})
                case "tool_use" if begun:
                    where = block.name("type")
                    raise refused(f"'{where}': an answer cannot continue a message that has calls", where)
                case "tool_use":
                    arguments = json.dumps(block.get("input") or {}, ensure_ascii=False)
                    calls.append(function_call(block.needed("id"), block.needed("name"), arguments))
                case "thinking" | "redacted_thinking":
                    reasoning += block.get("thinking") or ""
                case _:
                    texts.append(part_text(kind, block))
    if results and not texts:
        return results
    content = "\n".join(texts) if texts or not calls else None
    said: Json = {"role": role, "content": content, "tool_calls": calls}
    if reasoning:
        said["reasoning_content"] = reasoning
    return [*results, said]


_CUT: Final = "length"  # Only an answer with this ending may have no block.
_REASONS: Final = {_CUT: "max_tokens", "tool_calls": "tool_use"}
_EMPTY: Final[dict[str, Json]] = {
    "text": {"type": "text", "text": ""},
    "thinking": {"type": "thinking", "thinking": "", "signature": ""},
}


class AnthropicFormat(AnswerFormat):
    """Writes one choice. Each run of text, each run of reasoning and each tool call is one block."""

    error_event = b"event: error\n"
    failure = staticmethod(anthropic_error)
    _open = ""  # the type of the last block while it is being written

    def opening(self) -> Sequence[bytes]:
        usage = {"input_tokens": self.prompt_tokens, "output_tokens": 0}
        message = self._message({"stop_reason": None, "stop_sequence": None}, usage)
        return (typed_event("message_start", message=message),)

    def frames(self, _choice: int, piece: TextPiece) -> Sequence[bytes]:
        frames: list[bytes] = []
        for part in self.parsers[0].feed(piece.text, piece.last):
            match part:
                case CallBegun(index=index, name=name):
                    frames += self._begun(self._use(index, name, {}))
                case CallArguments(text=text):
                    frames.append(self._delta("input_json_delta", partial_json=text))
                case CallEnded():
                    frames += self._closed()
                case OutputText(text=text, reasoning=reasoning):
                    kind = "thinking" if reasoning else "text"
                    frames += self._begun(_EMPTY[kind]) if self._open != kind else []
                    frames.append(self._delta(f"{kind}_delta", **{kind: text}))
        if piece.last is not None:
            if not self.items and piece.last != _CUT:
                frames += self._begun(_EMPTY["text"])
            frames += self._closed()
        return frames

    def closing(self) -> Sequence[bytes]:
        ending, usage = self._ended()
        return typed_event("message_delta", delta=ending, usage=usage), typed_event("message_stop")

    def alive(self, why: str) -> bytes:
        return (comment(why) if why else b"") + typed_event("ping")

    def whole(self, pieces: Sequence[Sequence[TextPiece]]) -> Json:
        (parts,), blocks = pieces, self.items
        for part in (one for piece in parts for one in self.parsers[0].feed_whole(piece.text, piece.last)):
            if isinstance(part, CallEnded):
                blocks.append(self._use(part.index, part.name, json.loads(part.arguments)))
                continue
            kind = "thinking" if part.reasoning else "text"
            if not blocks or blocks[-1]["type"] != kind:
                blocks.append({**_EMPTY[kind]})
            blocks[-1][kind] += part.text
        if not blocks and parts[-1].last != _CUT:
            blocks.append(_EMPTY["text"])
        return self._message(*self._ended())

    def _use(self, index: int, name: str, arguments: Json) -> Json:
        identity = call_id(self.accepted.name, 0, index)
        return {"type": "tool_use", "id": identity, "name": name, "input": arguments}

    def _begun(self, block: Json) -> list[bytes]:
        before, self._open = self._closed(), block["type"]
        self.items.append(block)
        return [*before, typed_event("content_block_start", index=len(self.items) - 1, content_block=block)]

    def _delta(self, kind: str, **more: str) -> bytes:
        return typed_event("content_block_delta", index=len(self.items) - 1, delta={"type": kind, **more})

    def _closed(self) -> list[bytes]:
        kind, self._open = self._open, ""
        return [typed_event("content_block_stop", index=len(self.items) - 1)] if kind else []

    def _ended(self) -> tuple[Json, Json]:
        only, tokens = self.transcripts[0], self.prompt_tokens
        usage: Json = {"cache_creation_input_tokens": 0, "output_tokens": only.count, "input_tokens": tokens}
        reason = None
        if only.finished is not None:
            reason, cached = self.parsers[0].ending(only.finished.reason), only.finished.cached_tokens
            usage |= {"input_tokens": tokens - cached, "cache_read_input_tokens": cached}
        told = "stop_sequence" if only.writer.stop else _REASONS.get(reason or "", "end_turn")
        return {"stop_reason": told, "stop_sequence": only.writer.stop or None}, usage

    def _message(self, ending: Json, usage: Json) -> Json:
        head: Json = {"id": self.accepted.name, "type": "message", "role": "assistant"}
        return head | {"model": self.accepted.model, "content": self.items, **ending, "usage": usage}


MESSAGE: Final = AnswerForm(
    "/v1/messages", "Answer, as Anthropic's API does", "msg", _TABLE, _read_turns, AnthropicFormat, "message"
)
