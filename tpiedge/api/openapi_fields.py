"""Fields of requests and answers as OpenAPI (JSON Schema) writes them: their types, ranges and what they mean.

A field that a request may have is here, and one that has an effect; the tests hold that to what is read. Ranges that
depend on the model (token ids, the context) are not told.
"""

from collections.abc import Mapping
from typing import Final

from tpiedge.api.asked import MAX_CHOICES, MAX_TOKENS, MAX_TOOLS
from tpiedge.api.embedding_request import MAX_INPUTS
from tpiedge.api.openapi_forms import FORM
from tpiedge.api.openapi_parts import (
    COUNT,
    MODEL,
    NUMBER,
    TEXT,
    TOKEN_IDS,
    JsonSchema,
    body,
    flag,
    integer,
    number,
    ref,
    reply,
)
from tpiedge.engine.sampling import (
    BIAS,
    MAX_BIASES,
    MAX_LOGPROBS,
    MAX_SEED,
    MAX_TOP_K,
    PENALTY,
    REPETITION_PENALTY,
    TEMPERATURE,
)
from tpiedge.wire.fields import Range

_SCORES: Final[JsonSchema] = {"type": ["object", "null"]}
_MESSAGES: Final[JsonSchema] = {
    "type": "array",
    "minItems": 1,
    "maxItems": 4096,
    "items": ref("message"),
}
_SWITCHES: Final[JsonSchema] = {
    "type": ["object", "null"],
    "description": "Switches of the chat template.",
    "properties": {
        name: flag("Whether a model that can think does.") for name in ("enable_thinking", "thinking")
    },
}

SAMPLING: Final[dict[str, JsonSchema]] = {
    "temperature": number(TEMPERATURE, "0 takes the likeliest token."),
    "top_p": number(Range(0.0, 1.0), "Of the likeliest tokens, those that together have this probability."),
    "top_k": integer(-1, MAX_TOP_K, "Of the likeliest tokens, so many; 0 and -1: all."),
    "min_p": number(Range(0.0, 1.0), "Tokens with at least this part of the likeliest one's probability."),
    "repetition_penalty": number(REPETITION_PENALTY, "Divides the scores of tokens that were there."),
    "presence_penalty": number(PENALTY, "Is taken from the scores of tokens that were said."),
    "frequency_penalty": number(PENALTY, "The same, for each time."),
    "logit_bias": {
        "type": ["object", "null"],
        "description": "Is added to scores, by token id.",
        "maxProperties": MAX_BIASES,
        "propertyNames": {"pattern": "^[0-9]{1,10}$"},
        "additionalProperties": {"type": "number", "minimum": BIAS.low, "maximum": BIAS.high},
    },
    "seed": integer(-(2**63), MAX_SEED, "The same seed draws the same tokens."),
    "n": integer(1, MAX_CHOICES, "How many answers, of each prompt."),
}
"""Of every request for an answer."""

_ANSWERING: Final[dict[str, JsonSchema]] = {
    "model": MODEL,
    **SAMPLING,
    "stream": flag("Whether the answer comes as server-sent events."),
    "stream_options": {
        "type": ["object", "null"],
        "description": "Only with `stream`.",
        "properties": {"include_usage": flag("Whether the last event has the usage.")},
    },
    "stop": {
        "description": "Where the answer ends; not a part of it.",
        "anyOf": [
            {"type": "string", "minLength": 1, "maxLength": 256},
            {"type": "array", "maxItems": 16, "items": {"type": "string", "minLength": 1, "maxLength": 256}},
            {"type": "null"},
        ],
    },
    "return_token_ids": flag("Whether the answer has its token ids."),
    "ignore_eos": flag("Whether the answer goes on where the model would end it."),
}

COMPLETION: Final[dict[str, JsonSchema]] = {
    **_ANSWERING,
    **FORM,
    "prompt": {
        "description": "A text, token ids, or a list of either, which is answered one by one.",
        "anyOf": [
            TEXT,
            TOKEN_IDS,
            {"type": "array", "minItems": 1, "maxItems": MAX_CHOICES, "items": TEXT},
            {"type": "array", "minItems": 1, "maxItems": MAX_CHOICES, "items": TOKEN_IDS},
        ],
    },
    "echo": flag("Whether the answer begins with the prompt; its scores come with `logprobs`."),
    "max_tokens": integer(-1, MAX_TOKENS, "Of the answer; 16 without, and -1: as many as there is room for."),
    "logprobs": integer(0, MAX_LOGPROBS, "How many of the likeliest tokens are told, beside the drawn one."),
}

