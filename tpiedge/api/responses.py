"""Reads requests to OpenAI's /v1/responses as chats. Writes answers as items."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from tpiedge.api import fields as t
from tpiedge.api import parsed as p
from tpiedge.api.answer_grammar import FORM
from tpiedge.api.errors import ApiError
from tpiedge.api.formats import AnswerForm, AnswerFormat, Json, typed_event
from tpiedge.api.messages import TEXT_PART, content_text
from tpiedge.api.openai import EFFORT, function_call, function_tool, given, parse_as_chat
from tpiedge.api.tools import FUNCTION, is_function
from tpiedge.api.transcript import TextPiece, call_id
from tpiedge.local.served_models import ServedModel
from tpiedge.model.call_reader import CallArguments, CallBegun, CallEnded
from tpiedge.model.output import OutputText

_NAMES: Final = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "response_format": "text.format",
    "response_format.json_schema": "text.format",
    "tools[].function": "tools[]",
    "reasoning_effort": "reasoning.effort",
}
_JOINT: Final = "__"
_MAX_ECHO: Final = 131_072
_SCORES: Final = "message.output_text.logprobs"
_ECHOED: Final = (
    "temperature", "top_p", "max_output_tokens", "max_tool_calls", "parallel_tool_calls", "tool_choice", "truncation",
    "top_logprobs", "user", "safety_identifier", "prompt_cache_key", "reasoning", "text", "metadata", "instructions",
    "tools",
)  # fmt: skip
"""The fields of a request that its answer repeats, small fields first. A field that does not fit is left out."""
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
_REASONING: Final = t.tagged("type", **dict.fromkeys(("reasoning_text", "text"), TEXT_PART))
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
_ALLOWED: Final = t.body("tools", mode=t.word("auto", "required"), tools=t.array(t.any_of(*_CHOSEN.values())))
_CHOICES: Final = _CHOSEN | t.tagged("type", allowed_tools=_ALLOWED)
_NOT_STORED: Final = t.unsupported(why=", as no answer is stored: send the whole conversation as 'input'")
_RESPONSES: Final = t.body(
    "input",
    **FORM,
    model=p.MODEL,
    **dict.fromkeys(("previous_response_id", "conversation", "prompt"), _NOT_STORED),
    background=t.unsupported(False),
    input=t.text_or(_ITEMS),
    instructions=t.text(),
    max_output_tokens=p.LIMIT,
    temperature=p.SAMPLING["temperature"],
    top_p=p.SAMPLING["top_p"],
    stream=p.STREAM,
    text=t.optional(t.body(format=t.OBJECT), "The form of the text."),
    reasoning=t.optional(t.body(effort=EFFORT)),
    tools=t.array(t.OBJECT, most=p.MAX_TOOLS),
    tool_choice=t.any_of({"enum": ["none", "auto", "required", None]}, *_CHOICES.values()),
    parallel_tool_calls=t.flag("Whether several tools may be called at once.", default=True),
    include=t.array(t.TEXT, f"With `{_SCORES}`, probabilities are told."),
    top_logprobs=p.TOP_LOGPROBS,
    truncation=t.word(
        "auto", "disabled", description="Both are taken: nothing is left out of an input that is too long."
    )
    | {"default": "disabled"},
)
_DESCRIBED: Final = ("name", "schema", "strict", "description")
_FORMAT: Final = t.body(type=t.TEXT, **{key: {} for key in _DESCRIBED})


def _read_response(fields: t.BodyFields, model: ServedModel) -> p.ParsedRequest:
    if fields.get("truncation") == "auto":
        fields.ignore("truncation")
    chat: Json = {"stream": fields.get("stream", False)}
    chat |= given(fields, "temperature", "top_p", "parallel_tool_calls", max_output_tokens="max_tokens")
    included, top = fields.get("include") or [], fields.get("top_logprobs")
    if any(one != _SCORES for one in included):
        fields.ignore("include")
    if top or _SCORES in included:
        chat |= {"logprobs": True, "top_logprobs": top}
    chat |= given(fields.nested("reasoning"), effort="reasoning_effort")
    text = fields.nested("text")
    chat |= given(text, format="response_format")
    form = text.get("format", {})
    if form.get("type") == "json_schema":
        described = given(text.inner(form, "format", _FORMAT), *_DESCRIBED)
        chat["response_format"] = {"type": "json_schema", "json_schema": described}
    namespaces, chat["tools"] = dict[str, str](), list[Json]()
    for where, item in fields.entries("tools"):
        namespace, inner, outer = "", [(where, item)], fields
        if item.get("type") == "namespace":
            outer = fields.inner(item, where, _NAMESPACE)
            namespace, inner = outer.needed("name"), [*outer.entries("tools")]
        for place, one in inner:
            if is_function(outer, place, one):
                tool = outer.inner(one, place, _FUNCTION)
                name = _full_name(namespace, tool.needed("name"))
                chat["tools"].append(function_tool(tool, name))
                namespaces |= {name: namespace} if namespace else {}
    choice = fields.get("tool_choice")
    chat["tool_choice"] = _tool_choice(fields, choice) if isinstance(choice, dict) else choice
    told = given(fields, instructions="content")
    chat["messages"] = [*([{"role": "system", **told}] if told else []), *_input(fields)]
    parsed = parse_as_chat(chat, fields, model, "response", _NAMES)
    echo: Json = {}
    for key in _ECHOED:
        more = {**echo, key: fields.values.get(key)}
        if more[key] is not None and len(json.dumps(more)) <= _MAX_ECHO:
            echo = more
    return replace(parsed, reply=replace(parsed.reply, echo=json.dumps(echo), namespaces=namespaces))


def _full_name(namespace: str | None, name: str) -> str:
    full = f"{_prefix(namespace)}{name}"
    return full if len(full) <= p.MAX_TOOL_NAME else name


def _prefix(namespace: str | None) -> str:
    return f"{namespace.removesuffix(_JOINT)}{_JOINT}" if namespace else ""


def _input(fields: t.BodyFields) -> list[Json]:
    value = fields.get("input")
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    found: list[Json] = []
    reasoning = ""
    for where, one in fields.entries("input"):
        if one.get("type") in _OF_SERVERS:
            fields.ignore(f"{where}.{one['type']}")
            continue
        kind, item = fields.kind(one, where, _ITEMS, usual="message")
        match kind:
            case "message":
                found.append({"role": item.get("role"), "content": content_text(item, "content", _PARTS)})
            case "function_call" | "custom_tool_call":
                custom = kind == "custom_tool_call"
                written = json.dumps({"input": item.needed("input")}) if custom else item.needed("arguments")
                name = _full_name(item.get("namespace"), item.needed("name"))
                call = function_call(item.needed("call_id"), name, written)
                if not found or found[-1]["role"] != "assistant":
                    found.append({"role": "assistant", "content": None})
                found[-1].setdefault("tool_calls", []).append(call)
            case "reasoning":  # belongs to the assistant's next message
                reasoning = content_text(item, "content", _REASONING) if item.get("content") else ""
                continue
            case _:
                output = content_text(item, "output", _PARTS)
                found.append({"role": "tool", "tool_call_id": item.needed("call_id"), "content": output})
        if reasoning and found[-1]["role"] == "assistant":
            found[-1].setdefault("reasoning_content", reasoning)
        reasoning = ""
    if not found:
        raise fields.wrong("input", "is empty: give at least one message")
    return found


def _tool_choice(fields: t.BodyFields, given: object) -> Json:
    kind, choice = fields.kind(given, "tool_choice", _CHOICES)
    if kind == "function":
        return _chosen(choice)
    tools = [_chosen(tool) for _, tool in choice.kinds("tools", _CHOSEN)]
    return {"type": kind, "allowed_tools": {"mode": choice.get("mode"), "tools": tools}}


def _chosen(choice: t.BodyFields) -> Json:
    name = _full_name(choice.get("namespace"), choice.needed("name"))
    return {"type": "function", "function": {"name": name}}


_USUAL: Final[Json] = {"temperature": None, "tool_choice": "auto", "tools": [], "top_p": None}
_WRITTEN: Final[Mapping[object, str]] = {
    "message": "output_text", "reasoning": "reasoning_text", "function_call": "function_call_arguments",
}  # fmt: skip
_BEGUN: Final[Mapping[str, Json]] = {
    "message": {"role": "assistant", "content": []}, "reasoning": {"summary": [], "content": []},
}  # fmt: skip


class ResponsesFormat(AnswerFormat):
    """Writes one choice. Each run of text, each run of reasoning and each tool call is one item."""

    always_bytes = True
    _number = 0
    _cut = False
    _open = ""  # the type of the last item while it is being written
    _part: Json  # its content
    _written: list[str]  # its text or arguments
    _place: Json  # the fields of events that name the item

    def opening(self) -> Sequence[bytes]:
        begun = self._response("in_progress")
        return [self._event(kind, response=begun) for kind in ("created", "in_progress")]

    def frames(self, _choice: int, piece: TextPiece) -> Sequence[bytes]:
        self.scores.keep(piece)
        frames: list[bytes] = []
        for part in self.parsers[0].feed(piece.text, piece.last):
            match part:
                case CallBegun(index=index, name=name):
                    namespace = self.reply.namespaces.get(name, "")
                    own = {"name": name.removeprefix(_prefix(namespace))}
                    own |= {"namespace": namespace} if namespace else {}
                    identity = call_id(self.accepted.name, 0, index)
                    frames += self._begun("function_call", call_id=identity, **own, arguments="")
                case CallArguments(text=text):
                    frames.append(self._delta(text))
                case CallEnded(broken=broken):
                    self.scores.pop()
                    frames += self._done("incomplete" if broken else "completed")
                case OutputText(text=text, reasoning=reasoning):
                    kind = "reasoning" if reasoning else "message"
                    frames += self._begun(kind) if self._open != kind else []
                    frames.append(self._delta(text))
        if piece.last is None:
            return frames
        self._cut = piece.last == "length"
        if self._open == "message":
            self._part["logprobs"] += self.scores.pop()  # scores of tokens without text
        if not self.items:
            frames += self._begun("message")
        return frames + self._done("incomplete" if self._cut else "completed")

    def closing(self) -> Sequence[bytes]:
        response = self.whole([()])
        return [self._event(response["status"], response=response)]

    def broken(self, error: ApiError) -> bytes:
        told = {"code": "server_error", "message": error.message}
        return self._event("failed", response=self._ended("failed", error=told))

    def whole(self, pieces: Sequence[Sequence[TextPiece]]) -> Json:
        for piece in pieces[0]:
            self.frames(0, piece)
        cut = {"reason": "max_output_tokens"}
        return self._ended("incomplete", incomplete_details=cut) if self._cut else self._ended("completed")

    def _begun(self, kind: str, **call: object) -> list[bytes]:
        frames, number = self._done("completed"), len(self.items)
        identity = f"{kind}-{number}-{self.accepted.name.partition('-')[2]}"
        item: Json = {"id": identity, "type": kind, "status": "in_progress", **(call or _BEGUN[kind])}
        self.items.append(item)
        self._open, self._written = kind, []
        more: Json = {"annotations": [], "logprobs": []} if kind == "message" else {}
        self._part = {"type": _WRITTEN[kind], "text": "", **more}
        self._place = {"item_id": identity, "output_index": number, **({} if call else {"content_index": 0})}
        frames.append(self._event("output_item.added", output_index=number, item=item))
        if not call:
            frames.append(self._event("content_part.added", **self._place, part=self._part))
        return frames

    def _delta(self, text: str) -> bytes:
        scores = self.scores.pop()
        self._written.append(text)
        self._part.get("logprobs", []).extend(scores)
        more: Json = {"logprobs": scores} if self._open == "message" else {}
        return self._event(f"{_WRITTEN[self._open]}.delta", **self._place, delta=text, **more)

    def _done(self, status: str) -> list[bytes]:
        if not self._open:
            return []
        item, part, place, text = self.items[-1], self._part, self._place, "".join(self._written)
        kind, self._open = f"{_WRITTEN[self._open]}.done", ""
        item["status"] = status
        if item["type"] == "function_call":
            item["arguments"] = text
            frames = [self._event(kind, **place, arguments=text, name=item["name"])]
        else:
            part["text"], item["content"] = text, [part]
            shown = {key: part[key] for key in ("text", "logprobs") if key in part}
            frames = [self._event(kind, **place, **shown)]
            frames.append(self._event("content_part.done", **place, part=part))
        return [*frames, self._event("output_item.done", output_index=len(self.items) - 1, item=item)]

    def _event(self, kind: str, **fields: object) -> bytes:
        number, self._number = self._number, self._number + 1
        return typed_event(f"response.{kind}", **fields, sequence_number=number)

    def _ended(self, status: str, **told: Json) -> Json:
        only, prompt_tokens = self.transcripts[0], self.prompt_tokens
        cached = only.finished.cached_tokens if only.finished else 0
        usage: Json = {"input_tokens": prompt_tokens, "input_tokens_details": {"cached_tokens": cached}}
        usage |= {"output_tokens": only.count, "output_tokens_details": {"reasoning_tokens": 0}}
        return self._response(status, usage | {"total_tokens": prompt_tokens + only.count}) | told

    def _response(self, status: str, usage: Json | None = None) -> Json:
        echo: Json = json.loads(self.reply.echo or "{}")
        return {
            "id": self.accepted.name,
            "object": "response",
            "created_at": self.accepted.created,
            "status": status,
            **dict.fromkeys(("error", "incomplete_details", "instructions")),
            "metadata": {},
            "model": self.accepted.model,
            "output": self.items,
            "parallel_tool_calls": self.reply.speech.several,
            "previous_response_id": None,
            "store": False,
            **_USUAL,
            "truncation": "disabled",
            "usage": usage,
            **echo,
            "text": {"format": {"type": "text"}, **echo.get("text", {})},
        }


_ABOUT: Final = "Answer, in the form of OpenAI's responses; none is stored"
RESPONSE: Final = AnswerForm(
    "/v1/responses", _ABOUT, "resp", _RESPONSES, _read_response, ResponsesFormat, "response"
)
