"""What Ollama's clients ask about models, of which there is one: GET /api/tags, /api/ps and /api/version, POST
/api/show."""

from collections.abc import Iterator
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tpiedge import __version__
from tpiedge.api.asked import check_model
from tpiedge.api.fields import BodyFields
from tpiedge.api.frames import Json
from tpiedge.api.intake import Intake
from tpiedge.api.ollama_format import moment
from tpiedge.api.service import Service
from tpiedge.api.vain_fields import VainFields
from tpiedge.model.call_forms import call_form
from tpiedge.model.speech import thinking_after

#: Whose API this is, for clients that want one which is new enough.
_RELEASE: Final = "0.12.0"
_NEVER: Final = "9999-12-31T23:59:59Z"


def ollama_routes(service: Service, intake: Intake, vain: VainFields) -> list[Route]:
    """They take no place in the queue."""

    async def version(_request: Request) -> Response:
        return JSONResponse({"version": _RELEASE, "tpiedge": __version__})

    async def tags(_request: Request) -> Response:
        return JSONResponse({"models": [_card(service, name) for name in service.model().names]})

    async def running(_request: Request) -> Response:
        model = service.model()
        loaded = {"expires_at": _NEVER, "size_vram": 0, "context_length": model.context_tokens}
        return JSONResponse({"models": [_card(service, model.name) | loaded]})

    async def show(request: Request) -> Response:
        return await intake.done(request, lambda values: _shown(values, service, vain))

    return [
        Route("/api/version", version, methods=["GET"]),
        Route("/api/tags", tags, methods=["GET"]),
        Route("/api/ps", running, methods=["GET"]),
        Route("/api/show", show, methods=["POST"]),
    ]


def _card(service: Service, name: str) -> Json:
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


def _shown(values: dict[str, object], service: Service, vain: VainFields) -> JSONResponse:
    """Raises ApiError."""
    if "model" not in values and "name" in values:  # as it was called before
        values = {"model": values["name"], **{key: values[key] for key in values if key != "name"}}
    fields = BodyFields(values)
    check_model(fields, service)
    fields.ignore(("verbose", "system", "template", "options"))
    fields.overlook()
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
    return JSONResponse(said, headers=vain.headers(fields.ignored))


def _capabilities(service: Service) -> Iterator[str]:
    """As far as a client that offers tools, or shows thoughts, asks for them."""
    if service.tokenizer is not None:
        yield from ("completion", "embedding")
    template = "" if service.template is None else service.template.source(tools=True)
    if "tools" in template and call_form(template):
        yield "tools"
    if thinking_after("", template):
        yield "thinking"
