"""Reads chats, completions and embeddings of Ollama's API. Writes JSON lines."""

import json
import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Final

from tpiedge.api import fields as t
from tpiedge.api.answer_grammar import FORM
from tpiedge.api.embeddings import INPUT, POOLED, VectorFormat, embedded, unit_vector
from tpiedge.api.errors import ApiError, ollama_error, refused
from tpiedge.api.formats import AnswerForm, AnswerFormat, Json, json_bytes
from tpiedge.api.openai import EFFORTS, function_call, given, parse_as_chat
from tpiedge.api.parsed import (
    MAX_TOOLS,
    MODEL,
    SAMPLING,
    TOP_LOGPROBS,
    AnsweredAtOnce,
    FormatName,
    ParsedRequest,
)
from tpiedge.api.transcript import TextPiece, call_id, joined
from tpiedge.local.served_models import ServedModel
from tpiedge.model.call_reader import CallEnded
from tpiedge.model.output import OutputText
from tpiedge.wire.requests import Sampling

_MAX_LIMIT: Final = 2**31
_OPTIONS: Final = {
    **{key: key for key in ("temperature", "top_p", "top_k", "min_p", "seed", "stop")},
    "repeat_penalty": "repetition_penalty",
    **{key: key for key in ("presence_penalty", "frequency_penalty")},
}
"""Maps names of Ollama's options to names of a chat's fields."""
_NAMES: Final = {ours: f"options.{theirs}" for theirs, ours in _OPTIONS.items()} | {
    "max_tokens": "options.num_predict",
    "response_format": "format",
    "response_format.json_schema.schema": "format",
}
_NO_IMAGES: Final = t.unsupported(why=", as images are not supported: only text is read here")
_CALL: Final = t.body("function", function=t.body(name=t.TEXT, arguments=t.OBJECT), id=t.text())
_SAID: Final = {
    "content": t.text(),
    "images": _NO_IMAGES,
    "thinking": t.text(),
    "tool_calls": t.array(_CALL),
}
_RESULT: Final = {"tool_call_id": t.text(), "tool_name": t.text(), "name": t.text()}
_MESSAGES: Final = t.tagged(
    "role", **dict.fromkeys(("system", "user", "assistant"), t.body(**_SAID)), tool=t.body(**_SAID | _RESULT)
)
_KEEP: Final[dict[str, t.JsonSchema]] = {
    "keep_alive": t.any_of(
        {"type": "number"},
        {"type": "string", "maxLength": 40},
        {"type": "null"},
        description="How long the weights stay in memory without requests: seconds, or a duration like 5m; 0: not at "
        "all; negative: for ever.",
    )
}
_ANSWERING: Final[dict[str, t.JsonSchema]] = {
    **FORM,
    **_KEEP,
    "model": MODEL,
    "stream": t.flag("Whether the answer comes in lines of JSON.", default=True),
    "options": t.optional(
        t.body(
            **{theirs: SAMPLING[ours] for theirs, ours in _OPTIONS.items() if ours in SAMPLING},
            stop=t.any_of(t.TEXT, t.array(t.TEXT)),
            num_predict=t.integer(-2, _MAX_LIMIT, "Tokens of the answer; -1, -2: as many as fit.")
            | {"default": -1},
        ),
        "Sampling of the answer.",
    ),
    "format": {
        "description": "`json`, or a schema that the answer has.",
        "type": ["string", "object", "null"],
    },
    "logprobs": t.flag("Whether to report log probabilities."),
    "top_logprobs": TOP_LOGPROBS,
    "think": {
        "description": "Whether a reasoning model reasons, or how much: low, medium or high.",
        "type": ["boolean", "string", "null"],
    },
}
_CHAT: Final = t.body(
    **_ANSWERING,
    messages=t.array(t.any_of(*_MESSAGES.values())),
    tools=t.array(t.OBJECT, most=MAX_TOOLS),
)
_GENERATE: Final = t.body(
    **_ANSWERING,
    prompt=t.text(),
    system=t.text(),
    raw=t.flag("Whether the prompt is not put into the model's template."),
    **dict.fromkeys(("suffix", "template"), t.unsupported("")),
    images=_NO_IMAGES,
)
_NEW_EMBED: Final = t.body("input", **POOLED, **_KEEP, input=INPUT)
_OLD_EMBED: Final = t.body("prompt", **POOLED, **_KEEP, prompt=t.TEXT)
_UNITS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION: Final = re.compile(rf"([0-9]*\.?[0-9]+)({'|'.join(_UNITS)})")
_THERE: Final = "on the master's computer"
ABSENT: Final[Mapping[str, tuple[tuple[str, ...], str]]] = {
    "/api/pull": (("POST",), f"models are fetched {_THERE}: run 'tpiedge pull NAME'"),
    "/api/delete": (("DELETE",), f"models are deleted {_THERE}: run 'tpiedge rm NAME'"),
    "/api/copy": (
        ("POST",),
        "models are not copied: 'tpiedge master MODEL --alias NAME' gives one another name",
    ),
    "/api/create": (
        ("POST",),
        f"models are not made by the API: run 'tpiedge import-gguf FILE' or 'tpiedge pull NAME' {_THERE}",
    ),
    "/api/push": (("POST",), "models are not published: 'tpiedge unpack PACK OUT' writes one to upload"),
    "/api/blobs/{digest}": (
        ("HEAD", "POST"),
        f"files are not uploaded: run 'tpiedge import-gguf FILE' {_THERE}",
    ),
}
"""Routes of Ollama that are refused, by path: (methods, what to do instead)."""


