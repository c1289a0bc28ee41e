"""GET /openapi.json describes the routes. Requests have schemas, answers have only media types."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tpiedge import __version__
from tpiedge.api import fields as t
from tpiedge.api.admin import NOTHING, USE, word_body
from tpiedge.api.completions import ANSWER_FORMS
from tpiedge.api.guard import LINK_PATH
from tpiedge.api.lookups import LOOKUPS

_NAME: Final[t.JsonSchema] = {**t.TEXT, "minLength": 1, "maxLength": 256}
_COUNT: Final[t.JsonSchema] = {"type": "integer", "minimum": 0}
_FLAG: Final[t.JsonSchema] = {"enum": ["true", "false"]}
_AFTER: Final = "the last event, of which the first is 0."
_WORKER: Final = word_body("name", "Either name that `tpiedge nodes` shows.")
_TOLD: Final[Mapping[str, str]] = {
    "/health": "Whether the server runs",
    "/ready": "Whether the cluster is ready; 503 if not",
    "/metrics": "Counters and histograms, as Prometheus reads them",
    "/version": "The version of tpiedge",
    "/openapi.json": "This document",
    "/docs": "This document, for people",
    "/v1/models": "The models that requests may name, the served one first",
    "/v1/models/{name}": "A model's card, by its name or an alias",
    "/api/tags": "The models that requests may name, the served one first",
    "/api/ps": "The model whose weights are in memory",
    "/api/version": "The release of Ollama whose API this is",
    "/admin/cluster": "The state of the cluster",
    "/admin/cache": "The files of KV pages on each machine, and their limits",
    "/admin/whatif": "What the planner predicts with one machine less, or one more",
    "/admin/nodes": "The machines and their parts",
    "/admin/nodes/pending": "Workers that wait to be let in",
    "/admin/nodes/members": "Workers that may join without a token, and revoked workers",
}
_TEXTS: Final = {"/metrics": "text/plain", "/docs": "text/html"}
_POSTED: Final[Mapping[str, tuple[str, t.JsonSchema]]] = {
    **{path: (about, table) for path, (about, table, _) in LOOKUPS.items()},
    "/admin/nodes/approve": ("Approve a worker", word_body("code", "The code on its screen.")),
    "/admin/nodes/revoke": ("Revoke a worker", _WORKER),
    "/admin/nodes/drain": ("Drain a worker", _WORKER),
    "/admin/nodes/undrain": ("Undrain a worker", _WORKER),
    "/admin/model": ("Serve another model, once no request runs or waits", USE),
    "/admin/tokens": ("Make a token and lines that install and start one more worker", NOTHING),
    "/admin/nodes/clear": ("Retry a worker that is left out", _WORKER),
}
_ERRORS: Final[Mapping[str, tuple[t.JsonSchema, tuple[str, ...]]]] = {
    "error": ({"error": {"type": "object", "required": ["message", "type", "param", "code"]}}, ("/",)),
    "anthropic_error": (
        {"type": {"const": "error"}, "error": {"type": "object", "required": ["type", "message"]}},
        ("/v1/messages",),
    ),
    "ollama_error": ({"error": t.TEXT}, ("/api/",)),
}
"""Shapes of errors, and beginnings of their paths. The last match counts."""


def _content(schema: t.JsonSchema, kind: str = "application/json") -> t.JsonSchema:
    return {"content": {kind: {"schema": schema}}}


def _parameter(name: str, where: str, schema: t.JsonSchema, about: str = "") -> t.JsonSchema:
    return {"name": name, "in": where, "required": where == "path", "schema": schema, "description": about}


_PARAMETERS: Final[Mapping[str, Sequence[t.JsonSchema]]] = {
    "/admin/whatif": (_parameter("without", "query", _NAME), _parameter("more", "query", {"const": "1"})),
    "/{id}": (
        _parameter(
            "Last-Event-ID", "header", _COUNT, "The id of the last event that came: the rest is sent."
        ),
        _parameter("stream", "query", _FLAG, "The answer comes as the stream that was asked for."),
        _parameter("starting_after", "query", _COUNT, f"In place of the header: {_AFTER}"),
    ),
}
"""Parameters of GET routes, keyed by the end of the path."""


def _routes() -> Iterator[tuple[str, str, str, t.JsonSchema | None, str]]:
    """Yields (path, method, summary, the request's schema, the answer's media type or "")."""
    for form in ANSWER_FORMS.values():
        kind = form.write.stream_type.partition(";")[0]
        yield form.path, "post", form.about, form.table, kind
        if form.kind:
            again = f"{form.path}/{{id}}"
            yield again, "get", "The rest of such an answer, or the whole of it", None, "text/event-stream"
            yield again, "delete", "Cancel and delete this answer", None, ""
    for path, about in _TOLD.items():
        yield path, "get", about, None, _TEXTS.get(path, "")
    for path, (about, table) in _POSTED.items():
        yield path, "post", about, table, ""
    yield "/admin/link", "post", "A code for a link that makes the page an administrator's, once", None, ""
    yield LINK_PATH, "post", "On the master's computer: the admin key for a code, once", None, ""
    yield "/admin/requests/{id}", "delete", "End a request that runs or waits", None, ""
    yield "/admin/cache", "delete", "Delete the files of KV pages on each machine", None, ""


def _operation(path: str, method: str, body: t.JsonSchema | None, kind: str) -> t.JsonSchema:
    failure = [name for name, (_, begins) in _ERRORS.items() if path.startswith(begins)][-1]
    parameters = [_parameter(name, "path", _NAME) for name in ("id", "name") if f"{{{name}}}" in path]
    for end, more in _PARAMETERS.items():
        parameters += more if method == "get" and path.endswith(end) else ()
    answer = {"description": "The answer", **_content({"type": "object"})}
    if kind in _TEXTS.values():
        answer = {"description": "The page", **_content(t.TEXT, kind)}
    elif kind not in ("", "application/json"):
        answer["content"][kind] = {"schema": {}}
    found: t.JsonSchema = {
        "responses": {"200": answer, "default": {"$ref": f"#/components/responses/{failure}"}},
        "parameters": parameters,
    }
    if path == "/ready":
        found["responses"]["503"] = {"description": "Not yet", **_content({"type": "object"})}
    if path in ("/health", "/ready", "/docs"):
        found["security"] = []
    elif path.startswith("/admin/"):
        found["security"] = [{"code" if path == LINK_PATH else "admin": []}]
    if body is not None:
        found["requestBody"] = {"required": True, **_content(body)}
    return found


@cache
def document() -> t.JsonSchema:
    paths: dict[str, t.JsonSchema] = {}
    for path, method, summary, body, kind in _routes():
        paths.setdefault(path, {})[method] = {"summary": summary, **_operation(path, method, body, kind)}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "tpiedge",
            "version": __version__,
            "description": "Several machines serve one model at a time. Fields that are not known here have no effect "
            "and are listed in the header x-ignored-fields. Null counts as missing. Where a model's files name "
            "defaults of sampling, those hold.",
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
                "code": {"type": "http", "scheme": "bearer", "description": "A code of POST /admin/link."},
            },
        },
        # A master on loopback needs no key.
        "security": [{"bearer": []}, {"key": []}, {}],
    }


async def send_document(_request: Request) -> Response:
    return JSONResponse(document())
