"""GET /openapi.json: what this server answers, as an OpenAPI document, for people and tools that read such.

Written by hand: a route is an entry of PATHS, or of `openapi_others`, and a field of a request is a line of
`openapi_fields`. The tests compare both with the routes and with the fields that are read.
"""

from collections.abc import Sequence
from functools import cache
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tpiedge import __version__
from tpiedge.api.openapi_fields import SCHEMAS
from tpiedge.api.openapi_others import OTHER_PATHS, OTHER_SCHEMAS
from tpiedge.api.openapi_parts import (
    ADMIN,
    EVENTS,
    OPEN,
    TEXT,
    JsonSchema,
    answer,
    body,
    in_json,
    kept,
    operation,
    path_text,
    ref,
    reply,
)


def _worker_order(summary: str, field: str, description: str, done: JsonSchema) -> JsonSchema:
    asked = body({field: {**TEXT, "minLength": 1, "maxLength": 256, "description": description}}, [field])
    return {"post": operation(summary, answer("Done", done), {**asked, "additionalProperties": False}, ADMIN)}


_NAMED: Final = reply({"name": TEXT})
_REVOKED: Final = reply({"revoked": TEXT})
_WORKER: Final = "Either name that `tpiedge nodes` shows."

PATHS: Final[dict[str, JsonSchema]] = {
    "/health": {
        "get": operation("Whether the server lives", answer("It does", reply({"status": TEXT})), more=OPEN)
    },
    "/ready": {
        "get": operation(
            "Whether the cluster answers; 503 where not",
            answer("It does", ref("readiness"))
            | {"503": {"description": "Not yet", "content": in_json(ref("readiness"))}},
            more=OPEN,
        )
    },
    "/metrics": {
        "get": operation(
            "Counters and histograms, as Prometheus reads them",
            {"200": {"description": "The page", "content": {"text/plain": {"schema": {"type": "string"}}}}},
        )
    },
    "/version": {"get": operation("The version of tpiedge", answer("It", reply({"version": TEXT})))},
    "/openapi.json": {"get": operation("This document", answer("It", {"type": "object"}))},
    "/v1/models": {"get": operation("The model that is served", answer("A list of one", ref("models")))},
    "/v1/models/{name}": {
        **path_text("name", "Of the model, or an alias of it."),
        "get": operation("The model's card", answer("It", ref("model"))),
    },
    "/v1/completions": {
        "post": operation(
            "Go on with a text",
            answer("The answer", ref("completion"), stream=EVENTS),
            ref("completion_request"),
        )
    },
    "/v1/completions/{id}": kept("completion", "completion"),
    "/v1/chat/completions": {
        "post": operation(
            "Answer a chat", answer("The answer", ref("chat"), stream=EVENTS), ref("chat_request")
        )
    },
    "/v1/chat/completions/{id}": kept("chat completion", "chat"),
    "/v1/embeddings": {
        "post": operation(
            "Vectors of texts", answer("The vectors", ref("embeddings")), ref("embeddings_request")
        )
    },
    "/tokenize": {
        "post": operation(
            "The tokens of a text or a chat", answer("They", ref("tokens")), ref("tokenize_request")
        )
    },
    "/detokenize": {
        "post": operation("The text of tokens", answer("It", ref("text")), ref("detokenize_request"))
    },
    "/admin/cluster": {
        "get": operation("The cluster as people think of it", answer("It", ref("cluster")), more=ADMIN)
    },
    "/admin/whatif": {
        "get": operation(
            "What the planner predicts with one machine less, or one more",
            answer("The prediction", {"type": "object"}),
            more={
                **ADMIN,
                "parameters": [
                    {"name": "without", "in": "query", "schema": {**TEXT, "minLength": 1, "maxLength": 256}},
                    {"name": "more", "in": "query", "schema": {"const": "1"}},
                ],
            },
        )
    },
    "/admin/requests/{id}": {
        **path_text("id", "Of a request that runs or waits."),
        "delete": operation(
            "End a request",
            answer("It ends", reply({"id": TEXT, "deleted": {"type": "boolean"}})),
            more=ADMIN,
        ),
    },
    "/admin/nodes": {
        "get": operation("The machines and their parts", answer("They", {"type": "object"}), more=ADMIN)
    },
    "/admin/nodes/pending": {
        "get": operation(
            "Workers that wait to be let in",
            answer("They", reply({"pending": {"type": "array"}})),
            more=ADMIN,
        )
    },
    "/admin/nodes/members": {
        "get": operation(
            "Workers that may come without a token, and those that were shut out",
            answer("They", reply({"members": {"type": "array"}, "revoked": {"type": "array"}})),
            more=ADMIN,
        )
    },
    "/admin/nodes/approve": _worker_order("Let a worker in", "code", "What its screen shows.", _NAMED),
    "/admin/nodes/revoke": _worker_order("Shut a worker out", "name", _WORKER, _REVOKED),
    "/admin/nodes/drain": _worker_order("Take a worker out of the plan", "name", _WORKER, _NAMED),
    "/admin/nodes/undrain": _worker_order("Take a drained worker back in", "name", _WORKER, _NAMED),
    "/admin/nodes/clear": _worker_order("Try a worker that is left out again now", "name", _WORKER, _NAMED),
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
        "paths": PATHS | OTHER_PATHS,
        "components": {
            "schemas": SCHEMAS | OTHER_SCHEMAS,
            "responses": {
                name: {"description": "Refused, or failed", "content": in_json(ref(name))}
                for name in ("error", "anthropic_error", "ollama_error")
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