def _read_chat(fields: t.BodyFields, model: ServedModel) -> ParsedRequest:
    """Reads a chat. Tool results without ids have the order of their calls."""
    chat, messages = _chat_fields(fields), list[Json]()
    for role, message in fields.kinds("messages", _MESSAGES, "role"):
        said: Json = {"role": role, "content": message.get("content") or ""}
        if message.get("thinking"):
            said["reasoning_content"] = message.get("thinking")
        calls: list[Json] = []
        for where, item in message.entries("tool_calls"):
            call = message.inner(item, where, _CALL)
            function = call.nested("function")
            arguments = json.dumps(function.get("arguments") or {}, ensure_ascii=False)
            calls.append(function_call(call.get("id"), function.needed("name"), arguments))
        if calls:
            said["tool_calls"] = calls
        if role == "tool":
            said["tool_call_id"] = message.get("tool_call_id")
            said["name"] = message.get("tool_name") or message.get("name")
        messages.append(said)
    if not messages:
        raise _loaded(fields, model, {"message": {"role": "assistant", "content": ""}})
    chat["messages"] = messages
    # If the last message is an assistant's, the answer continues it.
    chat["continue_final_message"] = messages[-1]["role"] == "assistant" and "tool_calls" not in messages[-1]
    chat |= given(fields, "tools")
    return replace(parse_as_chat(chat, fields, model, "ollama-chat", _NAMES), keep_s=_keep_s(fields))


def _read_generate(fields: t.BodyFields, model: ServedModel) -> ParsedRequest:
    chat = _chat_fields(fields)
    raw, system, prompt = fields.get("raw", False), fields.get("system"), fields.get("prompt")
    if not prompt:
        raise _loaded(fields, model, {"response": ""})
    if raw or model.template is None:  # without the model's template
        chat.pop("chat_template_kwargs", None)
        top = chat.pop("top_logprobs", None)
        if chat.pop("logprobs", False):
            chat["logprobs"] = top or 0  # the form that completions have
        for key in ("system", "think"):
            if fields.get(key):
                fields.ignore(key)
        chat["prompt"] = prompt
    else:
        told = [{"role": "system", "content": system}] if system else []
        chat["messages"] = [*told, {"role": "user", "content": prompt}]
    parsed = parse_as_chat(chat, fields, model, "ollama-generate", _NAMES | {"messages": "prompt"})
    return replace(parsed, keep_s=_keep_s(fields))