_CHOSEN: Final[JsonSchema] = body(
    {"type": {"const": "function"}, "function": body({"name": TEXT}, ["name"])}, ["type", "function"]
)
_ALLOWED: Final[JsonSchema] = body(
    {"mode": {"enum": ["auto", "required"]}, "tools": {"type": "array", "minItems": 1, "items": _CHOSEN}},
    ["mode", "tools"],
)

CHAT: Final[dict[str, JsonSchema]] = {
    **_ANSWERING,
    **FORM,
    "tools": {
        "type": ["array", "null"],
        "maxItems": MAX_TOOLS,
        "items": ref("tool"),
    },
    "tool_choice": {
        "description": "Whether one of the tools must be called, or which.",
        "anyOf": [
            {"enum": ["none", "auto", "required", None]},
            _CHOSEN,
            body({"type": {"const": "allowed_tools"}, "allowed_tools": _ALLOWED}, ["type", "allowed_tools"]),
        ],
    },
    "functions": {
        "type": ["array", "null"],
        "maxItems": MAX_TOOLS,
        "description": "The older name of tools, of which at most one is called.",
        "items": {"type": "object"},
    },
    "function_call": {
        "description": "The older name of tool_choice.",
        "anyOf": [{"enum": ["none", "auto", None]}, body({"name": TEXT}, ["name"])],
    },
    "parallel_tool_calls": flag("Whether several tools may be called at once; true without."),
    "continue_final_message": flag("Whether the answer goes on with the last message, an assistant's."),
    "messages": _MESSAGES,
    "max_tokens": integer(-1, MAX_TOKENS, "Of the answer, at least 1; -1: as many as there is room for."),
    "max_completion_tokens": integer(-1, MAX_TOKENS, "The newer name of max_tokens."),
    "logprobs": flag("Whether probabilities are told."),
    "top_logprobs": integer(0, MAX_LOGPROBS, "How many of the likeliest tokens are told; needs `logprobs`."),
    "chat_template_kwargs": _SWITCHES,
}

EMBEDDINGS: Final[dict[str, JsonSchema]] = {
    "model": MODEL,
    "input": {
        "description": "A text, token ids, or a list of either.",
        "anyOf": [
            TEXT,
            TOKEN_IDS,
            {"type": "array", "minItems": 1, "maxItems": MAX_INPUTS, "items": TEXT},
            {"type": "array", "minItems": 1, "maxItems": MAX_INPUTS, "items": TOKEN_IDS},
        ],
    },
    "encoding_format": {"enum": ["float", "base64", None]},
    "pooling": {"enum": ["mean", "last", None], "description": "Of which positions the vector is."},
    "dimensions": integer(1, 2**31, "None but the model's own."),
}

TOKENIZE: Final[dict[str, JsonSchema]] = {
    "model": MODEL,
    "prompt": TEXT,
    "content": TEXT,
    "messages": _MESSAGES,
    "chat_template_kwargs": _SWITCHES,
    "add_special_tokens": flag("Whether a `prompt` begins as the model's texts do; true without."),
    "add_special": flag("The same of a `content`; false without."),
    "parse_special": flag(
        "Whether special tokens that stand in the text are tokens, not text; true without."
    ),
    "return_token_strs": flag("Whether the text of each token is told."),
    "with_pieces": flag("The same, as llama.cpp names it."),
}

DETOKENIZE: Final[dict[str, JsonSchema]] = {"model": MODEL, "tokens": TOKEN_IDS}

_USAGE: Final[JsonSchema] = reply(
    {"prompt_tokens": COUNT, "completion_tokens": COUNT, "total_tokens": COUNT},
    {
        "prompt_tokens_details": reply({"cached_tokens": COUNT}),
        "tokens_per_step": NUMBER,
        "pauses": reply({"count": COUNT, "seconds": NUMBER}),
    },
)


def _whole(shown: Mapping[str, JsonSchema]) -> JsonSchema:
    """An answer with one choice."""
    choice = reply(
        {"index": COUNT, **shown, "logprobs": _SCORES, "finish_reason": {"enum": ["stop", "length"]}},
        {"token_ids": TOKEN_IDS},
    )
    choices: JsonSchema = {"type": "array", "items": choice}
    return reply(
        {"id": TEXT, "object": TEXT, "created": COUNT, "model": TEXT, "choices": choices, "usage": _USAGE}
    )


_SPANS: Final[JsonSchema] = {
    "type": "array",
    "description": "[start, end] in seconds since the step began, one after the other.",
    "items": {"type": "array", "items": NUMBER, "minItems": 2, "maxItems": 2},
}
_PARTS: Final = ("compute", "wait", "network", "disk")

