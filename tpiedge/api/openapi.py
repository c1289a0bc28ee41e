"""GET /openapi.json: what this server answers, as an OpenAPI document, for people and tools that read such.

A route is a form of answers, a lookup or a line of `_ROUTES`, which the tests compare with the routes. What a request
may have is the table by which it is read; of answers only the kind is told, as their shapes are those of the APIs.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tpiedge import __version__
from tpiedge.api import fields as t
from tpiedge.api.admin import word_body
from tpiedge.api.completions import ANSWER_FORMS
from tpiedge.api.lookups import LOOKUPS

_EVENTS: Final = "text/event-stream"
_NAME: Final[t.JsonSchema] = {**t.TEXT, "minLength": 1, "maxLength": 256}
_NUMBER: Final[t.JsonSchema] = {"type": "integer", "minimum": 0}
_WORKER: Final = word_body("name", "Either name that `tpiedge nodes` shows.")
_TOLD: Final[Mapping[str, str]] = {
    "/health": "Whether the server lives",
    "/ready": "Whether the cluster answers; 503 where not",
    "/metrics": "Counters and histograms, as Prometheus reads them",
    "/version": "The version of tpiedge",
    "/openapi.json": "This document",
    "/v1/models": "The model that is served",
    "/v1/models/{name}": "The model's card, by its name or an alias",
    "/api/tags": "The model that is served",
    "/api/ps": "The model that is in memory",
    "/api/version": "The release of Ollama whose API this is",
    "/admin/cluster": "The cluster as people think of it",
    "/admin/whatif": "What the planner predicts with one machine less, or one more",
    "/admin/nodes": "The machines and their parts",
    "/admin/nodes/pending": "Workers that wait to be let in",
    "/admin/nodes/members": "Workers that may come without a token, and those that were shut out",
}
_ASKED: Final[Mapping[str, tuple[str, t.JsonSchema]]] = {
    **{path: (about, table) for path, (about, table, _) in LOOKUPS.items()},
    "/admin/nodes/approve": ("Let a worker in", word_body("code", "What its screen shows.")),
    "/admin/nodes/revoke": ("Shut a worker out", _WORKER),
    "/admin/nodes/drain": ("Take a worker out of the plan", _WORKER),
    "/admin/nodes/undrain": ("Take a drained worker back in", _WORKER),
    "/admin/nodes/clear": ("Try a worker that is left out again now", _WORKER),
}
_ROUTES: Final[Sequence[tuple[str, str, str, t.JsonSchema | None, str]]] = (
    *(
        route
        for form in ANSWER_FORMS.values()
        if form.path
        for route in (
            (form.path, "post", form.about, form.table, form.write.stream_type.decode().partition(";")[0]),
            (f"{form.path}/{{id}}", "get", "The rest of such an answer, or the whole of it", None, _EVENTS),
            (f"{form.path}/{{id}}", "delete", "Nobody wants this answer any more", None, ""),
        )[: 3 if form.kind else 1]
    ),
    *((path, "get", about, None, "text/plain" * (path == "/metrics")) for path, about in _TOLD.items()),
    *((path, "post", about, table, "") for path, (about, table) in _ASKED.items()),
    ("/admin/requests/{id}", "delete", "End a request that runs or waits", None, ""),
)
"""The path as OpenAPI writes it, the method, what it is for, what is sent, and the type of the answer where it is not
JSON, or may be a stream."""

_ERRORS: Final[Mapping[str, tuple[t.JsonSchema, tuple[str, ...]]]] = {
    "error": ({"error": {"type": "object", "required": ["message", "type", "param", "code"]}}, ("/",)),
    "anthropic_error": (
        {"type": {"const": "error"}, "error": {"type": "object", "required": ["type", "message"]}},
        ("/v1/messages",),
    ),
    "ollama_error": ({"error": t.TEXT}, ("/api/",)),
}
"""The shapes of errors, and where the paths begin that have them; the last one counts."""


def _content(schema: t.JsonSchema, kind: str = "application/json") -> t.JsonSchema:
    return {"content": {kind: {"schema": schema}}}


def _parameter(name: str, where: str, schema: t.JsonSchema, description: str = "") -> t.JsonSchema:
    needed = where == "path"
    return {"name": name, "in": where, "required": needed, "schema": schema, "description": description}


_PARAMETERS: Final[Mapping[str, Sequence[t.JsonSchema]]] = {
    "/admin/whatif": (_parameter("without", "query", _NAME), _parameter("more", "query", {"const": "1"})),
    "/{id}": (
        _parameter(
            "Last-Event-ID", "header", _NUMBER, "The id of the last event that came: the rest is sent."
        ),
        _parameter(
            "stream",
            "query",
            {"enum": ["true", "false"]},
            "The answer comes as the stream that was asked for.",
        ),
        _parameter(
            "starting_after",
            "query",
            _NUMBER,
            "In place of the header: the last event, of which the first is 0.",
        ),
    ),
}


def _operation(path: str, method: str, asked: t.JsonSchema | None, kind: str) -> t.JsonSchema:
    failure = [name for name, (_, begins) in _ERRORS.items() if path.startswith(begins)][-1]
    answer = {"description": "The answer", **_content({"type": "object"})}
    if kind == "text/plain":
        answer = {"description": "The page", **_content(t.TEXT, kind)}
    elif kind not in ("", "application/json"):
        answer["content"][kind] = {"schema": {}}
    found: t.JsonSchema = {
        "responses": {"200": answer, "default": {"$ref": f"#/components/responses/{failure}"}},
        "parameters": [
            *(_parameter(name, "path", _NAME) for name in ("id", "name") if f"{{{name}}}" in path),
            *(
                one
                for end, some in _PARAMETERS.items()
                if method == "get" and path.endswith(end)
                for one in some
            ),
        ],
    }
    if path == "/ready":
        found["responses"]["503"] = {"description": "Not yet", **_content({"type": "object"})}
    if path in ("/health", "/ready"):
        found["security"] = []
    elif path.startswith("/admin/"):
        found["security"] = [{"admin": []}]
    if asked is not None:
        found["requestBody"] = {"required": True, **_content(asked)}
    return found


@cache
def document() -> t.JsonSchema:
    """The whole document."""
    paths: dict[str, t.JsonSchema] = {}
    for path, method, summary, asked, kind in _ROUTES:
        paths.setdefault(path, {})[method] = {"summary": summary, **_operation(path, method, asked, kind)}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "tpiedge",
            "version": __version__,
            "description": "One model, served by several machines. Fields that are not known here have no effect and "
            "are listed in the header x-ignored-fields.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "responses": {
                name: {
                    "description": "Refused, or failed",
                    **_content({"type": "object", "properties": shown, "required": [*shown]}),
                }
                for name, (shown, _) in _ERRORS.items()
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
