"""Kinds of answers, of every API: what is asked, and an answer as a value that two answers to one question share."""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from tools.streaming import BrokenAnswer, events
from tpiedge.master.reconciler import RECOVERY_GRACE_S

Json = dict[str, Any]
Prompt = str | list[int]
"""Token ids are for completions alone."""

_COMPLETIONS, _CHATS, _RESPONSES = "/v1/completions", "/v1/chat/completions", "/v1/responses"
_MESSAGES, _OLLAMA = "/v1/messages", "/api/chat"
_SAMPLED: Json = {"temperature": 0.8, "presence_penalty": 0.3}
_GREEDY: Json = {"temperature": 0}
_ROWS: Json = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"enum": [1, 2, 3]}},
        "required": ["name", "age"],
        "additionalProperties": False,
    },
    "minItems": 8,
    "maxItems": 8,
}
_CITY: Json = {
    "type": "object",
    "properties": {
        "cities": {"type": "array", "items": {"type": "string", "maxLength": 9}, "minItems": 6, "maxItems": 6}
    },
    "required": ["cities"],
    "additionalProperties": False,
}
_TOOL: Json = {"name": "weather", "description": "Says the weather.", "parameters": _CITY}
_TOOLS: Json = {"tools": [{"type": "function", "function": _TOOL}]}
_FORM: Json = {"response_format": {"type": "json_schema", "json_schema": {"name": "rows", "schema": _ROWS}}}
#: Values that differ between two answers to one question: names, times, and what the cluster went through.
_PASSING = frozenset(
    (
        "id", "role", "call_id", "item_id", "response_id", "tool_call_id", "created", "created_at", "completed_at",
        "object", "type", "model", "sequence_number", "usage", "system_fingerprint", "total_duration", "load_duration",
        "prompt_eval_duration", "eval_duration",
    )
)  # fmt: skip
_PLACES = ("index", "output_index", "content_index")
_AGAIN_S = 0.2


@dataclass(frozen=True)
class Form:
    """One kind: `body` makes a request for an answer of at most so many tokens from a prompt; `whole` is
    an answer that comes in one piece. `resumable`: a client may come again for its rest."""

    name: str
    path: str
    body: Callable[[Prompt, int], Json]
    whole: bool = False
    resumable: bool = True

    def ask(
        self, client: httpx.Client, body: Json, note: Callable[[str], None] = lambda _words: None
    ) -> Iterator[Json]:
        """The events of an answer; of a whole one the only one. Raises BrokenAnswer, httpx.HTTPError, ValueError."""
        if self.path == _OLLAMA:
            return _lines(client, self.path, body)
        if self.whole:
            return iter((whole_answer(client, self.path, body),))
        return events(client, self.path, body, note)


def _completion(more: Json, *, stream: bool = True) -> Callable[[Prompt, int], Json]:
    def body(prompt: Prompt, tokens: int) -> Json:
        fields = {"prompt": prompt, "max_tokens": tokens, "stream": stream, "return_token_ids": True}
        return fields | ({"stream_options": {"include_usage": True}} if stream else {}) | more

    return body


def _chat(more: Json, *, stream: bool = True) -> Callable[[Prompt, int], Json]:
    def body(prompt: Prompt, tokens: int) -> Json:
        fields: Json = {
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": tokens,
            "stream": stream,
        }
        return fields | ({"stream_options": {"include_usage": True}} if stream else {}) | more

    return body


def _response(more: Json) -> Callable[[Prompt, int], Json]:
    return lambda prompt, tokens: {
        "input": prompt,
        "max_output_tokens": tokens,
        "stream": True,
        **_GREEDY,
        **more,
    }


def _message(more: Json, *, stream: bool = True) -> Callable[[Prompt, int], Json]:
    def body(prompt: Prompt, tokens: int) -> Json:
        messages = [{"role": "user", "content": prompt}]
        return {"messages": messages, "max_tokens": tokens, "stream": stream, **_GREEDY, **more}

    return body


def _ollama(more: Json) -> Callable[[Prompt, int], Json]:
    def body(prompt: Prompt, tokens: int) -> Json:
        messages = [{"role": "user", "content": prompt}]
        return {"messages": messages, "options": {"num_predict": tokens, **_GREEDY}, "stream": True, **more}

    return body