def _read_vectors(fields: t.BodyFields, model: ServedModel, key: str, form: FormatName) -> ParsedRequest:
    return replace(embedded(fields, model, key, form), keep_s=_keep_s(fields))


def _keep_s(fields: t.BodyFields) -> float | None:
    """Reads `keep_alive` in seconds; infinity if it is negative. Raises ApiError."""
    value = fields.get("keep_alive")
    if isinstance(value, str):
        bare = value.strip().removeprefix("-")
        parts = _DURATION.findall(bare)
        if bare.isdecimal():
            seconds = float(bare)
        elif bare and "".join(map("".join, parts)) == bare:
            seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
        else:
            raise fields.wrong("keep_alive", "is no duration: give seconds, or one like 5m or 1h30m")
        value = -seconds if value.strip().startswith("-") else seconds
    elif value is not None and type(value) not in (int, float):
        raise fields.wrong_type("keep_alive", "a number or a string", value)
    return math.inf if value is not None and value < 0 else value


def _loaded(fields: t.BodyFields, model: ServedModel, said: Json) -> AnsweredAtOnce:
    """Answers a request without a prompt, which only loads or unloads the model."""
    keep_s = _keep_s(fields)
    end = {"done": True, "done_reason": "unload" if keep_s == 0 else "load"}
    head = {"model": model.name, "created_at": moment(time.time())}
    return AnsweredAtOnce({**head, **said, **end}, fields.ignored, model.digest, keep_s)


def _chat_fields(fields: t.BodyFields) -> Json:
    options = fields.nested("options")
    chat: Json = {"stream": fields.get("stream", True), **given(options, **_OPTIONS)}
    limit = options.get("num_predict")
    # Ollama's answers have no default limit.
    chat["max_tokens"] = _MAX_LIMIT if limit is None or limit < 0 else max(1, limit)
    scored, top = fields.get("logprobs", False), fields.get("top_logprobs")
    if scored:
        chat |= {"logprobs": True, "top_logprobs": top}
    elif top:
        raise fields.wrong("top_logprobs", "needs 'logprobs': true")
    form, think = fields.get("format"), fields.get("think")
    if isinstance(form, dict):
        chat["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": form}}
    elif form == "json":
        chat["response_format"] = {"type": "json_object"}
    elif form not in (None, ""):
        raise refused("'format' must be 'json' or a schema", "format")
    if think is not None:
        effort = {"reasoning_effort": think} if think in EFFORTS else {}
        chat["chat_template_kwargs"] = {"enable_thinking": bool(think), **effort}
    return chat


