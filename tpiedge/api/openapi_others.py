"""The routes of other APIs in the OpenAPI document: OpenAI's responses, Anthropic's messages, and Ollama's.

Each becomes a chat, a completion or embeddings, so what a field means is told in `openapi_fields`; objects within a
request are as those APIs have them.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from tpiedge.api.asked import MAX_TOKENS
from tpiedge.api.openapi_fields import EMBEDDINGS, SAMPLING
from tpiedge.api.openapi_forms import FORM
from tpiedge.api.openapi_parts import (
    COUNT,
    EVENTS,
    MODEL,
    NUMBER,
    TEXT,
    JsonSchema,
    answer,
    body,
    flag,
    integer,
    kept,
    operation,
    ref,
    reply,
)
from tpiedge.engine.sampling import MAX_LOGPROBS

_OBJECT: Final[JsonSchema] = {"type": ["object", "null"]}
_OBJECTS: Final[JsonSchema] = {"type": "array", "items": {"type": "object"}}
_TOOLS: Final[JsonSchema] = {"type": ["array", "null"], "items": {"type": "object"}}
_MAYBE_TEXT: Final[JsonSchema] = {"type": ["string", "null"]}
_TEXT_OR_PARTS: Final[JsonSchema] = {"anyOf": [TEXT, _OBJECTS]}
_LINES: Final = "application/x-ndjson"


def _said(roles: Sequence[str], content: JsonSchema) -> JsonSchema:
    return body({"role": {"enum": list(roles)}, "content": content}, ["role"])


_NOT_STORED: Final[JsonSchema] = {
    "type": "null",
    "description": "No answer is stored: send the whole conversation.",
}

RESPONSES: Final[dict[str, JsonSchema]] = {
    **FORM,
    "model": MODEL,
    "previous_response_id": _NOT_STORED,
    "conversation": _NOT_STORED,
    "prompt": _NOT_STORED,
    "input": {
        "anyOf": [
            TEXT,
            {
                "type": "array",
                "minItems": 1,
                "items": _said(["system", "developer", "user", "assistant"], _TEXT_OR_PARTS),
            },
        ]
    },
    "instructions": _MAYBE_TEXT,
    "max_output_tokens": integer(
        -1, MAX_TOKENS, "Of the answer, at least 1; -1: as many as there is room for."
    ),
    "temperature": SAMPLING["temperature"],
    "top_p": SAMPLING["top_p"],
    "stream": flag("Whether the answer comes as server-sent events."),
    "stream_options": _OBJECT,
    "text": {**_OBJECT, "description": "The form of the text: its `format`."},
    "reasoning": {**_OBJECT, "description": "Its `effort`."},
    "tools": _TOOLS,
    "tool_choice": {"type": ["string", "object", "null"]},
    "parallel_tool_calls": flag("Whether several tools may be called at once."),
    "include": {
        "type": ["array", "null"],
        "items": TEXT,
        "description": "With `message.output_text.logprobs`, probabilities are told.",
    },
    "top_logprobs": integer(0, MAX_LOGPROBS, "How many of the likeliest tokens are told of each."),
    "truncation": {
        "enum": ["auto", "disabled", None],
        "description": "Both are taken: nothing is left out of an input that is too long.",
    },
}

ANTHROPIC: Final[dict[str, JsonSchema]] = {
    **FORM,
    "model": MODEL,
    "max_tokens": integer(0, MAX_TOKENS, "Of the answer; 0 only reads the prompt."),
    "messages": {"type": "array", "minItems": 1, "items": _said(["user", "assistant"], _TEXT_OR_PARTS)},
    "system": {"anyOf": [*_TEXT_OR_PARTS["anyOf"], {"type": "null"}]},  # type: ignore[misc]
    "temperature": SAMPLING["temperature"],
    "top_p": SAMPLING["top_p"],
    "top_k": SAMPLING["top_k"],
    "stop_sequences": {"type": ["array", "null"], "items": TEXT},
    "stream": flag("Whether the answer comes as server-sent events."),
    "thinking": {**_OBJECT, "description": "Its `type`: enabled, adaptive, between_tools or disabled."},
    "tools": _TOOLS,
    "tool_choice": _OBJECT,
    "output_config": {**_OBJECT, "description": "Its `format`, a schema that the answer has."},
    "output_format": {**_OBJECT, "description": "The same schema, by its older name."},
    "thread": _NOT_STORED,
}

_OLLAMA: Final[dict[str, JsonSchema]] = {
    **FORM,
    "model": MODEL,
    "stream": flag("Whether the answer comes in lines of JSON; true without."),
    "options": {
        **_OBJECT,
        "description": "How the answer is drawn: temperature, top_k, num_predict, stop and so on, by Ollama's names.",
    },
    "format": {
        "description": "`json`, or a schema that the answer has.",
        "type": ["string", "object", "null"],
    },
    "logprobs": flag("Whether probabilities are told."),
    "top_logprobs": integer(0, MAX_LOGPROBS, "How many of the likeliest tokens are told; needs `logprobs`."),
    "think": {"description": "Whether a model that can think does.", "type": ["boolean", "string", "null"]},
}

OLLAMA_CHAT: Final[dict[str, JsonSchema]] = {
    **_OLLAMA,
    "messages": {"type": "array", "items": _said(["system", "user", "assistant", "tool"], _MAYBE_TEXT)},
    "tools": _TOOLS,
}

OLLAMA_GENERATE: Final[dict[str, JsonSchema]] = {
    **_OLLAMA,
    "prompt": _MAYBE_TEXT,
    "system": _MAYBE_TEXT,
    "raw": flag("Whether the prompt is not put into the model's template."),
}

_EMBED: Final[dict[str, JsonSchema]] = {
    "model": MODEL,
    "dimensions": EMBEDDINGS["dimensions"],
    "options": _OBJECT,
    "pooling": EMBEDDINGS["pooling"],
}
OLLAMA_EMBED: Final[dict[str, JsonSchema]] = {**_EMBED, "input": EMBEDDINGS["input"]}
OLLAMA_EMBEDDINGS: Final[dict[str, JsonSchema]] = {**_EMBED, "prompt": TEXT}
SHOW: Final[dict[str, JsonSchema]] = {"model": MODEL}

_ANSWERED: Final[dict[str, JsonSchema]] = {"model": TEXT, "created_at": TEXT, "done": {"type": "boolean"}}

OTHER_SCHEMAS: Final[dict[str, JsonSchema]] = {
    "responses_request": body(RESPONSES, ["model", "input"]),
    "messages_request": body(ANTHROPIC, ["model", "messages", "max_tokens"]),
    "count_request": body(ANTHROPIC, ["model", "messages"]),
    "ollama_chat_request": body(OLLAMA_CHAT, ["model", "messages"]),
    "ollama_generate_request": body(OLLAMA_GENERATE, ["model", "prompt"]),
    "ollama_embed_request": body(OLLAMA_EMBED, ["model", "input"]),
    "ollama_embeddings_request": body(OLLAMA_EMBEDDINGS, ["model", "prompt"]),
    "show_request": body(SHOW, ["model"]),
    "response": reply({"id": TEXT, "object": TEXT, "status": TEXT, "model": TEXT, "output": _OBJECTS}),
    "anthropic_message": reply(
        {
            "id": TEXT,
            "type": TEXT,
            "role": TEXT,
            "model": TEXT,
            "content": _OBJECTS,
            "usage": {"type": "object"},
        }
    ),
    "ollama_chat": reply({**_ANSWERED, "message": {"type": "object"}}),
    "ollama_generate": reply({**_ANSWERED, "response": TEXT}),
    "ollama_models": reply({"models": _OBJECTS}),
    "anthropic_error": reply({"type": TEXT, "error": reply({"type": TEXT, "message": TEXT})}),
    "ollama_error": reply({"error": TEXT}),
}


def _anthropic(summary: str, answers: Mapping[str, object], asked: str) -> JsonSchema:
    return {"post": operation(summary, answers, ref(asked), failure="anthropic_error")}


def _ollama(summary: str, shown: str, asked: str, *, lines: bool = False) -> JsonSchema:
    """`lines`: it may be a stream of lines of JSON."""
    answers = answer("The answer", ref(shown), stream=_LINES if lines else "")
    return {"post": operation(summary, answers, ref(asked), failure="ollama_error")}


def _ollama_look(summary: str, shown: JsonSchema) -> JsonSchema:
    return {"get": operation(summary, answer("It", shown), failure="ollama_error")}


_VECTORS: Final = reply({"model": TEXT, "embeddings": {"type": "array"}})
_VECTOR: Final = reply({"embedding": {"type": "array", "items": NUMBER}})

OTHER_PATHS: Final[dict[str, JsonSchema]] = {
    "/v1/responses": {
        "post": operation(
            "Answer, in the form of OpenAI's responses; none is stored",
            answer("The answer", ref("response"), stream=EVENTS),
            ref("responses_request"),
        )
    },
    "/v1/responses/{id}": kept("response", "response"),
    "/v1/messages": _anthropic(
        "Answer, as Anthropic's API does",
        answer("The answer", ref("anthropic_message"), stream=EVENTS),
        "messages_request",
    ),
    "/v1/messages/{id}": kept("message", "anthropic_message", "anthropic_error"),
    "/v1/messages/count_tokens": _anthropic(
        "The tokens of such a request", answer("They", reply({"input_tokens": COUNT})), "count_request"
    ),
    "/api/chat": _ollama("Answer a chat, as Ollama does", "ollama_chat", "ollama_chat_request", lines=True),
    "/api/generate": _ollama(
        "Go on with a text, as Ollama does", "ollama_generate", "ollama_generate_request", lines=True
    ),
    "/api/embed": {
        "post": operation(
            "Vectors of texts, as of Ollama",
            answer("The vectors", _VECTORS),
            ref("ollama_embed_request"),
            failure="ollama_error",
        )
    },
    "/api/embeddings": {
        "post": operation(
            "A vector of a text, as of older versions of Ollama",
            answer("The vector", _VECTOR),
            ref("ollama_embeddings_request"),
            failure="ollama_error",
        )
    },
    "/api/show": {
        "post": operation(
            "What is known of the model",
            answer("It", reply({"details": {"type": "object"}, "model_info": {"type": "object"}})),
            ref("show_request"),
            failure="ollama_error",
        )
    },
    "/api/tags": _ollama_look("The model that is served", ref("ollama_models")),
    "/api/ps": _ollama_look("The model that is in memory", ref("ollama_models")),
    "/api/version": _ollama_look("The release of Ollama whose API this is", reply({"version": TEXT})),
}
"""By their paths, as in `openapi`."""
