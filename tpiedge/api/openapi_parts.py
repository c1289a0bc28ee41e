"""Pieces of the OpenAPI document: types of fields (JSON Schema), bodies, answers and operations."""

from collections.abc import Mapping, Sequence
from typing import Final

from tpiedge.wire.fields import Range

JsonSchema = dict[str, object]

_JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"
OPEN: Final[JsonSchema] = {"security": []}
ADMIN: Final[JsonSchema] = {"security": [{"admin": []}]}

TEXT: Final[JsonSchema] = {"type": "string"}
COUNT: Final[JsonSchema] = {"type": "integer", "minimum": 0}
NUMBER: Final[JsonSchema] = {"type": "number"}
TOKEN_IDS: Final[JsonSchema] = {"type": "array", "items": COUNT}


MODEL: Final[JsonSchema] = {
    **TEXT,
    "description": "The name of the model that is served, or an alias of it.",
}


def body(fields: Mapping[str, JsonSchema], needed: Sequence[str] = ()) -> JsonSchema:
    """An object that a client sends; others of its fields have no effect."""
    return {"type": "object", "properties": dict(fields), "required": list(needed)}


def reply(fields: Mapping[str, JsonSchema], more: Mapping[str, JsonSchema] | None = None) -> JsonSchema:
    """An object that is answered; each of `fields` is always there, `more` may be."""
    return {"type": "object", "properties": {**fields, **(more or {})}, "required": list(fields)}


def _or_null(schema: JsonSchema) -> JsonSchema:
    """Every field that may be left out may be null."""
    return {**schema, "type": [schema["type"], "null"]}


def number(allowed: Range, description: str) -> JsonSchema:
    return _or_null(
        {"type": "number", "minimum": allowed.low, "maximum": allowed.high, "description": description}
    )


def integer(low: int, high: int, description: str) -> JsonSchema:
    return _or_null({"type": "integer", "minimum": low, "maximum": high, "description": description})


def flag(description: str) -> JsonSchema:
    return _or_null({"type": "boolean", "description": description})


def in_json(schema: JsonSchema) -> JsonSchema:
    """What a body of JSON has."""
    return {_JSON: {"schema": schema}}


def answer(description: str, schema: JsonSchema, *, stream: str = "") -> JsonSchema:
    """A 200. `stream`: the type that it has as a stream, where it may be one."""
    content = in_json(schema)
    if stream:
        content[stream] = {"schema": {}}
    return {"200": {"description": description, "content": content}}


def operation(
    summary: str,
    answers: Mapping[str, object],
    body: JsonSchema | None = None,
    more: JsonSchema | None = None,
    failure: str = "error",
) -> JsonSchema:
    """`failure`: the name of what is answered instead."""
    asked: JsonSchema = {}
    if body is not None:
        asked["requestBody"] = {"required": True, "content": in_json(body)}
    error = {"$ref": f"#/components/responses/{failure}"}
    return {"summary": summary, **asked, "responses": {**answers, "default": error}, **(more or {})}


def ref(name: str) -> JsonSchema:
    return {"$ref": f"#/components/schemas/{name}"}


def path_text(name: str, description: str) -> JsonSchema:
    return {
        "parameters": [
            {
                "name": name,
                "in": "path",
                "required": True,
                "description": description,
                "schema": {"type": "string", "minLength": 1},
            }
        ]
    }


def kept(kind: str, schema: str, failure: str = "error") -> JsonSchema:
    """The answers that a client of a master with --journal may come again for; `failure` as of `operation`."""
    last_event: JsonSchema = {
        "name": "Last-Event-ID",
        "in": "header",
        "description": "The id of the last event that came: the rest of the stream is sent.",
        "schema": COUNT,
    }
    stream: JsonSchema = {
        "name": "stream",
        "in": "query",
        "description": "The answer comes as the stream that was asked for; without the header from its beginning on.",
        "schema": {"enum": ["true", "false"]},
    }
    starting_after: JsonSchema = {
        "name": "starting_after",
        "in": "query",
        "description": "In place of the header, with 'stream': the last event that came, of which the first is 0.",
        "schema": COUNT,
    }
    return {
        **path_text("id", "Of the answer, as it was given with it."),
        "get": operation(
            f"The rest of a {kind}, or the whole of it (--journal)",
            answer("The answer", ref(schema), stream=EVENTS),
            more={"parameters": [last_event, stream, starting_after]},
            failure=failure,
        ),
        "delete": operation(
            f"Nobody wants this {kind} any more",
            answer("It is ended and forgotten", ref("deleted")),
            failure=failure,
        ),
    }
