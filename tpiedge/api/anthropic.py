"""Anthropic's /v1/messages: reads requests as chats and writes answers as messages of blocks."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Final

from tpiedge.api import fields as t
from tpiedge.api.answer_grammar import FORM
from tpiedge.api.asked import MAX_TOKENS, MAX_TOOLS, MODEL, SAMPLING, STREAM, Asked, tokens_in
from tpiedge.api.errors import ApiError, PromptTooLong, anthropic_error, refused
from tpiedge.api.fields import BodyFields
from tpiedge.api.formats import AnswerForm, AnswerFormat, AnswerHead, Json, comment, typed_event
from tpiedge.api.messages import DOCUMENT, SEARCH_RESULT, TEXT_PART, TEXTS, content_text, part_text
from tpiedge.api.openai import asked_by_chat, function_call, function_tool, given
from tpiedge.api.service import Service
from tpiedge.api.tools import is_function
from tpiedge.api.transcript import TextPiece, Transcript, call_id
from tpiedge.model.call_reader import CallArguments, CallBegun, CallEnded
from tpiedge.model.speech import Said, SpeechReader, SpokenText

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
_THOUGHT: Final = t.body(thinking=t.text())
_USE: Final = t.body(id=t.TEXT, name=t.TEXT, input=t.OBJECT)
_BLOCKS: Final = {
    "user": _READ | t.tagged("type", tool_result=_RESULT),
    "assistant": TEXTS | t.tagged("type", tool_use=_USE, thinking=_THOUGHT, redacted_thinking=_THOUGHT),
    "system": TEXTS,
}
_MESSAGES: Final = t.tagged(
    "role", **{role: t.body(content=t.text_or(blocks)) for role, blocks in _BLOCKS.items()}
)
_TOOL: Final = t.body(
    type=t.word("custom"),
    name=t.TEXT,
    input_schema=t.OBJECT,
    description=t.text(),
    strict=t.flag(""),
)
_CHOICE: Final = t.body(
    "type", type=t.word(*_CHOICES, "tool"), name=t.text(), disable_parallel_tool_use=t.flag("")
)
_FORMAT: Final = t.body("type", type=t.word("json_schema"), schema=t.OBJECT, strict=t.flag(""))
_THINKING: Final = t.body("type", type=t.word("enabled", "adaptive", "between_tools", "disabled"))
_NO_THREAD: Final = t.unsupported(why=", as no message is stored: send the whole conversation as 'messages'")
# After these words their clients send the whole conversation.
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
_TABLE: Final = t.body("model", "messages", "max_tokens", **_FIELDS, max_tokens=_LIMIT)
COUNT: Final = t.body("model", "messages", **_FIELDS)


def _read_turns(fields: BodyFields, service: Service) -> Asked:
    maximum = fields.get("max_tokens") or 0
    asked = _read(fields, service, max(1, maximum))
    if maximum:
        return asked
    # Without tokens the prompt is only read into the cache.
    (choice,) = asked.prompts
    return replace(asked, prompts=(replace(choice, request=replace(choice.request, max_tokens=0)),))


def count_tokens(fields: BodyFields, service: Service) -> dict[str, object]:
    try:
        found = len(_read(fields, service, 1).prompts[0].request.prompt_ids)
    except PromptTooLong as error:  # clients ask whether to shorten the conversation
        found = max(error.tokens, tokens_in(error.text, service))
    return {"input_tokens": found}


def _read(fields: BodyFields, service: Service, maximum: int) -> Asked:
    chat: Json = {"max_tokens": maximum, "stream": fields.get("stream", False)}
    chat |= given(fields, "temperature", "top_p", "top_k", stop_sequences="stop")
    # By default their clients take the first block for the answer. "between_tools" means text between calls.
    thinks = fields.nested("thinking").get("type") in ("enabled", "adaptive")
    chat["chat_template_kwargs"] = {"enable_thinking": thinks}
    _read_tools(fields, chat)
    forms = [
        {"name": "answer", "schema": form.get("schema", {}), "strict": form.get("strict", False)}
        for form in (fields.nested("output_config").nested("format"), fields.nested("output_format"))
        if form.values
    ]
    if len(forms) == 2 and forms[0] != forms[1]:
        why = "'output_config.format' and 'output_format' both say what the answer must be, and not the same: give one"
        raise refused(why, "output_format")
    if forms:
        chat["response_format"] = {"type": "json_schema", "json_schema": forms[0]}
    messages: list[Json] = []
    if fields.get("system") is not None:
        messages.append({"role": "system", "content": content_text(fields, "system", TEXTS)})
    turns = fields.kinds("messages", _MESSAGES, "role")
    if not turns:
        raise fields.wrong("messages", "is empty: give at least one message")
    # The answer continues an assistant's last message.
    chat["continue_final_message"] = turns[-1][0] == "assistant"
    for role, neighbours in groupby(turns, lambda one: one[0]):
        turn = [message for _, message in neighbours]
        messages += _turn(turn, role, begun=role == "assistant" and turn[-1] is turns[-1][1])
    chat["messages"] = messages
    return asked_by_chat(chat, fields, service, "message", _NAMES)


def _turn(messages: Sequence[BodyFields], role: str, *, begun: bool) -> list[Json]:
    """Joins neighbouring messages of one role, after their tool results. `begun`: the answer continues them."""
    texts: list[str] = []
    thoughts, calls, results = "", list[Json](), list[Json]()
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
                        block.note("is_error")
                    results.append({"role": "tool", "tool_call_id": call, "content": content})
                case "tool_use" if begun:
                    where = block.name("type")
                    raise refused(f"'{where}': an answer cannot go on with a message that has calls", where)
                case "tool_use":
                    arguments = json.dumps(block.get("input") or {}, ensure_ascii=False)
                    calls.append(function_call(block.needed("id"), block.needed("name"), arguments))
                case "thinking" | "redacted_thinking":
                    thoughts += block.get("thinking") or ""
                case _:
                    texts.append(part_text(kind, block))
    if results and not texts:
        return results
    content = "\n".join(texts) if texts or not calls else None
    said: Json = {"role": role, "content": content, "tool_calls": calls}
    if thoughts:
        said["reasoning_content"] = thoughts
    return [*results, said]


def _read_tools(fields: BodyFields, chat: Json) -> None:
    tools: list[Json] = []
    for where, item in fields.entries("tools"):
        # Other types are run by their servers, or have a schema that only their models know.
        if item.get("type") is None or is_function(fields, where, item, "custom"):
            tool = fields.inner(item, where, _TOOL)
            tools.append(function_tool(tool, tool.needed("name"), "input_schema"))
    chat["tools"] = tools
    choice = fields.nested("tool_choice")
    kind = choice.get("type")
    if kind == "tool":
        chat["tool_choice"] = {"type": "function", "function": {"name": choice.needed("name")}}
    elif kind is not None:
        chat["tool_choice"] = _CHOICES[kind]
    if choice.get("disable_parallel_tool_use", False):
        chat["parallel_tool_calls"] = False


_PING: Final = typed_event("ping")
_CUT: Final = "length"  # The only ending of an answer that may have no block.
_REASONS: Final = {_CUT: "max_tokens", "tool_calls": "tool_use"}
_EMPTY: Final[dict[str, Json]] = {"text": {"text": ""}, "thinking": {"thinking": "", "signature": ""}}


class AnthropicFormat(AnswerFormat):
    """Writes one choice. Neighbouring texts of a kind are one block."""

    def __init__(self, head: AnswerHead) -> None:
        super().__init__(head)
        self._spoken = SpeechReader(head.reply.speech)
        self._whole = False
        self._blocks: list[Json] = []
        self._open = ""  # the type of the last block while it is being written
        self._ending = ""

    def opening(self) -> Sequence[bytes]:
        usage = {"input_tokens": self.head.prompt_tokens, "output_tokens": 0}
        message = self._message({"stop_reason": None, "stop_sequence": None}, usage)
        return (typed_event("message_start", message=message),)

    def frames(self, _choice: int, piece: TextPiece) -> Sequence[bytes]:
        return self._written(piece, self._spoken.feed(piece.text, piece.last))

    def closing(self, transcripts: Sequence[Transcript]) -> Sequence[bytes]:
        (only,) = transcripts
        end = typed_event("message_delta", delta=self._end(only), usage=self._usage(only))
        return end, typed_event("message_stop")

    def alive(self, why: str) -> bytes:
        return comment(why) + _PING if why else _PING

    def broken(self, error: ApiError, _tokens: int) -> bytes:
        return typed_event("error", error=anthropic_error(error)["error"])

    def whole(self, pieces: Sequence[Sequence[TextPiece]], transcripts: Sequence[Transcript]) -> Json:
        self._whole = True
        (parts,), (only,) = pieces, transcripts
        for piece in parts:
            self._written(piece, self._spoken.feed_whole(piece.text, piece.last))
        return self._message(self._end(only), self._usage(only))

    def failure(self, error: ApiError, _tokens: int) -> Json:
        return anthropic_error(error)

    def _written(self, piece: TextPiece, said: Iterable[Said]) -> list[bytes]:
        frames = [frame for one in said for frame in self._parts(one)]
        self._ending = self._spoken.ending(piece.last) or ""
        if piece.last is not None:
            if not self._blocks and piece.last != _CUT:
                frames += self._begun("text")
            frames += self._closed()
        return frames

    def _parts(self, said: Said) -> list[bytes]:
        match said:
            case CallBegun(index=index, name=name):
                return self._begun_call(index, name)
            case CallArguments(text=text):
                return [self._delta({"type": "input_json_delta", "partial_json": text})]
            case CallEnded(index=index, name=name, arguments=arguments):
                if self._open != "tool_use":  # in an answer that is not streamed
                    self._begun_call(index, name)
                    self._blocks[-1]["input"] = json.loads(arguments)
                return self._closed()
            case SpokenText(text=text, thought=thought):
                kind = "thinking" if thought else "text"
                frames = self._begun(kind)
                if self._whole:  # a stream keeps no text
                    self._blocks[-1][kind] += text
                return [*frames, self._delta({"type": f"{kind}_delta", kind: text})]

    def _begun_call(self, index: int, name: str) -> list[bytes]:
        return self._begun("tool_use", id=call_id(self.head.id, 0, index), name=name, input={})

    def _begun(self, kind: str, **call: object) -> list[bytes]:
        """Begins a block, unless one of this kind is being written."""
        if self._open == kind:
            return []
        before, block = self._closed(), {"type": kind, **(call or _EMPTY[kind])}
        self._open = kind
        self._blocks.append(block)
        index = len(self._blocks) - 1
        return [*before, typed_event("content_block_start", index=index, content_block=block)]

    def _delta(self, delta: Json) -> bytes:
        return typed_event("content_block_delta", index=len(self._blocks) - 1, delta=delta)

    def _closed(self) -> list[bytes]:
        kind, self._open = self._open, ""
        return [typed_event("content_block_stop", index=len(self._blocks) - 1)] if kind else []

    def _end(self, transcript: Transcript) -> Json:
        reason = "stop_sequence" if transcript.stop else _REASONS.get(self._ending, "end_turn")
        return {"stop_reason": reason, "stop_sequence": transcript.stop or None}

    def _usage(self, transcript: Transcript) -> Json:
        """Counts cached tokens apart, as Anthropic does; they are unknown at a stop string."""
        ended, tokens = transcript.finished, self.head.prompt_tokens
        usage: Json = {"cache_creation_input_tokens": 0, "output_tokens": transcript.count}
        if ended is None:
            return usage | {"input_tokens": tokens}
        cached = ended.cached_tokens
        return usage | {"input_tokens": tokens - cached, "cache_read_input_tokens": cached}

    def _message(self, ending: Json, usage: Json) -> Json:
        head = {"id": self.head.id, "type": "message", "role": "assistant", "model": self.head.model}
        return {**head, "content": self._blocks, **ending, "usage": usage}


MESSAGE: Final = AnswerForm(
    "/v1/messages", "Answer, as Anthropic's API does", "msg", _TABLE, _read_turns, AnthropicFormat, "message"
)