class OllamaFormat(AnswerFormat):
    stream_type = "application/x-ndjson"
    failure = staticmethod(ollama_error)

    def frames(self, _choice: int, piece: TextPiece) -> Sequence[bytes]:
        self.scores.keep(piece)
        parts = self.parsers[0].feed_whole(piece.text, piece.last)
        return [json_bytes(self._shown([one], self.scores.pop()) | {"done": False}) + b"\n" for one in parts]

    def closing(self) -> Sequence[bytes]:
        return (json_bytes(self._shown([], self.scores.pop()) | self._end()) + b"\n",)

    def alive(self, _why: str) -> bytes:
        """Returns a JSON line without text. Ollama's clients fail at an empty line."""
        return json_bytes(self._shown([]) | {"done": False}) + b"\n"

    def broken(self, error: ApiError) -> bytes:
        return json_bytes(ollama_error(error)) + b"\n"

    def whole(self, pieces: Sequence[Sequence[TextPiece]]) -> Json:
        parts: list[OutputText | CallEnded] = []
        for piece in pieces[0]:
            self.scores.keep(piece)
            parts += self.parsers[0].feed_whole(piece.text, piece.last)
        return self._shown(parts, self.scores.pop()) | self._end()

    def _shown(self, parts: Sequence[OutputText | CallEnded], scores: Sequence[object] = ()) -> Json:
        text, reasoning = joined(parts, reasoning=False), joined(parts, reasoning=True)
        more: Json = {"thinking": reasoning} if reasoning else {}
        shown: Json = {"response": text, **more}
        if self.reply.format == "ollama-chat":
            calls = [self._call(one) for one in parts if isinstance(one, CallEnded)]
            more |= {"tool_calls": calls} if calls else {}
            shown = {"message": {"role": "assistant", "content": text, **more}}
        shown |= {"logprobs": scores} if scores else {}
        return {"model": self.accepted.model, "created_at": moment(time.time()), **shown}

    def _call(self, call: CallEnded) -> Json:
        function = {"name": call.name, "arguments": json.loads(call.arguments), "index": call.index}
        return {"id": call_id(self.accepted.name, 0, call.index), "function": function}

    def _end(self) -> Json:
        transcript, now = self.transcripts[0], time.monotonic()
        first = now if transcript.first_s is None else transcript.first_s
        cut = transcript.finished and transcript.finished.reason == "length" and not transcript.writer.stop
        return {
            "done": True,
            "done_reason": "length" if cut else "stop",
            "total_duration": _ns(now - self.begun_s),
            "load_duration": 0,
            "prompt_eval_count": self.prompt_tokens,
            "prompt_eval_duration": _ns(first - self.begun_s),
            "eval_count": transcript.count,
            "eval_duration": _ns(now - first),
        }


class OllamaVectors(VectorFormat):
    """Writes vectors of /api/embed, or the unnormalised vector of /api/embeddings."""

    failure = staticmethod(ollama_error)

    @property
    def _old(self) -> bool:
        return self.reply.format == "ollama-embeddings"

    def opening(self) -> Sequence[bytes]:
        return (b'{"embedding": ' if self._old else b'{"embeddings": [',)

    def entry(self, _number: int, values: Sequence[float]) -> object:
        return list(values) if self._old else unit_vector(values)

    def closing(self) -> Sequence[bytes]:
        if self._old:
            return (b"}",)
        rest = {
            "model": self.accepted.model,
            "total_duration": _ns(time.monotonic() - self.begun_s),
            "load_duration": 0,
            "prompt_eval_count": self.prompt_tokens,
        }
        return (b"], " + json_bytes(rest)[1:],)


def usual_parameters(usual: Sampling) -> str:
    """Returns sampling defaults as lines of a Modelfile."""
    values = {theirs: getattr(usual, ours, None) for theirs, ours in _OPTIONS.items() if ours != "seed"}
    return "\n".join(f"{name} {value}" for name, value in values.items() if value is not None)


def moment(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _ns(seconds: float) -> int:
    return max(0, round(seconds * 1e9))


CHAT: Final = AnswerForm(
    "/api/chat", "Answer a chat, as Ollama does", "chat", _CHAT, _read_chat, OllamaFormat
)
GENERATE: Final = AnswerForm(
    "/api/generate", "Continue a text, as Ollama does", "generate", _GENERATE, _read_generate, OllamaFormat
)
_NEW, _OLD = "Vectors of texts, as of Ollama", "A vector of a text, as of older versions of Ollama"
_read_new_embed = partial(_read_vectors, key="input", form="ollama-embed")
_read_old_embed = partial(_read_vectors, key="prompt", form="ollama-embeddings")
EMBED: Final = AnswerForm("/api/embed", _NEW, "embed", _NEW_EMBED, _read_new_embed, OllamaVectors)
OLD_EMBED: Final = AnswerForm("/api/embeddings", _OLD, "embed", _OLD_EMBED, _read_old_embed, OllamaVectors)
