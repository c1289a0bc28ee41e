"""GET /openapi.json: what this server answers, as an OpenAPI document, for people and tools that read such.

Written by hand: a route is an entry of PATHS, a field of a request a line of `openapi_fields`. The tests compare both
with the routes and with the fields that are read.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tpiedge import __version__
from tpiedge.api import openapi_fields as fields
from tpiedge.api.openapi_fields import JsonSchema

__all__ = ["PATHS", "document", "openapi_routes"]

_JSON: Final = "application/json"
_EVENTS: Final = "text/event-stream"
_OPEN: Final[JsonSchema] = {"security": []}
_ADMIN: Final[JsonSchema] = {"security": [{"admin": []}]}


def _answer(description: str, schema: JsonSchema, *, events: bool = False) -> JsonSchema:
    """A 200. `events`: it may be a stream."""
    content: JsonSchema = {_JSON: {"schema": schema}}
    if events:
        content[_EVENTS] = {"schema": {}}
    return {"200": {"description": description, "content": content}}


def _operation(
    summary: str,
    answers: Mapping[str, object],
    body: JsonSchema | None = None,
    more: JsonSchema | None = None,
) -> JsonSchema:
    """Errors are the same everywhere."""
    asked: JsonSchema = {}
    if body is not None:
        asked["requestBody"] = {"required": True, "content": {_JSON: {"schema": body}}}
    error = {"$ref": "#/components/responses/error"}
    return {"summary": summary, **asked, "responses": {**answers, "default": error}, **(more or {})}


def _ref(name: str) -> JsonSchema:
    return {"$ref": f"#/components/schemas/{name}"}


def _path_text(name: str, description: str) -> JsonSchema:
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


def _kept(kind: str, answer: str) -> JsonSchema:
    """The answers that a client of a master with --journal may come again for."""
    last_event: JsonSchema = {
        "name": "Last-Event-ID",
        "in": "header",
        "description": "The id of the last event that came: the rest of the stream is sent.",
        "schema": {"type": "integer", "minimum": 0},
    }
    return {
        **_path_text("id", "Of the answer, as it was given with it."),
        "get": _operation(
            f"The rest of a {kind}, or the whole of it (--journal)",
            _answer("The answer", _ref(answer), events=True),
            more={"parameters": [last_event]},
        ),
        "delete": _operation(
            f"Nobody wants this {kind} any more",
            _answer("It is ended and forgotten", _ref("deleted")),
        ),
    }


def _worker_order(summary: str, field: str, description: str, answer: JsonSchema) -> JsonSchema:
    body = fields.body(
        {field: {**fields.TEXT, "minLength": 1, "maxLength": 256, "description": description}}, [field]
    )
    return {
        "post": _operation(summary, _answer("Done", answer), {**body, "additionalProperties": False}, _ADMIN)
    }


_NAMED: Final = fields.reply({"name": fields.TEXT})
_REVOKED: Final = fields.reply({"revoked": fields.TEXT})
_WORKER: Final = "Either name that `tpiedge nodes` shows."

PATHS: Final[dict[str, JsonSchema]] = {
    "/health": {
        "get": _operation(
            "Whether the server lives", _answer("It does", fields.reply({"status": fields.TEXT})), more=_OPEN
        )
    },
    "/ready": {
        "get": _operation(
            "Whether the cluster answers; 503 where not",
            _answer("It does", _ref("readiness"))
            | {"503": {"description": "Not yet", "content": {_JSON: {"schema": _ref("readiness")}}}},
            more=_OPEN,
        )
    },
    "/metrics": {
        "get": _operation(
            "Counters and histograms, as Prometheus reads them",
            {"200": {"description": "The page", "content": {"text/plain": {"schema": {"type": "string"}}}}},
        )
    },
    "/version": {
        "get": _operation("The version of tpiedge", _answer("It", fields.reply({"version": fields.TEXT})))
    },
    "/openapi.json": {"get": _operation("This document", _answer("It", {"type": "object"}))},
    "/v1/models": {"get": _operation("The model that is served", _answer("A list of one", _ref("models")))},
    "/v1/models/{name}": {
        **_path_text("name", "Of the model, or an alias of it."),
        "get": _operation("The model's card", _answer("It", _ref("model"))),
    },
    "/v1/completions": {
        "post": _operation(
            "Go on with a text",
            _answer("The answer", _ref("completion"), events=True),
            _ref("completion_request"),
        )
    },
    "/v1/completions/{id}": _kept("completion", "completion"),
    "/v1/chat/completions": {
        "post": _operation(
            "Answer a chat", _answer("The answer", _ref("chat"), events=True), _ref("chat_request")
        )
    },
    "/v1/chat/completions/{id}": _kept("chat completion", "chat"),
    "/v1/embeddings": {
        "post": _operation(
            "Vectors of texts", _answer("The vectors", _ref("embeddings")), _ref("embeddings_request")
        )
    },
    "/tokenize": {
        "post": _operation(
            "The tokens of a text or a chat", _answer("They", _ref("tokens")), _ref("tokenize_request")
        )
    },
    "/detokenize": {
        "post": _operation("The text of tokens", _answer("It", _ref("text")), _ref("detokenize_request"))
    },
    "/admin/nodes": {
        "get": _operation("The machines and their parts", _answer("They", {"type": "object"}), more=_ADMIN)
    },
    "/admin/nodes/pending": {
        "get": _operation(
            "Workers that wait to be let in",
            _answer("They", fields.reply({"pending": {"type": "array"}})),
            more=_ADMIN,
        )
    },
    "/admin/nodes/members": {
        "get": _operation(
            "Workers that may come without a token",
            _answer("They", fields.reply({"members": {"type": "array"}})),
            more=_ADMIN,
        )
    },
    "/admin/nodes/approve": _worker_order("Let a worker in", "code", "What its screen shows.", _NAMED),
    "/admin/nodes/revoke": _worker_order("Shut a worker out", "name", _WORKER, _REVOKED),
    "/admin/nodes/drain": _worker_order("Take a worker out of the plan", "name", _WORKER, _NAMED),
    "/admin/nodes/undrain": _worker_order("Take a drained worker back in", "name", _WORKER, _NAMED),
}
"""Paths as OpenAPI writes them, and what each answers by method."""


@cache
def document() -> JsonSchema:
    """The whole document."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "tpiedge",
            "version": __version__,
            "description": "One model, served by several machines. Fields that are not known here have no effect and "
            "are listed in the header x-ignored-fields.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": PATHS,
        "components": {
            "schemas": fields.SCHEMAS,
            "responses": {
                "error": {"description": "Refused, or failed", "content": {_JSON: {"schema": _ref("error")}}}
            },
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "X-Api-Key"},
                "admin": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "The secret of the master's own user.",
                },
            },
        },
        # A master on loopback needs no key.
        "security": [{"bearer": []}, {"key": []}, {}],
    }


def openapi_routes() -> Sequence[Route]:
    """The route to it."""
    return (Route("/openapi.json", _send, methods=["GET"]),)


async def _send(_request: Request) -> Response:
    return JSONResponse(document())
