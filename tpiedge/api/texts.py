"""What clients ask about texts, and about this server: POST /tokenize and /detokenize, in the forms of vLLM and of
llama.cpp's server, /v1/messages/count_tokens, and GET /version."""

from collections.abc import Callable
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tpiedge import __version__
from tpiedge.api import tables as t
from tpiedge.api.answer_fields import MODEL, TOKEN_IDS, check_model
from tpiedge.api.anthropic import count_tokens
from tpiedge.api.asked import check_characters, encode, read_token_ids
from tpiedge.api.chat_request import SWITCHES, read_variables, render_chat
from tpiedge.api.errors import refused
from tpiedge.api.fields import BodyFields, ignored_header
from tpiedge.api.intake import Intake
from tpiedge.api.messages import MESSAGES, read_messages
from tpiedge.api.service import Service

TOKENIZE: Final = t.body(
    model=MODEL,
    prompt=t.text(),
    content=t.text("As llama.cpp names it."),
    messages=MESSAGES,
    chat_template_kwargs=SWITCHES,
    add_special_tokens=t.flag("Whether a `prompt` begins as the model's texts do; true without."),
    add_special=t.flag("The same of a `content`; false without."),
    parse_special=t.flag("Whether special tokens that stand in the text are tokens, not text; true without."),
    return_token_strs=t.flag("Whether the text of each token is told."),
    with_pieces=t.flag("The same, as llama.cpp names it."),
)
DETOKENIZE: Final = t.body("tokens", model=MODEL, tokens=TOKEN_IDS)

_TextAnswer = tuple[dict[str, object], BodyFields]


def text_routes(service: Service, intake: Intake) -> list[Route]:
    """They take a place among the requests that arrive, as everything that tokenizes."""

    def route(path: str, work: Callable[[dict[str, object], Service], _TextAnswer]) -> Route:
        def done(values: dict[str, object]) -> JSONResponse:
            found, fields = work(values, service)
            return JSONResponse(found, headers=ignored_header(fields.ignored))

        async def answer(request: Request) -> Response:
            return await intake.done(request, done)

        return Route(path, answer, methods=["POST"])

    return [
        route("/tokenize", _tokens),
        route("/detokenize", _text),
        route("/v1/messages/count_tokens", count_tokens),
        Route("/version", _version, methods=["GET"]),
    ]


def _tokens(values: dict[str, object], service: Service) -> _TextAnswer:
    """Raises ApiError."""
    fields = BodyFields(values, TOKENIZE)
    check_model(fields, service)
    ids = _ids(fields, service)
    found: dict[str, object] = {"tokens": ids, "count": len(ids), "max_model_len": service.max_sequence}
    if (fields.flag("return_token_strs") or fields.flag("with_pieces")) and service.tokenizer is not None:
        found["token_strs"] = [service.tokenizer.decode([token], skip_special=False) for token in ids]
    return found, fields


def _ids(fields: BodyFields, service: Service) -> tuple[int, ...]:
    found = [key for key in ("messages", "content", "prompt") if fields.raw(key) is not None]
    if not found:
        raise refused("'prompt' or 'messages' is missing", "prompt", "missing_required_parameter")
    param, *others = found
    # llama.cpp adds special tokens only on demand.
    wish = {"content": "add_special", "prompt": "add_special_tokens"}.get(param, "")
    for other in (*others, "add_special", "add_special_tokens"):
        if other != wish and fields.raw(other) is not None:
            fields.note(other)
    if param == "messages":
        return render_chat(read_messages(fields), read_variables(fields), service)
    given = fields.needed(param)
    special = fields.flag(wish, param == "prompt")
    parse = fields.flag("parse_special", True)
    check_characters(param, [given], service)
    return encode(given, service, param, add_special=special, parse_special=parse)


def _text(values: dict[str, object], service: Service) -> _TextAnswer:
    """Raises ApiError."""
    fields = BodyFields(values, DETOKENIZE)
    check_model(fields, service)
    if service.tokenizer is None:
        raise refused("the model has no tokenizer", "tokens")
    tokens = fields.raw("tokens")
    if len(tokens) > service.max_sequence:
        raise refused(
            f"'tokens' has more than {service.max_sequence} tokens, all that the context has", "tokens"
        )
    found = service.tokenizer.decode(read_token_ids(tokens, "tokens", service), skip_special=False)
    return {"prompt": found, "content": found}, fields


async def _version(_request: Request) -> Response:
    return JSONResponse({"version": __version__})