_ON = {"ignore_eos": True}
_ANY_TOOL: Json = {"tools": [{"name": "weather", "input_schema": _CITY}], "tool_choice": {"type": "any"}}
_REQUIRED: Json = {"tools": [{"type": "function", **_TOOL}], "tool_choice": "required"}
FORMS = (
    Form("completion, greedy", _COMPLETIONS, _completion(_GREEDY | _ON)),
    Form("completion, sampled", _COMPLETIONS, _completion(_SAMPLED | _ON)),
    Form("completion, three choices", _COMPLETIONS, _completion(_SAMPLED | _ON | {"n": 3})),
    Form("completion, log probabilities", _COMPLETIONS, _completion(_GREEDY | _ON | {"logprobs": 3})),
    Form("completion, echo", _COMPLETIONS, _completion(_GREEDY | _ON | {"echo": True})),
    Form("completion, stop string", _COMPLETIONS, _completion(_SAMPLED | {"stop": [" zebra", ".\n\n\n"]})),
    Form("completion, whole", _COMPLETIONS, _completion(_SAMPLED | _ON, stream=False), whole=True),
    Form(
        "completion, regular expression",
        _COMPLETIONS,
        _completion(_SAMPLED | {"guided_regex": "([a-z]{3} ){24}"}),
    ),
    Form("chat, greedy", _CHATS, _chat(_GREEDY | _ON)),
    Form("chat, schema", _CHATS, _chat(_SAMPLED | _FORM)),
    Form("chat, schema, whole", _CHATS, _chat(_SAMPLED | _FORM, stream=False), whole=True),
    Form("chat, call", _CHATS, _chat(_SAMPLED | _TOOLS | {"tool_choice": "required"})),
    Form("chat, tools offered", _CHATS, _chat(_GREEDY | _TOOLS | _ON)),
    Form("response", _RESPONSES, _response({})),
    Form("response, call", _RESPONSES, _response(_REQUIRED)),
    Form("message", _MESSAGES, _message({})),
    Form("message, call", _MESSAGES, _message(_ANY_TOOL)),
    Form("message, call, whole", _MESSAGES, _message(_ANY_TOOL, stream=False), whole=True),
    Form("ollama, chat", _OLLAMA, _ollama({}), resumable=False),
    Form("ollama, schema", _OLLAMA, _ollama({"format": _ROWS}), resumable=False),
)


def whole_answer(client: httpx.Client, path: str, body: Mapping[str, Any]) -> Json:
    """One answer in one piece, over as many connections as it takes where the master records answers. Raises
    BrokenAnswer, httpx.HTTPError, ValueError."""
    request = ""
    try:
        with client.stream("POST", path, json=body) as answer:
            if "x-resumable" in answer.headers:
                request = answer.headers["x-request-id"]
            return _value(answer)
    except httpx.TransportError:
        if not request:
            raise
    ends = time.monotonic() + RECOVERY_GRACE_S
    while True:
        try:
            with client.stream("GET", f"{path}/{request}") as answer:
                if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE or time.monotonic() > ends:
                    ends = time.monotonic() + RECOVERY_GRACE_S  # it may break again
                    return _value(answer)
        except httpx.TransportError:
            if time.monotonic() > ends:
                raise
        time.sleep(_AGAIN_S)


def _lines(client: httpx.Client, path: str, body: Mapping[str, Any]) -> Iterator[Json]:
    with client.stream("POST", path, json=body) as answer:
        if answer.status_code != httpx.codes.OK:
            yield _value(answer)
        done = False
        for line in answer.iter_lines():
            said = json.loads(line)
            if "error" in said:
                raise BrokenAnswer(line)
            done = bool(said["done"])
            yield said
        if not done:
            raise BrokenAnswer("the lines of an answer ended early")


def _value(answer: httpx.Response) -> Json:
    data = answer.read()
    if answer.status_code != httpx.codes.OK:
        raise BrokenAnswer(f"{answer.status_code}: {data.decode(errors='replace')}")
    found: Json = json.loads(data)
    if found.get("error"):
        raise BrokenAnswer(json.dumps(found["error"]))
    return found


def folded(said: Iterable[Json]) -> Json:
    """The events of one answer as one value: pieces of a text are joined and lists go on, by place, so that it does not
    depend on how an answer was cut into events."""
    found: Json = {}
    for one in said:
        _fold(one, "", found)
    return found


def differences(found: Json, right: Json) -> str:
    """The places at which two folded answers differ, with what either has there."""
    places = [place for place in {**right, **found} if found.get(place) != right.get(place)]
    return "; ".join(f"{place}: {found.get(place)!r} where {right.get(place)!r} belongs" for place in places)


def _fold(value: Any, place: str, found: Json) -> None:
    if isinstance(value, dict):
        place += "".join(f"[{value[name]}]" for name in _PLACES if name in value)
        for name, part in value.items():
            if name not in _PASSING and name not in _PLACES:
                _fold(part, f"{place}.{name}", found)
    elif isinstance(value, list):
        for part in value:
            if isinstance(part, dict) and "index" in part:
                _fold(part, place, found)
            else:
                found.setdefault(place, []).append(_lasting(part))
    elif isinstance(value, str):
        found[place] = found.get(place, "") + value
    elif value is not None:
        found[place] = value


def _lasting(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _lasting(part) for name, part in value.items() if name not in _PASSING}
    return [_lasting(part) for part in value] if isinstance(value, list) else value
