"""Plausible answers of the APIs that clients speak, so that these go on to the next use: shapes, and nothing behind
them."""

import base64
import json
import struct
from collections.abc import Mapping

from tpiedge.api.completions import name_usual_path

Json = dict[str, object]

_MODEL = "demo"
_TEXT = '{"answer": "Once upon a time"}'
_VALUES: Json = {"integer": 1, "number": 1.5, "boolean": True, "array": [], "object": {}}
_PIECES = ('{"answer": ', '"Once upon a time"}')
_WIDTH = 8
_USAGE = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}
_MESSAGES_USAGE = {"input_tokens": 7, "output_tokens": 5}
_WHEN = "2026-01-01T00:00:00Z"
_DETAILS = {
    "parent_model": "",
    "format": "gguf",
    "family": "llama",
    "families": ["llama"],
    "parameter_size": "1M",
    "quantization_level": "F32",
}
_DURATIONS = {
    "total_duration": 9_000_000,
    "load_duration": 1_000_000,
    "prompt_eval_count": 7,
    "prompt_eval_duration": 2_000_000,
    "eval_count": 5,
    "eval_duration": 5_000_000,
}


def answer(method: str, path: str, body: object) -> tuple[str, bytes]:
    """Returns content type and body. Raises KeyError for a path that no known client asks for."""
    usual: dict[str, object] = {"path": path}
    name_usual_path(usual)
    path = str(usual["path"])
    if path.startswith("/v1/models/"):
        return _json(_card())
    make = _ANSWERS[method, path]
    return make(body if isinstance(body, dict) else {})


def _json(value: object) -> tuple[str, bytes]:
    return "application/json", json.dumps(value).encode()


def _nothing(_body: Mapping[str, object]) -> tuple[str, bytes]:
    return "text/html", b""


def _events(*events: object, named: bool = False, done: bool = False) -> tuple[str, bytes]:
    text = ""
    for one in events:
        if named and isinstance(one, dict):
            text += f"event: {one['type']}\n"
        text += f"data: {json.dumps(one)}\n\n"
    if done:
        text += "data: [DONE]\n\n"
    return "text/event-stream", text.encode()


def _lines(*values: object) -> tuple[str, bytes]:
    return "application/x-ndjson", "".join(json.dumps(value) + "\n" for value in values).encode()


def _card() -> Json:
    return {"id": _MODEL, "object": "model", "created": 1_700_000_000, "owned_by": "somebody"}


def _models(_body: Mapping[str, object]) -> tuple[str, bytes]:
    return _json({"object": "list", "data": [_card()]})


def _call(body: Mapping[str, object]) -> tuple[str, Json] | None:
    """The call of a tool, its name and arguments: of the first one, unless its result is there already."""
    messages = body.get("messages") or body.get("input")
    last = messages[-1] if isinstance(messages, list) and messages else {}
    answered = isinstance(last, dict) and (
        last.get("role") == "tool" or last.get("type") == "function_call_output" or "tool_result" in str(last)
    )
    tools = body.get("tools")
    if answered or not isinstance(tools, list) or not tools:
        return None
    tool = tools[0].get("function") or tools[0]
    schema = tool.get("parameters") or tool.get("input_schema") or {}
    properties = schema.get("properties") or {}
    wanted = schema.get("required") or list(properties)[:1]
    return str(tool["name"]), {name: _value(properties.get(name) or {}) for name in wanted}


def _value(schema: Mapping[str, object]) -> object:
    """Returns a plausible value of a parameter."""
    choices = schema.get("enum")
    if isinstance(choices, list):
        return choices[0]
    return _VALUES.get(str(schema.get("type")), "Paris")