_TIMELINE: Final[JsonSchema] = {
    **reply(
        {
            "step": COUNT,
            "at": {**NUMBER, "description": "When it was told, in seconds since 1970."},
            "tokens": {**COUNT, "description": "Positions that it computed."},
            "took_s": NUMBER,
            "machines": {
                "type": "array",
                "items": reply(
                    {
                        "name": TEXT,
                        "host": TEXT,
                        "rank": COUNT,
                        **{f"{part}_s": NUMBER for part in _PARTS},
                        "spans": reply(dict.fromkeys(_PARTS, _SPANS)),
                    }
                ),
            },
        }
    ),
    "type": ["object", "null"],
    "description": "What all machines did in one of the last steps; null where none is known.",
}

_READING: Final[JsonSchema] = {
    **reply(
        {
            "done_tokens": COUNT,
            "of_tokens": COUNT,
            "tokens_per_s": {**NUMBER, "description": "0: not known yet."},
            "left_s": {"type": ["integer", "null"], "minimum": 0},
        }
    ),
    "type": ["object", "null"],
    "description": "How far the prompt is read, while it is and that is told.",
}

_CLUSTER: Final[JsonSchema] = reply(
    {
        "timeline": _TIMELINE,
        "requests": {
            "type": "array",
            "items": reply(
                {
                    "id": TEXT,
                    "state": {"enum": ["queued", "reading", "answering", "paused"]},
                    "prompt_tokens": COUNT,
                    "tokens": COUNT,
                    "max_tokens": COUNT,
                    "tokens_per_s": NUMBER,
                    "reading": _READING,
                }
            ),
        },
    }
)


SCHEMAS: Final[dict[str, JsonSchema]] = {
    "cluster": _CLUSTER,
    "message": body(
        {
            "role": {"enum": ["system", "developer", "user", "assistant", "tool", "function"]},
            "content": {
                "description": "Null only of an assistant.",
                "anyOf": [
                    TEXT,
                    {"type": "array", "items": ref("part")},
                    {"type": "null"},
                ],
            },
            "name": {"type": ["string", "null"], "maxLength": 64},
            "reasoning_content": {"type": ["string", "null"], "description": "An assistant's thoughts."},
            "reasoning": {"type": ["string", "null"], "description": "The same."},
            "thinking": {"type": ["string", "null"], "description": "The same."},
            "refusal": {"type": ["string", "null"], "description": "An assistant's, in place of content."},
            "tool_calls": {
                "type": ["array", "null"],
                "description": "An assistant's.",
                "maxItems": 128,
                "items": ref("tool_call"),
            },
            "function_call": {"type": ["object", "null"], "description": "An assistant's, of a function."},
            "tool_call_id": {
                "type": ["string", "null"],
                "description": "A tool's: of the call that it answers.",
            },
        },
        ["role"],
    ),
    "tool_call": body(
        {
            "id": {"type": ["string", "null"]},
            "type": {"enum": ["function", None]},
            "function": body(
                {"name": {**TEXT, "minLength": 1}, "arguments": {"type": ["string", "null"]}}, ["name"]
            ),
        },
        ["function"],
    ),
    "tool": body(
        {
            "type": {"const": "function"},
            "function": body(
                {
                    "name": {"type": "string", "pattern": "^[A-Za-z0-9_.:-]{1,64}$"},
                    "description": {"type": ["string", "null"]},
                    "parameters": {"type": ["object", "null"]},
                    "strict": flag("Where a call is required it is always so."),
                },
                ["name"],
            ),
        },
        ["type", "function"],
    ),
    "part": body(
        {
            "type": {"enum": ["text", "refusal", "file"]},
            "text": TEXT,
            "refusal": {**TEXT, "description": "An assistant's."},
            "file": ref("file"),
        },
        ["type"],
    ),
    "file": body(
        {"filename": TEXT, "file_data": {**TEXT, "description": "Of text alone: data:text/plain;base64,..."}},
        ["file_data"],
    ),
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
                        "index": COUNT,
                        "embedding": {"anyOf": [TEXT, {"type": "array", "items": NUMBER}]},
                    }
                ),
            },
            "usage": reply({"prompt_tokens": COUNT, "total_tokens": COUNT}),
        }
    ),
    "deleted": reply({"id": TEXT, "object": TEXT, "deleted": {"type": "boolean"}}),
    "model": reply(
        {
            "id": TEXT,
            "object": TEXT,
            "created": COUNT,
            "owned_by": TEXT,
            "context_length": COUNT,
            "also_called": {"type": "array", "items": TEXT},
        }
    ),
    "models": reply({"object": TEXT, "data": {"type": "array", "items": ref("model")}}),
    "tokens": reply(
        {"tokens": TOKEN_IDS, "count": COUNT, "max_model_len": COUNT},
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
