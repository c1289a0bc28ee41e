"""GET /openapi.json: what this server answers, as an OpenAPI document, for people and tools that read such.

A route is an entry of `_PATHS`, which the tests compare with the routes. What a request may have is the table by which
it is read.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tpiedge import __version__
from tpiedge.api import tables as t
from tpiedge.api.admin import word_body
from tpiedge.api.answer_fields import TOKEN_IDS
from tpiedge.api.anthropic_request import ANTHROPIC, COUNT
from tpiedge.api.chat_request import CHAT
from tpiedge.api.completion_request import COMPLETION
from tpiedge.api.embedding_request import EMBEDDINGS
from tpiedge.api.model_cards import SHOW
from tpiedge.api.ollama_request import OLLAMA_CHAT, OLLAMA_EMBED, OLLAMA_EMBEDDINGS, OLLAMA_GENERATE
from tpiedge.api.responses_request import RESPONSES
from tpiedge.api.texts import DETOKENIZE, TOKENIZE

_EVENTS: Final = "text/event-stream"
_LINES: Final = "application/x-ndjson"
_NAME: Final[t.JsonSchema] = {**t.TEXT, "minLength": 1, "maxLength": 256}
_WHOLE: Final[t.JsonSchema] = {"type": "integer", "minimum": 0}
_NUMBER: Final[t.JsonSchema] = {"type": "number"}
_OBJECT: Final[t.JsonSchema] = {"type": "object"}
_LIST: Final[t.JsonSchema] = {"type": "array"}
_OBJECTS: Final[t.JsonSchema] = {"type": "array", "items": _OBJECT}
_MAYBE_TEXT: Final[t.JsonSchema] = {"type": ["string", "null"]}
_FLAG: Final[t.JsonSchema] = {"type": "boolean"}
_OPEN: Final[t.JsonSchema] = {"security": []}
_ADMIN: Final[t.JsonSchema] = {"security": [{"admin": []}]}


# --- answers


def _reply(*texts: str, **fields: t.JsonSchema) -> t.JsonSchema:
    """An object that is answered, which always has these; there may be more in it."""
    properties = dict.fromkeys(texts, t.TEXT) | fields
    return {"type": "object", "properties": properties, "required": list(properties)}


def _list_of(items: t.JsonSchema) -> t.JsonSchema:
    return {"type": "array", "items": items}


def _choices(**said: t.JsonSchema) -> t.JsonSchema:
    """An answer of OpenAI's, with its choices."""
    choice = _reply(index=_WHOLE, finish_reason=t.TEXT, logprobs={"type": ["object", "null"]}, **said)
    usage = _reply(prompt_tokens=_WHOLE, completion_tokens=_WHOLE, total_tokens=_WHOLE)
    return _reply("id", "object", "model", created=_WHOLE, choices=_list_of(choice), usage=usage)


def _cluster() -> t.JsonSchema:
    """The view of the cluster: the parts of it that people build on."""
    parts = ("compute", "wait", "network", "disk")
    spans = _list_of({"type": "array", "items": _NUMBER, "minItems": 2, "maxItems": 2})
    machine = _reply(
        "name",
        "host",
        rank=_WHOLE,
        spans=_reply(**dict.fromkeys(parts, spans)),
        **{f"{part}_s": _NUMBER for part in parts},
    )
    timeline = _reply(step=_WHOLE, at=_NUMBER, tokens=_WHOLE, took_s=_NUMBER, machines=_list_of(machine))
    left = {"type": ["integer", "null"], "minimum": 0}
    reading = _reply(done_tokens=_WHOLE, of_tokens=_WHOLE, tokens_per_s=_NUMBER, left_s=left)
    state = {"enum": ["queued", "reading", "answering", "paused"]}
    request = _reply(
        "id", state=state, prompt_tokens=_WHOLE, tokens=_WHOLE, max_tokens=_WHOLE, tokens_per_s=_NUMBER,
        reading=t.any_of(reading, {"type": "null"}),
    )  # fmt: skip
    return _reply(timeline=t.any_of(timeline, {"type": "null"}), requests=_list_of(request))


_CARD: Final = _reply(
    "id", "object", "owned_by", created=_WHOLE, context_length=_WHOLE, also_called=_list_of(t.TEXT)
)
_VECTOR: Final = _reply("object", index=_WHOLE, embedding=t.any_of(t.TEXT, _list_of(_NUMBER)))
_OLLAMA: Final = {"model": t.TEXT, "created_at": t.TEXT, "done": _FLAG}
_MODELS: Final = _reply(models=_OBJECTS)
_READY: Final = _reply(ready=_FLAG)
_ERRORS: Final = {
    "error": _reply(error=_reply("message", "type", "code", param=_MAYBE_TEXT)),
    "anthropic_error": _reply("type", error=_reply("type", "message")),
    "ollama_error": _reply("error"),
}


