"""Fields of requests and answers as OpenAPI (JSON Schema) writes them: their types, ranges and what they mean.

A field that a request may have is here, and one that has an effect; the tests hold that to what is read. Ranges that
depend on the model (token ids, the context) are not told.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from tpiedge.api.asked import MAX_CHOICES, MAX_TOKENS
from tpiedge.api.embedding_request import MAX_INPUTS
from tpiedge.engine.sampling import (
    BIAS,
    MAX_BIASES,
    MAX_LOGPROBS,
    MAX_SEED,
    MAX_TOP_K,
    PENALTY,
    REPETITION_PENALTY,
)
from tpiedge.wire.fields import Range

__all__ = [
    "CHAT",
    "COMPLETION",
    "DETOKENIZE",
    "EMBEDDINGS",
    "SCHEMAS",
    "TEXT",
    "TOKENIZE",
    "JsonSchema",
    "body",
    "reply",
]

JsonSchema = dict[str, object]

TEXT: Final[JsonSchema] = {"type": "string"}
_COUNT: Final[JsonSchema] = {"type": "integer", "minimum": 0}
_NUMBER: Final[JsonSchema] = {"type": "number"}
_TOKEN_IDS: Final[JsonSchema] = {"type": "array", "items": _COUNT}
_SCORES: Final[JsonSchema] = {"type": ["object", "null"]}


def body(fields: Mapping[str, JsonSchema], needed: Sequence[str] = ()) -> JsonSchema:
    """An object that a client sends; others of its fields have no effect."""
    return {"type": "object", "properties": dict(fields), "required": list(needed)}


def reply(fields: Mapping[str, JsonSchema], more: Mapping[str, JsonSchema] | None = None) -> JsonSchema:
    """An object that is answered; each of `fields` is always there, `more` may be."""
    return {"type": "object", "properties": {**fields, **(more or {})}, "required": list(fields)}


def _or_null(schema: JsonSchema) -> JsonSchema:
    """Every field that may be left out may be null."""
    return {**schema, "type": [schema["type"], "null"]}


def _number(allowed: Range, description: str) -> JsonSchema:
    return _or_null(
        {"type": "number", "minimum": allowed.low, "maximum": allowed.high, "description": description}
    )


def _integer(low: int, high: int, description: str) -> JsonSchema:
    return _or_null({"type": "integer", "minimum": low, "maximum": high, "description": description})


def _flag(description: str) -> JsonSchema:
    return _or_null({"type": "boolean", "description": description})


_MODEL: Final[JsonSchema] = {
    **TEXT,
    "description": "The name of the model that is served, or an alias of it.",
}
_MESSAGES: Final[JsonSchema] = {
    "type": "array",
    "minItems": 1,
    "maxItems": 4096,
    "items": {"$ref": "#/components/schemas/message"},
}
_SWITCHES: Final[JsonSchema] = {
    "type": ["object", "null"],
    "description": "Switches of the chat template.",
    "properties": {
        name: _flag("Whether a model that can think does.") for name in ("enable_thinking", "thinking")
    },
}

SAMPLING: Final[dict[str, JsonSchema]] = {
    "temperature": _number(Range(0.0, 2.0), "0 takes the likeliest token."),
    "top_p": _number(Range(0.0, 1.0), "Of the likeliest tokens, those that together have this probability."),
    "top_k": _integer(-1, MAX_TOP_K, "Of the likeliest tokens, so many; 0 and -1: all."),
    "min_p": _number(Range(0.0, 1.0), "Tokens with at least this part of the likeliest one's probability."),
    "repetition_penalty": _number(REPETITION_PENALTY, "Divides the scores of tokens that were there."),
    "presence_penalty": _number(PENALTY, "Is taken from the scores of tokens that were said."),
    "frequency_penalty": _number(PENALTY, "The same, for each time."),
    "logit_bias": {
        "type": ["object", "null"],
        "description": "Is added to scores, by token id.",
        "maxProperties": MAX_BIASES,
        "propertyNames": {"pattern": "^[0-9]{1,10}$"},
        "additionalProperties": {"type": "number", "minimum": BIAS.low, "maximum": BIAS.high},
    },
    "seed": _integer(-(2**63), MAX_SEED, "The same seed draws the same tokens."),
    "n": _integer(1, MAX_CHOICES, "How many answers, of each prompt."),
}
"""Of every request for an answer."""

_ANSWERING: Final[dict[str, JsonSchema]] = {
    "model": _MODEL,
    **SAMPLING,
    "stream": _flag("Whether the answer comes as server-sent events."),
    "stream_options": {
        "type": ["object", "null"],
        "description": "Only with `stream`.",
        "properties": {"include_usage": _flag("Whether the last event has the usage.")},
    },
    "stop": {
        "description": "Where the answer ends; not a part of it.",
        "anyOf": [
            {"type": "string", "minLength": 1, "maxLength": 256},
            {"type": "array", "maxItems": 16, "items": {"type": "string", "minLength": 1, "maxLength": 256}},
            {"type": "null"},
        ],
    },
    "return_token_ids": _flag("Whether the answer has its token ids."),
    "ignore_eos": _flag("Whether the answer goes on where the model would end it."),
}

COMPLETION: Final[dict[str, JsonSchema]] = {
    **_ANSWERING,
    "prompt": {
        "description": "A text, token ids, or a list of either, which is answered one by one.",
        "anyOf": [
            TEXT,
            _TOKEN_IDS,
            {"type": "array", "minItems": 1, "maxItems": MAX_CHOICES, "items": TEXT},
            {"type": "array", "minItems": 1, "maxItems": MAX_CHOICES, "items": _TOKEN_IDS},
        ],
    },
    "echo": _flag("Whether the answer begins with the prompt; its scores come with `logprobs`."),
    "max_tokens": _integer(0, MAX_TOKENS, "Of the answer; 16 without."),
    "logprobs": _integer(0, MAX_LOGPROBS, "How many of the likeliest tokens are told, beside the drawn one."),
}

CHAT: Final[dict[str, JsonSchema]] = {
    **_ANSWERING,
    "messages": _MESSAGES,
    "max_tokens": _integer(1, MAX_TOKENS, "Of the answer."),
    "max_completion_tokens": _integer(1, MAX_TOKENS, "The newer name of max_tokens."),
    "logprobs": _flag("Whether probabilities are told."),
    "top_logprobs": _integer(0, MAX_LOGPROBS, "How many of the likeliest tokens are told; needs `logprobs`."),
    "chat_template_kwargs": _SWITCHES,
}

EMBEDDINGS: Final[dict[str, JsonSchema]] = {
    "model": _MODEL,
    "input": {
        "description": "A text, token ids, or a list of either.",
        "anyOf": [
            TEXT,
            _TOKEN_IDS,
            {"type": "array", "minItems": 1, "maxItems": MAX_INPUTS, "items": TEXT},
            {"type": "array", "minItems": 1, "maxItems": MAX_INPUTS, "items": _TOKEN_IDS},
        ],
    },
    "encoding_format": {"enum": ["float", "base64", None]},
    "pooling": {"enum": ["mean", "last", None], "description": "Of which positions the vector is."},
    "dimensions": _integer(1, 2**31, "None but the model's own."),
}

TOKENIZE: Final[dict[str, JsonSchema]] = {
    "model": _MODEL,
    "prompt": TEXT,
    "content": TEXT,
    "messages": _MESSAGES,
    "chat_template_kwargs": _SWITCHES,
    "add_special_tokens": _flag("Whether a `prompt` begins as the model's texts do; true without."),
    "add_special": _flag("The same of a `content`; false without."),
    "return_token_strs": _flag("Whether the text of each token is told."),
    "with_pieces": _flag("The same, as llama.cpp names it."),
}

DETOKENIZE: Final[dict[str, JsonSchema]] = {"model": _MODEL, "tokens": _TOKEN_IDS}

_USAGE: Final[JsonSchema] = reply(
    {"prompt_tokens": _COUNT, "completion_tokens": _COUNT, "total_tokens": _COUNT},
    {
        "prompt_tokens_details": reply({"cached_tokens": _COUNT}),
        "tokens_per_step": _NUMBER,
        "pauses": reply({"count": _COUNT, "seconds": _NUMBER}),
    },
)


def _whole(shown: Mapping[str, JsonSchema]) -> JsonSchema:
    """An answer with one choice."""
    choice = reply(
        {"index": _COUNT, **shown, "logprobs": _SCORES, "finish_reason": {"enum": ["stop", "length"]}},
        {"token_ids": _TOKEN_IDS},
    )
    choices: JsonSchema = {"type": "array", "items": choice}
    return reply(
        {"id": TEXT, "object": TEXT, "created": _COUNT, "model": TEXT, "choices": choices, "usage": _USAGE}
    )


SCHEMAS: Final[dict[str, JsonSchema]] = {
    "message": body(
        {
            "role": {"enum": ["system", "developer", "user", "assistant"]},
            "content": {
                "description": "Null only of an assistant.",
                "anyOf": [
                    TEXT,
                    {"type": "array", "items": {"$ref": "#/components/schemas/part"}},
                    {"type": "null"},
                ],
            },
            "name": {"type": ["string", "null"], "maxLength": 64},
        },
        ["role"],
    ),
    "part": body({"type": {"const": "text"}, "text": TEXT}, ["type", "text"]),
    "completion_request": body(COMPLETION, ["model", "prompt"]),
    "chat_request": body(CHAT, ["model", "messages"]),
    "embeddings_request": body(EMBEDDINGS, ["model", "input"]),
    "tokenize_request": body(TOKENIZE),
    "detokenize_request": body(DETOKENIZE, ["tokens"]),
    "completion": _whole({"text": TEXT}),
    "chat": _whole(
        {"message": reply({"role": TEXT, "content": TEXT, "refusal": {"type": ["string", "null"]}})}
    ),
    "embeddings": reply(
        {
            "object": TEXT,
            "model": TEXT,
            "data": {
                "type": "array",
                "items": reply(
                    {
                        "object": TEXT,
                        "index": _COUNT,
                        "embedding": {"anyOf": [TEXT, {"type": "array", "items": _NUMBER}]},
                    }
                ),
            },
            "usage": reply({"prompt_tokens": _COUNT, "total_tokens": _COUNT}),
        }
    ),
    "deleted": reply({"id": TEXT, "object": TEXT, "deleted": {"type": "boolean"}}),
    "model": reply(
        {
            "id": TEXT,
            "object": TEXT,
            "created": _COUNT,
            "owned_by": TEXT,
            "context_length": _COUNT,
            "also_called": {"type": "array", "items": TEXT},
        }
    ),
    "models": reply(
        {"object": TEXT, "data": {"type": "array", "items": {"$ref": "#/components/schemas/model"}}}
    ),
    "tokens": reply(
        {"tokens": _TOKEN_IDS, "count": _COUNT, "max_model_len": _COUNT},
        {"token_strs": {"type": "array", "items": TEXT}},
    ),
    "text": reply({"prompt": TEXT, "content": TEXT}),
    "readiness": reply({"ready": {"type": "boolean"}}, {"reason": TEXT}),
    "error": reply(
        {
            "error": reply(
                {
                    "message": TEXT,
                    "type": TEXT,
                    "param": {"type": ["string", "null"]},
                    "code": TEXT,
                }
            )
        }
    ),
}
"""By their names in the document."""
