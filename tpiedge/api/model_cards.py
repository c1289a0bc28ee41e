"""What clients ask about the model, of which there is one: GET /v1/models and /v1/models/NAME, for clients of OpenAI
and of Anthropic; of Ollama's GET /api/tags, /api/ps and /api/version, and POST /api/show."""

from collections.abc import Iterator
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tpiedge import __version__
from tpiedge.api import tables as t
from tpiedge.api.answer_fields import MODEL, check_model
from tpiedge.api.errors import ApiError, is_anthropic
from tpiedge.api.fields import BodyFields, ignored_header
from tpiedge.api.formats import Json
from tpiedge.api.intake import Intake
from tpiedge.api.ollama import moment
from tpiedge.api.service import ModelInfo, Service
from tpiedge.model.call_reader import call_form
from tpiedge.model.speech import thinking_after

#: Of Ollama whose API this is, for clients that want one which is new enough.
_RELEASE: Final = "0.12.0"
SHOW: Final = t.body("model", model=MODEL, **t.vain("verbose", "system", "template", "options"))


def model_routes(service: Service) -> list[Route]:
    """They take no place in the queue."""

    async def models(request: Request) -> Response:
        model = service.model()
        if not is_anthropic(request.scope["headers"]):
            return JSONResponse({"object": "list", "data": [_card(model, name) for name in model.names]})
        cards = [_anthropic_card(model, name) for name in model.names]
        ends = {"first_id": model.names[0], "last_id": model.names[-1]}
        return JSONResponse({"data": cards, "has_more": False, **ends})

    async def one(request: Request) -> Response:
        """The model under its first name, whichever the client knows it by."""
        model, name = service.model(), request.path_params["name"]
        if not model.is_called(name):
            raise ApiError(
                404, f"the model {name[:100]!r} is not served here", "model_not_found", param="model"
            )
        card = _anthropic_card if is_anthropic(request.scope["headers"]) else _card
        return JSONResponse(card(model, model.name))

    return [
        Route("/v1/models", models, methods=["GET"]),
        Route("/v1/models/{name:path}", one, methods=["GET"]),
    ]


def _card(model: ModelInfo, name: str) -> Json:
    return {
        "id": name,
        "object": "model",
        "created": model.created,
        "owned_by": "tpiedge",
        "context_length": model.context_tokens,
        "also_called": [other for other in model.names if other != name],
    }


def _anthropic_card(model: ModelInfo, name: str) -> Json:
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": moment(model.created),
        "lifecycle": "active",
        "max_input_tokens": model.context_tokens,
        "max_tokens": model.context_tokens,
    }


def ollama_routes(service: Service, intake: Intake) -> list[Route]:
    """They take no place in the queue."""

    async def version(_request: Request) -> Response:
        return JSONResponse({"version": _RELEASE, "tpiedge": __version__})

    async def tags(_request: Request) -> Response:
        return JSONResponse({"models": [_ollama_card(service, name) for name in service.model().names]})

    async def running(_request: Request) -> Response:
        model = service.model()
        loaded = {
            "expires_at": "9999-12-31T23:59:59Z",
            "size_vram": 0,
            "context_length": model.context_tokens,
        }
        return JSONResponse({"models": [_ollama_card(service, model.name) | loaded]})

    async def show(request: Request) -> Response:
        return await intake.done(request, lambda values: _shown(values, service))

    return [
        Route("/api/version", version, methods=["GET"]),
        Route("/api/tags", tags, methods=["GET"]),
        Route("/api/ps", running, methods=["GET"]),
        Route("/api/show", show, methods=["POST"]),
    ]


def _ollama_card(service: Service, name: str) -> Json:
    """The model under one of its names."""
    model = service.model()
    return {
        "name": name,
        "model": name,
        "modified_at": moment(model.created),
        "size": model.nbytes,
        "digest": model.digest,
        "details": _details(service),
    }


def _details(service: Service) -> Json:
    model = service.model()
    return {
        "parent_model": "",
        "format": "tpiedge",
        "family": model.family,
        "families": [model.family],
        "parameter_size": "",
        "quantization_level": model.precision,
    }


def _shown(values: dict[str, object], service: Service) -> JSONResponse:
    """Raises ApiError."""
    if "model" not in values and "name" in values:  # as it was called before
        values = {"model": values["name"], **{key: values[key] for key in values if key != "name"}}
    fields = BodyFields(values, SHOW)
    check_model(fields, service)
    model = service.model()
    said = {
        "modelfile": "",
        "parameters": "",
        "template": "",
        "modified_at": moment(model.created),
        "details": _details(service),
        "model_info": {
            "general.architecture": model.family,
            f"{model.family}.context_length": model.context_tokens,
            f"{model.family}.embedding_length": model.width,
        },
        "capabilities": list(_capabilities(service)),
    }
    return JSONResponse(said, headers=ignored_header(fields.ignored))


def _capabilities(service: Service) -> Iterator[str]:
    """As far as a client that offers tools, or shows thoughts, asks for them."""
    if service.tokenizer is not None:
        yield from ("completion", "embedding")
    template = "" if service.template is None else service.template.source(tools=True)
    if "tools" in template and call_form(template):
        yield "tools"
    if thinking_after("", template):
        yield "thinking"
