"""Routes that need no cluster: versions, the model, tokens of texts."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tpiedge import __version__
from tpiedge.api import fields as t
from tpiedge.api.anthropic import COUNT, count_tokens
from tpiedge.api.errors import ApiError, is_anthropic, refused
from tpiedge.api.fields import BodyFields, ignored_header
from tpiedge.api.formats import Json
from tpiedge.api.intake import Intake
from tpiedge.api.messages import MESSAGES, read_messages
from tpiedge.api.ollama import ABSENT, moment, usual_parameters
from tpiedge.api.openai import SWITCHES, rendered
from tpiedge.api.parsed import MODEL, TOKEN_IDS, encode, found_model, named_model, read_token_ids
from tpiedge.local.served_models import ServedModel
from tpiedge.local.service import Service
from tpiedge.model.call_reader import call_form
from tpiedge.model.output import thinking_after

#: The version of Ollama that clients are told: some clients demand a recent version.
_RELEASE: Final = "0.12.0"
_LAST_MOMENT: Final = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()
_SHOW: Final = t.body(model=MODEL)
_TOKENIZE: Final = t.body(
    model=MODEL,
    prompt=t.text(),
    content=t.text("As llama.cpp names it."),
    messages=MESSAGES,
    chat_template_kwargs=SWITCHES,
    add_special_tokens=t.flag("Whether a `prompt` begins as the model's texts do.", default=True),
    add_special=t.flag("The same of a `content`."),
    parse_special=t.flag("Whether special tokens in the text are read as tokens.", default=True),
    return_token_strs=t.flag("Whether to report the text of each token."),
    with_pieces=t.flag("The same, as llama.cpp names it."),
)
_DETOKENIZE: Final = t.body("tokens", model=MODEL, tokens=TOKEN_IDS)


def lookup_routes(service: Service, intake: Intake) -> list[Route]:
    def route(path: str) -> Route:
        async def answer(request: Request) -> Response:
            found, ignored = await intake.done(request, lambda values: looked_up(path, values, service))
            return JSONResponse(found, headers=ignored_header(ignored))

        return Route(path, answer, methods=["POST"])

    def told(path: str, find: Callable[[Request, Service], Json]) -> Route:
        async def answer(request: Request) -> Response:
            # Reads disks: new packs are looked at.
            return JSONResponse(await intake.run(intake.client(request), lambda: find(request, service)))

        return Route(path, answer, methods=["GET"])

    return [
        told("/v1/models", _models),
        told("/v1/models/{name:path}", _one_model),
        told("/version", lambda *_: {"version": __version__}),
        told("/api/version", lambda *_: {"version": _RELEASE, "tpiedge": __version__}),
        told("/api/tags", lambda *_: {"models": [_tag(*one) for one in _offered(service)]}),
        told("/api/ps", _loaded),
        *map(route, LOOKUPS),
        *(_absent(path, *found) for path, found in ABSENT.items()),
    ]


def _absent(path: str, methods: Sequence[str], instead: str) -> Route:
    async def refuse(_request: Request) -> Response:
        raise ApiError(501, instead, "not_supported")

    return Route(path, refuse, methods=[*methods])


def looked_up(path: str, values: dict[str, object], service: Service) -> tuple[Json, tuple[str, ...]]:
    """Returns (the answer, the names of the ignored fields). Raises ApiError."""
    _, table, find = LOOKUPS[path]
    if path == "/api/show" and "model" not in values and "name" in values:  # the older name of the field
        values = {"model": values["name"], **{key: values[key] for key in values if key != "name"}}
    fields = BodyFields(values, table)
    return find(fields, named_model(fields, service)), fields.ignored


def _offered(service: Service) -> list[tuple[ServedModel, str]]:
    return [(model, name) for model in service.offered() for name in model.names]


def _models(request: Request, service: Service) -> Json:
    offered = _offered(service)
    if not is_anthropic(request.headers):
        return {"object": "list", "data": [_card(*one) for one in offered]}
    cards = [_anthropic_card(*one) for one in offered]
    return {"data": cards, "has_more": False, "first_id": offered[0][1], "last_id": offered[-1][1]}


def _one_model(request: Request, service: Service) -> Json:
    """Shows the model under its first name."""
    model = found_model(service.described, request.path_params["name"])
    return (_anthropic_card if is_anthropic(request.headers) else _card)(model, model.name)


def _loaded(_request: Request, service: Service) -> Json:
    status, model = service.status(), service.model()
    if status.asleep:
        return {"models": []}
    end = moment(min(time.time() + status.kept_s, _LAST_MOMENT))
    loaded = {"expires_at": end, "size_vram": 0, "context_length": model.context_tokens}
    return {"models": [_tag(model, model.name) | loaded]}


def _card(model: ServedModel, name: str) -> Json:
    return {
        "id": name,
        "object": "model",
        "created": model.created,
        "owned_by": "tpiedge",
        "context_length": model.context_tokens,
        "also_called": [other for other in model.names if other != name],
    }


def _anthropic_card(model: ServedModel, name: str) -> Json:
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": moment(model.created),
        "lifecycle": "active",
        "max_input_tokens": model.context_tokens,
        "max_tokens": model.context_tokens,
    }


def _tag(model: ServedModel, name: str) -> Json:
    return {
        "name": name,
        "model": name,
        "modified_at": moment(model.created),
        "size": model.nbytes,
        "digest": model.digest,
        "details": _details(model),
    }


def _details(model: ServedModel) -> Json:
    return {
        "parent_model": "",
        "format": "tpiedge",
        "family": model.family,
        "families": [model.family],
        "parameter_size": "",
        "quantization_level": model.precision,
    }


def _shown(_fields: BodyFields, model: ServedModel) -> Json:
    return {
        "modelfile": "# There are no Modelfiles here: 'tpiedge show MODEL' describes a model.",
        "parameters": usual_parameters(model.usual_sampling),
        "license": "'tpiedge show MODEL' on the master's computer says it.",
        "template": "",
        "modified_at": moment(model.created),
        "details": _details(model),
        "model_info": {
            "general.architecture": model.family,
            f"{model.family}.context_length": model.context_tokens,
            f"{model.family}.embedding_length": model.width,
        },
        "capabilities": list(_capabilities(model)),
    }


def _capabilities(model: ServedModel) -> Iterator[str]:
    if model.tokenizer is not None:
        yield from ("completion", "embedding")
    template = "" if model.template is None else model.template.source(tools=True)
    if "tools" in template and call_form(template):
        yield "tools"
    if thinking_after("", template):
        yield "thinking"


def _tokens(fields: BodyFields, model: ServedModel) -> Json:
    """Answers /tokenize. Raises ApiError."""
    found = [key for key in ("messages", "content", "prompt") if fields.get(key) is not None]
    if not found:
        raise refused("'prompt' or 'messages' is missing", "prompt", "missing_required_parameter")
    param, *others = found
    # llama.cpp adds special tokens only on demand.
    wish = {"content": "add_special", "prompt": "add_special_tokens"}.get(param, "")
    for other in (*others, "add_special", "add_special_tokens"):
        if other != wish and fields.get(other) is not None:
            fields.ignore(other)
    if param == "messages":
        ids, _ = rendered(fields, read_messages(fields), model)
    else:
        given = fields.needed(param)
        special, parse = fields.get(wish, param == "prompt"), fields.get("parse_special", True)
        ids = encode(given, model, param, add_special=special, parse_special=parse)
    said: Json = {"tokens": ids, "count": len(ids), "max_model_len": model.context_tokens}
    shown = fields.get("return_token_strs", False) or fields.get("with_pieces", False)
    if shown and model.tokenizer is not None:
        said["token_strs"] = [model.tokenizer.decode([token], skip_special=False) for token in ids]
    return said


def _text(fields: BodyFields, model: ServedModel) -> Json:
    """Answers /detokenize. Raises ApiError."""
    if model.tokenizer is None:
        raise refused("the model has no tokenizer", "tokens")
    tokens, most = fields.get("tokens"), model.context_tokens
    if len(tokens) > most:
        raise fields.wrong("tokens", f"has more than {most} tokens, all that the context has")
    found = model.tokenizer.decode(read_token_ids(tokens, "tokens", model), skip_special=False)
    return {"prompt": found, "content": found}


LOOKUPS: Final[Mapping[str, tuple[str, t.JsonSchema, Callable[[BodyFields, ServedModel], Json]]]] = {
    "/tokenize": ("The tokens of a text or a chat", _TOKENIZE, _tokens),
    "/detokenize": ("The text of tokens", _DETOKENIZE, _text),
    "/v1/messages/count_tokens": ("The tokens of such a request", COUNT, count_tokens),
    "/api/show": ("What is known of a model", _SHOW, _shown),
}
"""Routes with a body, by path: (summary, fields, function that answers)."""