def _content(schema: t.JsonSchema, kind: str = "application/json") -> t.JsonSchema:
    return {"content": {kind: {"schema": schema}}}


def _failure(path: str) -> str:
    """The shape of errors of that path."""
    if path.startswith("/api/"):
        return "ollama_error"
    return "anthropic_error" if path.startswith("/v1/messages") else "error"


# --- operations


def _operation(summary: str, shown: t.JsonSchema, *, stream: str = "", **more: object) -> t.JsonSchema:
    """`stream`: the type that the answer has as a stream, where it may be one."""
    found = {"description": "The answer", **_content(shown)}
    if stream:
        found["content"][stream] = {"schema": {}}
    return {"summary": summary, "responses": {"200": found}, **more}


def _get(summary: str, shown: t.JsonSchema, *, stream: str = "", **more: object) -> t.JsonSchema:
    return {"get": _operation(summary, shown, stream=stream, **more)}


def _post(
    summary: str, asked: t.JsonSchema, shown: t.JsonSchema, *, stream: str = "", **more: object
) -> t.JsonSchema:
    sent = {"required": True, **_content(asked)}
    return {"post": _operation(summary, shown, stream=stream, requestBody=sent, **more)}


def _parameter(name: str, where: str, schema: t.JsonSchema, description: str = "") -> t.JsonSchema:
    return {
        "name": name,
        "in": where,
        "required": where == "path",
        "schema": schema,
        "description": description,
    }


def _path_text(name: str, description: str) -> t.JsonSchema:
    return {"parameters": [_parameter(name, "path", {**t.TEXT, "minLength": 1}, description)]}


def _kept(kind: str, shown: t.JsonSchema) -> t.JsonSchema:
    """The answers that a client of a master with --journal may come again for."""
    parameters = [
        _parameter(
            "Last-Event-ID", "header", _WHOLE, "The id of the last event that came: the rest of the stream is sent."
        ),
        _parameter(
            "stream", "query", {"enum": ["true", "false"]},
            "The answer comes as the stream that was asked for; without the header from its beginning on.",
        ),
        _parameter(
            "starting_after", "query", _WHOLE,
            "In place of the header, with 'stream': the last event that came, of which the first is 0.",
        ),
    ]  # fmt: skip
    return {
        **_path_text("id", "Of the answer, as it was given with it."),
        **_get(
            f"The rest of a {kind}, or the whole of it (--journal)",
            shown,
            stream=_EVENTS,
            parameters=parameters,
        ),
        "delete": _operation(f"Nobody wants this {kind} any more", _reply("id", "object", deleted=_FLAG)),
    }


def _order(summary: str, key: str, description: str, answered: str = "name") -> t.JsonSchema:
    return _post(summary, word_body(key, description), _reply(answered), **_ADMIN)


_COMPLETION: Final = _choices(text=t.TEXT)
_CHAT: Final = _choices(message=_reply("role", "content", refusal=_MAYBE_TEXT))
_RESPONSE: Final = _reply("id", "object", "status", "model", output=_OBJECTS)
_MESSAGE: Final = _reply("id", "type", "role", "model", content=_OBJECTS, usage=_OBJECT)
_WORKER: Final = "Either name that `tpiedge nodes` shows."

