"""What clients ask about texts, and about this server: POST /tokenize and /detokenize, in the forms of vLLM and of
llama.cpp's server, /v1/messages/count_tokens, and GET /version."""

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tpiedge import __version__
from tpiedge.api.anthropic_request import count_tokens
from tpiedge.api.asked import check_model, read_token_ids
from tpiedge.api.chat_request import read_variables, render_chat
from tpiedge.api.encoding import check_characters, encode
from tpiedge.api.errors import refused
from tpiedge.api.fields import BodyFields
from tpiedge.api.intake import Intake
from tpiedge.api.messages import read_messages
from tpiedge.api.service import Service
from tpiedge.api.vain_fields import VainFields


class Texts:
    """The routes. They take a place among the requests that arrive, as everything that tokenizes."""

    def __init__(self, service: Service, intake: Intake, vain: VainFields) -> None:
        self._service = service
        self._intake = intake
        self._vain = vain

    def routes(self) -> list[Route]:
        return [
            Route("/tokenize", self._tokenize, methods=["POST"]),
            Route("/detokenize", self._detokenize, methods=["POST"]),
            Route("/v1/messages/count_tokens", self._count, methods=["POST"]),
            Route("/version", _version, methods=["GET"]),
        ]

    async def _tokenize(self, request: Request) -> Response:
        return await self._answer(request, _tokens)

    async def _detokenize(self, request: Request) -> Response:
        return await self._answer(request, _text)

    async def _count(self, request: Request) -> Response:
        return await self._answer(request, count_tokens)

    async def _answer(
        self, request: Request, work: Callable[[BodyFields, Service], dict[str, object]]
    ) -> Response:
        def done(values: dict[str, object]) -> JSONResponse:
            fields = BodyFields(values)
            found = work(fields, self._service)
            return JSONResponse(found, headers=self._vain.headers(fields.ignored))

        return await self._intake.done(request, done)


def _tokens(fields: BodyFields, service: Service) -> dict[str, object]:
    """Raises ApiError."""
    check_model(fields, service, needed=False)
    ids = _ids(fields, service)
    pieces = fields.flag("return_token_strs") or fields.flag("with_pieces")
    fields.overlook()
    found: dict[str, object] = {"tokens": ids, "count": len(ids), "max_model_len": service.max_sequence}
    if pieces and service.tokenizer is not None:
        found["token_strs"] = [service.tokenizer.decode([token], skip_special=False) for token in ids]
    return found


def _ids(fields: BodyFields, service: Service) -> tuple[int, ...]:
    if fields.raw("messages") is not None:
        return render_chat(read_messages(fields), read_variables(fields), service)
    # As llama.cpp names it, where special tokens are added only on demand.
    param = "content" if fields.raw("content") is not None else "prompt"
    text = fields.text(param)
    if text is None:
        raise refused("you must provide a 'prompt' or 'messages'", "prompt", "missing_required_parameter")
    special = fields.flag("add_special" if param == "content" else "add_special_tokens", param == "prompt")
    parse = fields.flag("parse_special", True)
    check_characters(param, [text], service)
    return encode(text, service, param, add_special=special, parse_special=parse)


def _text(fields: BodyFields, service: Service) -> dict[str, object]:
    """Raises ApiError."""
    check_model(fields, service, needed=False)
    value = fields.raw("tokens")
    if not isinstance(value, list):
        raise fields.wrong_type("tokens", "an array of token ids", value)
    fields.overlook()
    if service.tokenizer is None:
        raise refused("the model has no tokenizer", "tokens")
    if len(value) > service.max_sequence:
        raise refused(
            f"'tokens' has more than {service.max_sequence} tokens, all that the context has", "tokens"
        )
    text = service.tokenizer.decode(read_token_ids(value, "tokens", service), skip_special=False)
    return {"prompt": text, "content": text}


async def _version(_request: Request) -> Response:
    return JSONResponse({"version": __version__})
