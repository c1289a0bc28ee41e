"""Fields of requests that say what an answer must be, as OpenAPI writes them."""

from typing import Final

from tpiedge.api.openapi_parts import TEXT, JsonSchema, flag

_TEXT: Final[JsonSchema] = {"type": ["string", "null"]}
_SCHEMA: Final[JsonSchema] = {
    "type": ["object", "string", "null"],
    "description": "A JSON schema that the answer has. Objects have no properties that it does not declare.",
}
_DESCRIBED: Final[JsonSchema] = {
    "type": ["object", "null"],
    "properties": {
        "name": TEXT,
        "schema": _SCHEMA,
        "strict": flag("Whether a schema of which a part cannot be held is refused."),
    },
    "required": ["name"],
}
_GUIDED: Final[dict[str, JsonSchema]] = {
    "guided_json": {**_SCHEMA, "description": "A schema, by an older name of vLLM's."},
    "guided_regex": _TEXT,
    "guided_choice": {"type": ["array", "null"], "items": TEXT},
    "guided_grammar": _TEXT,
}

FORM: Final[dict[str, JsonSchema]] = {
    "response_format": {
        "type": ["object", "null"],
        "properties": {
            "type": {"enum": ["text", "json_object", "json_schema", "json", "regex", "grammar", "ebnf"]},
            "json_schema": _DESCRIBED,
            "schema": {**_SCHEMA, "description": "A schema, as of llama.cpp's server."},
            "value": {"description": "A schema or a regular expression, as of TGI."},
            "pattern": {**_TEXT, "description": "A regular expression."},
            "grammar": _TEXT,
        },
        "required": ["type"],
    },
    "grammar": {
        "type": ["string", "object", "null"],
        "description": "Lark or llama.cpp's GBNF, of what the answer may be.",
    },
    "json_schema": {**_SCHEMA, "description": "A schema, as of llama.cpp's server and of SGLang."},
    "regex": {**_TEXT, "description": "A regular expression, as of SGLang."},
    "ebnf": {**_TEXT, "description": "A grammar, as of SGLang."},
    "regex_pattern": {**_TEXT, "description": "A regular expression, as of TabbyAPI."},
    "grammar_string": {**_TEXT, "description": "A grammar, as of TabbyAPI."},
    "structured_outputs": {
        "type": ["object", "null"],
        "description": "One of these, as of vLLM.",
        "properties": {
            "json": _SCHEMA,
            "json_object": flag("Whether the answer is any JSON object."),
            "regex": _TEXT,
            "choice": {"type": ["array", "null"], "items": TEXT},
            "grammar": _TEXT,
        },
    },
    **_GUIDED,
    "nvext": {
        "type": ["object", "null"],
        "description": "One of these, as of NVIDIA.",
        "properties": _GUIDED,
    },
}
"""By the names of several servers. Several of them may be given where they say the same."""