_PATHS: Final[Mapping[str, t.JsonSchema]] = {
    "/health": _get("Whether the server lives", _reply("status"), **_OPEN),
    "/ready": _get("Whether the cluster answers; 503 where not", _READY, **_OPEN),
    "/metrics": _get("Counters and histograms, as Prometheus reads them", _OBJECT),
    "/version": _get("The version of tpiedge", _reply("version")),
    "/openapi.json": _get("This document", _OBJECT),
    "/v1/models": _get("The model that is served", _reply("object", data=_list_of(_CARD))),
    "/v1/models/{name}": {
        **_path_text("name", "Of the model, or an alias of it."),
        **_get("The model's card", _CARD),
    },
    "/v1/completions": _post("Go on with a text", COMPLETION, _COMPLETION, stream=_EVENTS),
    "/v1/completions/{id}": _kept("completion", _COMPLETION),
    "/v1/chat/completions": _post("Answer a chat", CHAT, _CHAT, stream=_EVENTS),
    "/v1/chat/completions/{id}": _kept("chat completion", _CHAT),
    "/v1/embeddings": _post(
        "Vectors of texts",
        EMBEDDINGS,
        _reply(
            "object", "model", data=_list_of(_VECTOR), usage=_reply(prompt_tokens=_WHOLE, total_tokens=_WHOLE)
        ),
    ),
    "/v1/responses": _post(
        "Answer, in the form of OpenAI's responses; none is stored", RESPONSES, _RESPONSE, stream=_EVENTS
    ),
    "/v1/responses/{id}": _kept("response", _RESPONSE),
    "/v1/messages": _post("Answer, as Anthropic's API does", ANTHROPIC, _MESSAGE, stream=_EVENTS),
    "/v1/messages/{id}": _kept("message", _MESSAGE),
    "/v1/messages/count_tokens": _post("The tokens of such a request", COUNT, _reply(input_tokens=_WHOLE)),
    "/api/chat": _post(
        "Answer a chat, as Ollama does", OLLAMA_CHAT, _reply(**_OLLAMA, message=_OBJECT), stream=_LINES
    ),
    "/api/generate": _post(
        "Go on with a text, as Ollama does",
        OLLAMA_GENERATE,
        _reply(**_OLLAMA, response=t.TEXT),
        stream=_LINES,
    ),
    "/api/embed": _post("Vectors of texts, as of Ollama", OLLAMA_EMBED, _reply("model", embeddings=_LIST)),
    "/api/embeddings": _post(
        "A vector of a text, as of older versions of Ollama",
        OLLAMA_EMBEDDINGS,
        _reply(embedding=_list_of(_NUMBER)),
    ),
    "/api/show": _post("What is known of the model", SHOW, _reply(details=_OBJECT, model_info=_OBJECT)),
    "/api/tags": _get("The model that is served", _MODELS),
    "/api/ps": _get("The model that is in memory", _MODELS),
    "/api/version": _get("The release of Ollama whose API this is", _reply("version")),
    "/tokenize": _post(
        "The tokens of a text or a chat",
        TOKENIZE,
        _reply(tokens=TOKEN_IDS, count=_WHOLE, max_model_len=_WHOLE),
    ),
    "/detokenize": _post("The text of tokens", DETOKENIZE, _reply("prompt", "content")),
    "/admin/cluster": _get("The cluster as people think of it", _cluster(), **_ADMIN),
    "/admin/whatif": _get(
        "What the planner predicts with one machine less, or one more",
        _OBJECT,
        parameters=[_parameter("without", "query", _NAME), _parameter("more", "query", {"const": "1"})],
        **_ADMIN,
    ),
    "/admin/requests/{id}": {
        **_path_text("id", "Of a request that runs or waits."),
        "delete": _operation("End a request", _reply("id", deleted=_FLAG), **_ADMIN),
    },
    "/admin/nodes": _get("The machines and their parts", _OBJECT, **_ADMIN),
    "/admin/nodes/pending": _get("Workers that wait to be let in", _reply(pending=_LIST), **_ADMIN),
    "/admin/nodes/members": _get(
        "Workers that may come without a token, and those that were shut out",
        _reply(members=_LIST, revoked=_LIST),
        **_ADMIN,
    ),
    "/admin/nodes/approve": _order("Let a worker in", "code", "What its screen shows."),
    "/admin/nodes/revoke": _order("Shut a worker out", "name", _WORKER, "revoked"),
    "/admin/nodes/drain": _order("Take a worker out of the plan", "name", _WORKER),
    "/admin/nodes/undrain": _order("Take a drained worker back in", "name", _WORKER),
    "/admin/nodes/clear": _order("Try a worker that is left out again now", "name", _WORKER),
}
"""Paths as OpenAPI writes them, and what each answers by method."""


def _paths() -> t.JsonSchema:
    """With what else may be answered."""
    found: t.JsonSchema = {path: dict(methods) for path, methods in _PATHS.items()}
    for path, methods in found.items():
        failed = {"$ref": f"#/components/responses/{_failure(path)}"}
        for method in methods.keys() & {"get", "post", "delete"}:
            answers = {**methods[method]["responses"], "default": failed}
            methods[method] = {**methods[method], "responses": answers}
    found["/ready"]["get"]["responses"]["503"] = {"description": "Not yet", **_content(_READY)}
    text = {"description": "The page", **_content(t.TEXT, "text/plain")}
    found["/metrics"]["get"]["responses"]["200"] = text
    return found


@cache
def document() -> t.JsonSchema:
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
        "paths": _paths(),
        "components": {
            "responses": {
                name: {"description": "Refused, or failed", **_content(shown)}
                for name, shown in _ERRORS.items()
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
