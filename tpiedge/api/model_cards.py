"""GET /v1/models and /v1/models/NAME: the model under each of its names, for clients of OpenAI and of Anthropic."""

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tpiedge.api.errors import ApiError, is_anthropic
from tpiedge.api.frames import Json
from tpiedge.api.ollama_format import moment
from tpiedge.api.service import ModelInfo, Service


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