def _chat(body: Mapping[str, object]) -> tuple[str, bytes]:
    called = _call(body)
    head = {"id": "chatcmpl-1", "created": 1_700_000_000, "model": _MODEL}
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": called[0], "arguments": json.dumps(called[1])} if called else {},
    }
    reason = "stop" if called is None else "tool_calls"
    if not body.get("stream"):
        message = {"role": "assistant", "content": _TEXT if called is None else None, "refusal": None}
        if called is not None:
            message["tool_calls"] = [call]  # type: ignore[assignment]
        choice = {"index": 0, "message": message, "finish_reason": reason, "logprobs": None}
        return _json({**head, "object": "chat.completion", "choices": [choice], "usage": _USAGE})
    deltas: list[Json] = [{"role": "assistant", "content": ""}]
    deltas += (
        [{"content": piece} for piece in _PIECES]
        if called is None
        else [{"tool_calls": [{"index": 0, **call}]}]
    )
    chunks = [
        {**head, "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta}]}
        for delta in deltas
    ]
    last = {"index": 0, "delta": {}, "finish_reason": reason}
    chunks.append({**head, "object": "chat.completion.chunk", "choices": [last]})
    chunks.append({**head, "object": "chat.completion.chunk", "choices": [], "usage": _USAGE})
    return _events(*chunks, done=True)


def _completion(body: Mapping[str, object]) -> tuple[str, bytes]:
    head = {
        "id": "cmpl-1",
        "object": "text_completion",
        "created": 1_700_000_000,
        "model": _MODEL,
        "usage": _USAGE,
    }
    if not body.get("stream"):
        return _json({**head, "choices": [{"index": 0, "text": _TEXT, "finish_reason": "stop"}]})
    pieces = [{**head, "choices": [{"index": 0, "text": piece, "finish_reason": None}]} for piece in _PIECES]
    return _events(
        *pieces, {**head, "choices": [{"index": 0, "text": "", "finish_reason": "stop"}]}, done=True
    )


def _vectors(given: object) -> int:
    return len(given) if isinstance(given, list) and given and not isinstance(given[0], int) else 1


def _embeddings(body: Mapping[str, object]) -> tuple[str, bytes]:
    values = [0.25] * _WIDTH
    vector: object = values
    if body.get("encoding_format") == "base64":
        vector = base64.b64encode(struct.pack(f"<{_WIDTH}f", *values)).decode()
    data = [
        {"object": "embedding", "index": n, "embedding": vector} for n in range(_vectors(body.get("input")))
    ]
    usage = {"prompt_tokens": 7, "total_tokens": 7}
    return _json({"object": "list", "data": data, "model": _MODEL, "usage": usage})


def _responses(body: Mapping[str, object]) -> tuple[str, bytes]:
    called = _call(body)
    text = {"type": "output_text", "text": _TEXT, "annotations": [], "logprobs": []}
    item: Json = {
        "id": "msg_1", "type": "message", "status": "completed", "role": "assistant", "content": [text]
    }  # fmt: skip
    if called is not None:
        item = {
            "id": "fc_1", "type": "function_call", "status": "completed", "call_id": "call_1", "name": called[0],
            "arguments": json.dumps(called[1]),
        }  # fmt: skip
    usage = {
        "input_tokens": 7,
        "output_tokens": 5,
        "total_tokens": 12,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }
    whole: Json = {
        "id": "resp_1",
        "object": "response",
        "created_at": 1_700_000_000,
        "status": "completed",
        "model": _MODEL,
        "output": [item],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": usage,
    }
    if not body.get("stream"):
        return _json(whole)
    begun = {**whole, "status": "in_progress", "output": [], "usage": None}
    place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    events: list[Json] = [
        {"type": "response.created", "response": begun},
        {"type": "response.in_progress", "response": begun},
        {"type": "response.output_item.added", "output_index": 0, "item": {**item, "status": "in_progress"}},
    ]
    if called is None:
        empty = {**text, "text": ""}
        events += [
            {"type": "response.content_part.added", **place, "part": empty},
            *(
                {"type": "response.output_text.delta", **place, "delta": piece, "logprobs": []}
                for piece in _PIECES
            ),
            {"type": "response.output_text.done", **place, "text": _TEXT, "logprobs": []},
            {"type": "response.content_part.done", **place, "part": text},
        ]
    events += [
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": whole},
    ]
    return _events(*({**event, "sequence_number": n} for n, event in enumerate(events)), named=True)


def _messages(body: Mapping[str, object]) -> tuple[str, bytes]:
    called = _call(body)
    block: Json = {"type": "text", "text": _TEXT}
    if called is not None:
        block = {"type": "tool_use", "id": "toolu_1", "name": called[0], "input": called[1]}
    reason = "end_turn" if called is None else "tool_use"
    head: Json = {"id": "msg_1", "type": "message", "role": "assistant", "model": _MODEL}
    if not body.get("stream"):
        ended = {"stop_reason": reason, "stop_sequence": None, "usage": _MESSAGES_USAGE}
        return _json({**head, "content": [block], **ended})
    begun = {**head, "content": [], "stop_reason": None, "stop_sequence": None, "usage": _MESSAGES_USAGE}
    deltas = [{"type": "text_delta", "text": piece} for piece in _PIECES]
    empty: Json = {"type": "text", "text": ""}
    if called is not None:
        deltas = [{"type": "input_json_delta", "partial_json": json.dumps(called[1])}]
        empty = {**block, "input": {}}
    return _events(
        {"type": "message_start", "message": begun},
        {"type": "content_block_start", "index": 0, "content_block": empty},
        *({"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": reason, "stop_sequence": None},
            "usage": _MESSAGES_USAGE,
        },
        {"type": "message_stop"},
        named=True,
    )


def _counted(_body: Mapping[str, object]) -> tuple[str, bytes]:
    return _json({"input_tokens": 7})


def _ollama_chat(body: Mapping[str, object]) -> tuple[str, bytes]:
    called = _call(body)
    head = {"model": _MODEL, "created_at": _WHEN}
    end = {**head, "done": True, "done_reason": "stop", **_DURATIONS}
    if called is not None:
        call = {"function": {"name": called[0], "arguments": called[1]}}
        message: Json = {"role": "assistant", "content": "", "tool_calls": [call]}
        if body.get("stream") is False:
            return _json({**end, "message": message})
        last = {"role": "assistant", "content": ""}
        return _lines({**head, "done": False, "message": message}, {**end, "message": last})
    if body.get("stream") is False:
        return _json({**end, "message": {"role": "assistant", "content": _TEXT}})
    said = [{**head, "done": False, "message": {"role": "assistant", "content": one}} for one in _PIECES]
    return _lines(*said, {**end, "message": {"role": "assistant", "content": ""}})


def _generate(body: Mapping[str, object]) -> tuple[str, bytes]:
    head = {"model": _MODEL, "created_at": _WHEN}
    end = {**head, "done": True, "done_reason": "stop", "context": [1, 2, 3], **_DURATIONS}
    if body.get("stream") is False:
        return _json({**end, "response": _TEXT})
    return _lines(*({**head, "done": False, "response": one} for one in _PIECES), {**end, "response": ""})


def _tags(_body: Mapping[str, object]) -> tuple[str, bytes]:
    model = {
        "name": f"{_MODEL}:latest",
        "model": f"{_MODEL}:latest",
        "modified_at": _WHEN,
        "size": 1_000_000,
        "digest": "0" * 64,
        "details": _DETAILS,
    }
    return _json({"models": [{**model, "expires_at": _WHEN, "size_vram": 0}]})


def _show(_body: Mapping[str, object]) -> tuple[str, bytes]:
    found = {"modelfile": "", "parameters": "", "template": "", "details": _DETAILS}
    return _json(
        {
            **found,
            "model_info": {"general.architecture": "llama"},
            "capabilities": ["completion", "embedding", "tools"],
        }
    )


def _version(_body: Mapping[str, object]) -> tuple[str, bytes]:
    return _json({"version": "0.12.0"})


def _embed(body: Mapping[str, object]) -> tuple[str, bytes]:
    vectors = [[0.25] * _WIDTH] * _vectors(body.get("input"))
    return _json({"model": _MODEL, "embeddings": vectors, "total_duration": 9, "prompt_eval_count": 7})


def _old_embed(_body: Mapping[str, object]) -> tuple[str, bytes]:
    return _json({"embedding": [0.25] * _WIDTH})


_ANSWERS = {
    ("HEAD", "/"): _nothing,
    ("GET", "/v1/models"): _models,
    ("POST", "/v1/chat/completions"): _chat,
    ("POST", "/v1/fim/completions"): _chat,
    ("POST", "/v1/completions"): _completion,
    ("POST", "/v1/embeddings"): _embeddings,
    ("POST", "/v1/responses"): _responses,
    ("POST", "/v1/messages"): _messages,
    ("POST", "/v1/messages/count_tokens"): _counted,
    ("POST", "/api/chat"): _ollama_chat,
    ("POST", "/api/generate"): _generate,
    ("GET", "/api/tags"): _tags,
    ("GET", "/api/ps"): _tags,
    ("POST", "/api/show"): _show,
    ("GET", "/api/version"): _version,
    ("POST", "/api/embed"): _embed,
    ("POST", "/api/embeddings"): _old_embed,
}
