"""OpenAI's /v1/responses: reads requests as chats and writes answers as items. No answer is stored."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from tpiedge.api import asked as a
from tpiedge.api import fields as t
from tpiedge.api.answer_grammar import FORM
from tpiedge.api.asked import Asked
from tpiedge.api.errors import ApiError
from tpiedge.api.fields import BodyFields
from tpiedge.api.formats import AnswerForm, AnswerFormat, AnswerHead, Json, typed_event
from tpiedge.api.messages import TEXT_PART, content_text
from tpiedge.api.openai import asked_by_chat, function_call, function_tool, given
from tpiedge.api.service import Service
from tpiedge.api.tools import FUNCTION, is_function
from tpiedge.api.transcript import TextPiece, TokenScores, Transcript, call_id
from tpiedge.model.call_reader import CallArguments, CallBegun, CallEnded
from tpiedge.model.speech import Said, SpeechReader, SpokenText

_NAMES: Final = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "response_format": "text.format",
    "response_format.json_schema": "text.format",
    "tools[].function": "tools[]",
}
_JOINT: Final = "__"
_MAX_ECHO: Final = 131_072
_SCORES: Final = "message.output_text.logprobs"
_ECHOED: Final = (
    "temperature", "top_p", "max_output_tokens", "max_tool_calls", "parallel_tool_calls", "tool_choice", "truncation",
    "top_logprobs", "user", "safety_identifier", "prompt_cache_key", "reasoning", "text", "metadata", "instructions",
    "tools",
)  # fmt: skip
"""The fields of a request that its answer repeats as far as they fit, small ones first."""
_OF_SERVERS: Final = (
    "code_interpreter_call", "file_search_call", "image_generation_call", "mcp_list_tools", "tool_search_call",
    "tool_search_output", "web_search_call",
)  # fmt: skip
_PARTS: Final = t.tagged(
    "type",
    **dict.fromkeys(("input_text", "output_text", "text"), TEXT_PART),
    refusal=t.body(refusal=t.TEXT),
    input_file=t.body(filename=t.text(), file_data=t.text()),
)
_THOUGHTS: Final = t.tagged("type", **dict.fromkeys(("reasoning_text", "text"), TEXT_PART))
_CONTENT: Final = t.text_or(_PARTS)
_CALL: Final[dict[str, t.JsonSchema]] = {"call_id": t.TEXT, "name": t.TEXT, "namespace": t.text()}
_OUTPUT: Final = t.body(call_id=t.TEXT, output=_CONTENT)
_ITEMS: Final = t.tagged(
    "type",
    message=t.body("role", role=t.word("system", "developer", "user", "assistant"), content=_CONTENT),
    function_call=t.body(**_CALL, arguments=t.TEXT),
    custom_tool_call=t.body(**_CALL, input=t.TEXT),
    **dict.fromkeys(("function_call_output", "custom_tool_call_output"), _OUTPUT),
    reasoning=t.body(content=t.array(t.OBJECT)),
)
_ITEMS["message"]["required"].remove("type")
_FUNCTION: Final = t.body("name", type={"const": "function"}, **FUNCTION)
_NAMESPACE: Final = t.body("tools", type={"const": "namespace"}, name=t.TEXT, tools=t.array(t.OBJECT))
_CHOSEN: Final = t.tagged("type", function=t.body(name=t.TEXT, namespace=t.text()))
_CHOICES: Final = _CHOSEN | t.tagged(
    "type",
    allowed_tools=t.body(
        "tools", mode=t.word("auto", "required"), tools=t.array(t.any_of(*_CHOSEN.values()))
    ),
)
_NOT_STORED: Final = t.unsupported(why=", as no answer is stored: send the whole conversation as 'input'")
_RESPONSES: Final = t.body(
    "model",
    "input",
    **FORM,
    model=a.MODEL,
    **dict.fromkeys(("previous_response_id", "conversation", "prompt"), _NOT_STORED),
    background=t.unsupported(False),
    input=t.text_or(_ITEMS),
    instructions=t.text(),
    max_output_tokens=a.LIMIT,
    temperature=a.SAMPLING["temperature"],
    top_p=a.SAMPLING["top_p"],
    stream=a.STREAM,
    text=t.optional(t.body(format=t.OBJECT), "The form of the text."),
    reasoning=t.optional(t.body(), "Has no effect."),
    tools=t.array(t.OBJECT, most=a.MAX_TOOLS),
    tool_choice=t.any_of({"enum": ["none", "auto", "required", None]}, *_CHOICES.values()),
    parallel_tool_calls=t.flag("Whether several tools may be called at once; true without."),
    include=t.array(t.TEXT, f"With `{_SCORES}`, probabilities are told."),
    top_logprobs=a.TOP_LOGPROBS,
    truncation=t.word(
        "auto", "disabled", description="Both are taken: nothing is left out of an input that is too long."
    ),
)
_DESCRIBED: Final = ("name", "schema", "strict", "description")
_FORMAT: Final = t.body(type=t.TEXT, **{key: {} for key in _DESCRIBED})


def _read_response(fields: BodyFields, service: Service) -> Asked:
    if fields.get("truncation") == "auto":
        fields.note("truncation")
    chat: Json = {"stream": fields.get("stream", False)}
    chat |= given(fields, "temperature", "top_p", "parallel_tool_calls", max_output_tokens="max_tokens")
    included, top = fields.get("include") or [], fields.get("top_logprobs")
    if any(one != _SCORES for one in included):
        fields.note("include")
    if top or _SCORES in included:
        chat |= {"logprobs": True, "top_logprobs": top}
    text = fields.nested("text")
    chat |= given(text, format="response_format")
    form = text.get("format", {})
    if form.get("type") == "json_schema":
        described = given(text.inner(form, "format", _FORMAT), *_DESCRIBED)
        chat["response_format"] = {"type": "json_schema", "json_schema": described}
    namespaces, chat["tools"] = _unfolded(fields)
    choice = fields.get("tool_choice")
    if choice is not None:
        chat["tool_choice"] = _tool_choice(fields, choice) if isinstance(choice, dict) else choice
    told = given(fields, instructions="content")
    chat["messages"] = [*([{"role": "system", **told}] if told else []), *_input(fields)]
    asked = asked_by_chat(chat, fields, service, "response", _NAMES)
    echo: Json = {}
    for key in _ECHOED:
        more = {**echo, key: fields.values.get(key)}
        if more[key] is not None and len(json.dumps(more)) <= _MAX_ECHO:
            echo = more
    return replace(asked, reply=replace(asked.reply, echo=json.dumps(echo), namespaces=namespaces))


def _full_name(namespace: str | None, name: str) -> str:
    """Returns the name with its namespace (an MCP server's, of Codex), unless that is too long."""
    full = f"{_prefix(namespace or '')}{name}"
    return full if len(full) <= a.MAX_TOOL_NAME else name


def _prefix(namespace: str) -> str:
    return namespace if not namespace or namespace.endswith(_JOINT) else f"{namespace}{_JOINT}"


def _input(fields: BodyFields) -> list[Json]:
    value = fields.get("input")
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    found: list[Json] = []
    thoughts = ""
    for where, one in fields.entries("input"):
        if one.get("type") in _OF_SERVERS:
            fields.note(f"{where}.{one['type']}")
            continue
        kind, item = fields.kind(one, where, _ITEMS, usual="message")
        match kind:
            case "message":
                found.append({"role": item.get("role"), "content": content_text(item, "content", _PARTS)})
            case "function_call":
                _add_call(found, item, item.needed("arguments"))
            case "custom_tool_call":
                _add_call(found, item, json.dumps({"input": item.needed("input")}))
            case "reasoning":  # belongs to the assistant's next message
                thoughts = content_text(item, "content", _THOUGHTS) if item.get("content") else ""
                continue
            case _:
                output = content_text(item, "output", _PARTS)
                found.append({"role": "tool", "tool_call_id": item.needed("call_id"), "content": output})
        if thoughts and found[-1]["role"] == "assistant":
            found[-1].setdefault("reasoning_content", thoughts)
        thoughts = ""
    if not found:
        raise fields.wrong("input", "is empty: give at least one message")
    return found


def _add_call(found: list[Json], item: BodyFields, arguments: str) -> None:
    name = _full_name(item.get("namespace"), item.needed("name"))
    call = function_call(item.needed("call_id"), name, arguments)
    if not found or found[-1]["role"] != "assistant":
        found.append({"role": "assistant", "content": None})
    found[-1].setdefault("tool_calls", []).append(call)


def _tool_choice(fields: BodyFields, given: object) -> Json:
    kind, choice = fields.kind(given, "tool_choice", _CHOICES)
    if kind == "function":
        return _chosen(choice)
    tools = [_chosen(tool) for _, tool in choice.kinds("tools", _CHOSEN)]
    return {"type": kind, "allowed_tools": {"mode": choice.get("mode"), "tools": tools}}


def _chosen(choice: BodyFields) -> Json:
    name = _full_name(choice.get("namespace"), choice.needed("name"))
    return {"type": "function", "function": {"name": name}}


def _unfolded(fields: BodyFields) -> tuple[dict[str, str], list[Json]]:
    """Returns namespaces by the functions' names for the model, and all functions as a chat's tools."""
    namespaces, found = dict[str, str](), list[Json]()
    for where, item in fields.entries("tools"):
        namespace, inner, outer = "", [(where, item)], fields
        if item.get("type") == "namespace":
            outer = fields.inner(item, where, _NAMESPACE)
            namespace, inner = outer.needed("name"), [*outer.entries("tools")]
        for place, one in inner:
            if is_function(outer, place, one):
                tool = outer.inner(one, place, _FUNCTION)
                name = _full_name(namespace, tool.needed("name"))
                found.append(function_tool(tool, name))
                if namespace:
                    namespaces[name] = namespace
    return namespaces, found


_WRITTEN: Final[Mapping[object, str]] = {
    "message": "output_text", "reasoning": "reasoning_text", "function_call": "function_call_arguments",
}  # fmt: skip
_BEGUN: Final[Mapping[str, Json]] = {
    "message": {"role": "assistant", "content": []}, "reasoning": {"summary": [], "content": []},
}  # fmt: skip


class ResponsesFormat(AnswerFormat):
    """Writes one choice. Neighbouring texts of a kind are one item."""

    def __init__(self, head: AnswerHead) -> None:
        super().__init__(head)
        self._spoken = SpeechReader(head.reply.speech)
        self._number = 0
        self._last: str | None = None
        self._items: list[Json] = []
        #: The content or call of the last item, while that is being written, and its text or arguments.
        self._part: Json = {}
        self._written: list[str] = []
        self._scores = TokenScores(head.tokenizer, head.reply.logprobs, without_bytes=[])

    def opening(self) -> Sequence[bytes]:
        begun = self._response("in_progress", [])
        return [self._event(f"response.{kind}", response=begun) for kind in ("created", "in_progress")]

    def frames(self, _choice: int, piece: TextPiece) -> Sequence[bytes]:
        self._scores.hear(piece)
        said = self._spoken.feed(piece.text, piece.last)
        frames = [frame for one in said for frame in self._said(one)]
        if piece.last is None:
            return frames
        self._last = piece.last
        if self._writes("message"):
            self._part["logprobs"] += self._scores.tell()  # scores of tokens without text
        if not self._items:
            frames += self._begun("message")
        return frames + self._done()

    def closing(self, transcripts: Sequence[Transcript]) -> Sequence[bytes]:
        (only,) = transcripts
        response = self._ended(only)
        return [self._event(f"response.{response['status']}", response=response)]

    def broken(self, error: ApiError, tokens: int) -> bytes:
        failed = self._response("failed", self._items) | self._usage(tokens, 0)
        failed["error"] = {"code": "server_error", "message": error.message}
        return self._event("response.failed", response=failed)

    def whole(self, pieces: Sequence[Sequence[TextPiece]], transcripts: Sequence[Transcript]) -> Json:
        (parts,), (only,) = pieces, transcripts
        for piece in parts:
            self.frames(0, piece)
        return self._ended(only)

    def _said(self, said: Said) -> list[bytes]:
        match said:
            case CallBegun(index=index, name=name):
                namespace = self.head.reply.namespaces.get(name, "")
                own = {"name": name.removeprefix(_prefix(namespace))}
                own |= {"namespace": namespace} if namespace else {}
                identity = call_id(self.head.id, 0, index)
                return self._begun("function_call", call_id=identity, **own, arguments="")
            case CallArguments(text=text):
                return [self._delta(text)]
            case CallEnded(broken=broken):
                self._scores.tell()
                return self._done("incomplete" if broken else "completed")
            case SpokenText(text=text, thought=thought):
                kind = "reasoning" if thought else "message"
                return [*([] if self._writes(kind) else self._begun(kind)), self._delta(text)]

    def _writes(self, kind: str) -> bool:
        return bool(self._part) and self._items[-1]["type"] == kind

    def _begun(self, kind: str, **call: object) -> list[bytes]:
        frames, number = self._done(), len(self._items)
        identity = f"{kind}-{number}-{self.head.id.partition('-')[2]}"
        item: Json = {"id": identity, "type": kind, "status": "in_progress", **(call or _BEGUN[kind])}
        self._items.append(item)
        self._part, self._written = {"type": _WRITTEN[kind], "text": ""}, []
        if kind == "message":
            self._part |= {"annotations": [], "logprobs": []}
        frames.append(self._event("response.output_item.added", output_index=number, item=item))
        if not call:
            frames.append(self._event("response.content_part.added", **self._place, part=self._part))
        return frames

    def _delta(self, text: str) -> bytes:
        kind, scores = self._items[-1]["type"], self._scores.tell()
        self._written.append(text)
        more: Json = {"logprobs": scores} if kind == "message" else {}
        if more:
            self._part["logprobs"] += scores
        return self._event(f"response.{_WRITTEN[kind]}.delta", **self._place, delta=text, **more)

    def _done(self, status: str = "") -> list[bytes]:
        if not self._part:
            return []
        item, part, place, text = self._items[-1], self._part, self._place, "".join(self._written)
        self._part = {}
        item["status"] = status or ("incomplete" if self._last == "length" else "completed")
        kind = f"{_WRITTEN[item['type']]}.done"
        if item["type"] == "function_call":
            item["arguments"] = text
            told = [(kind, {**place, "arguments": text, "name": item["name"]})]
        else:
            part["text"], item["content"] = text, [part]
            shown = {key: part[key] for key in ("text", "logprobs") if key in part}
            told = [(kind, place | shown), ("content_part.done", {**place, "part": part})]
        told.append(("output_item.done", {"output_index": place["output_index"], "item": item}))
        return [self._event(f"response.{kind}", **fields) for kind, fields in told]

    @property
    def _place(self) -> Json:
        item, index = self._items[-1], len(self._items) - 1
        place: Json = {"item_id": item["id"], "output_index": index}
        return place if item["type"] == "function_call" else place | {"content_index": 0}

    def _event(self, kind: str, **fields: object) -> bytes:
        number, self._number = self._number, self._number + 1
        return typed_event(kind, **fields, sequence_number=number)

    def _ended(self, transcript: Transcript) -> Json:
        cut = self._last == "length"
        found = self._response("incomplete" if cut else "completed", self._items)
        if cut:
            found["incomplete_details"] = {"reason": "max_output_tokens"}
        ended = transcript.finished
        return found | self._usage(transcript.count, 0 if ended is None else ended.cached_tokens)

    def _response(self, status: str, output: list[Json]) -> Json:
        echo: Json = json.loads(self.head.reply.echo or "{}")
        return {
            "id": self.head.id,
            "object": "response",
            "created_at": self.head.created,
            "status": status,
            **dict.fromkeys(("error", "incomplete_details", "instructions")),
            "metadata": {},
            "model": self.head.model,
            "output": output,
            "parallel_tool_calls": self.head.reply.speech.several,
            "previous_response_id": None,
            "store": False,
            "temperature": None,
            "tool_choice": "auto",
            "tools": [],
            "top_p": None,
            "truncation": "disabled",
            "usage": None,
            **echo,
            "text": {"format": {"type": "text"}, **echo.get("text", {})},
        }

    def _usage(self, tokens: int, cached: int) -> Json:
        prompt_tokens = self.head.prompt_tokens
        usage: Json = {"input_tokens": prompt_tokens, "input_tokens_details": {"cached_tokens": cached}}
        usage |= {"output_tokens": tokens, "output_tokens_details": {"reasoning_tokens": 0}}
        return {"usage": usage | {"total_tokens": prompt_tokens + tokens}}


_ABOUT: Final = "Answer, in the form of OpenAI's responses; none is stored"
RESPONSE: Final = AnswerForm(
    "/v1/responses", _ABOUT, "resp", _RESPONSES, _read_response, ResponsesFormat, "response"
)
