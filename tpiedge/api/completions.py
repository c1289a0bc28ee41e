"""POST of what is answered, as /v1/chat/completions, and GET of the answers that clients may come again for."""

import re
import secrets
import time
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp

from tpiedge.answers.log import Parting
from tpiedge.answers.shelf import AnswerShelf
from tpiedge.api import anthropic, embeddings, ollama, openai_request, responses
from tpiedge.api.answering import Answering, Work, send_json
from tpiedge.api.asked import AnsweredAtOnce, FormatName
from tpiedge.api.errors import ApiError, refused
from tpiedge.api.fields import ignored_header
from tpiedge.api.formats import AnswerForm
from tpiedge.api.guard import key_of
from tpiedge.api.intake import Intake
from tpiedge.api.records import AcceptedRequest, RecordFolder, marks
from tpiedge.api.service import Service

ANSWER_FORMS: Final[Mapping[FormatName, AnswerForm]] = {
    **openai_request.FORMS, **embeddings.FORMS, **anthropic.FORMS, **responses.FORMS, **ollama.FORMS,
}  # fmt: skip
"""Every form that answers have."""
_DEPLOYMENT: Final = re.compile(r"/openai/deployments/(.+?)/((?:chat/)?completions|embeddings)")
_DEPLOYMENT_KEY: Final = "tpiedge.deployment"


@dataclass(frozen=True, slots=True)
class Answers:
    """Accepts requests and finds their answers. `records`: where answers are to survive the server."""

    service: Service
    intake: Intake
    shelf: AnswerShelf
    records: RecordFolder | None

    def routes(self) -> list[Route]:
        """Clients come again only for answers of forms that have a kind."""
        forms = [(name, form) for name, form in ANSWER_FORMS.items() if form.path]
        asked = [Route(form.path, partial(self._asked, name), methods=["POST"]) for name, form in forms]
        kept = [
            Route(f"{form.path}/{{id}}", partial(self._kept, name), methods=["GET", "DELETE"])
            for name, form in forms
            if form.kind
        ]
        return asked + kept

    def accept(self, form_name: FormatName, values: dict[str, object], sender: Request) -> Work:
        """Check, tokenize, submit: in a thread. The deployment of a path of Azure's counts as the model."""
        if _DEPLOYMENT_KEY in sender.scope:
            values["model"] = sender.scope[_DEPLOYMENT_KEY]
        form, service, records = ANSWER_FORMS[form_name], self.service, self.records
        name = f"{form.prefix}-{secrets.token_hex(12)}"
        asked, scope = form.asked(values, service, name), self.intake.scope(sender)
        choices = [replace(one, request=replace(one.request, scope=scope)) for one in asked.choices]
        asked = replace(asked, choices=tuple(choices))
        accepted = AcceptedRequest.of(
            asked,
            name,
            int(time.time()),
            service.model().name,
            "" if records is None else records.pack,
            self.intake.key(sender),
        )
        question = accepted.question(asked.choices, service.tokenizer)
        reader = self.shelf.accept(
            question,
            self.intake.client(sender),
            lambda: records.begin(accepted) if records and form.kind else None,
        )
        return Work(accepted, asked.choices, asked.reply, form, reader, ignored=asked.ignored)

    async def _asked(self, form: FormatName, request: Request) -> ASGIApp:
        try:
            work = await self.intake.done(
                request,
                lambda values: self.accept(form, values, request),
                lambda late: late.reader.leave(Parting.FOR_GOOD),
            )
        except AnsweredAtOnce as known:
            return _json(known.body, ignored_header(known.ignored))
        return Answering(work, self.service, self.intake, self.intake.client(request)).deliver

    async def _kept(self, form: FormatName, request: Request) -> ASGIApp:
        """GET .../{id}: the rest of a stream for a client that says after which event, by a header or as OpenAI's
        client of responses does, else the whole answer. DELETE .../{id}: nobody wants it any more."""
        if request.method == "HEAD":  # which would take the reader's place and nothing else
            raise ApiError(405, "Method Not Allowed", "method_not_allowed", headers={"Allow": "GET, DELETE"})
        name, key, kind = request.path_params["id"], key_of(request.scope["headers"]), ANSWER_FORMS[form].kind
        after = _last_event(request) if request.method == "GET" else None
        log = self.shelf.find(name)
        accepted = None if log is None else log.question.about
        # A client that may not have an answer is told what is told of one that does not exist.
        if (
            log is None
            or not isinstance(accepted, AcceptedRequest)
            or accepted.reply.format != form
            or not marks(accepted.key, key)
        ):
            raise ApiError(404, "there is no such answer, or no longer", "answer_not_found")
        if request.method == "DELETE":
            log.delete()
            return _json({"id": name, "object": f"{kind}.deleted", "deleted": True})
        reply = replace(accepted.reply, stream=accepted.reply.stream and after is not None)
        reader = log.read(collects=not reply.stream)
        work = Work(
            accepted, accepted.choices, reply, ANSWER_FORMS[form], reader, after=after or 0, named=True
        )
        return Answering(work, self.service, self.intake, self.intake.client(request)).deliver


def _json(value: object, headers: MutableMapping[str, str] | None = None) -> ASGIApp:
    return lambda _scope, _receive, send: send_json(send, 200, value, headers)


def _last_event(request: Request) -> int | None:
    """The number of the last event that came, from 1 on, 0 before the first; None where the whole is wanted. Raises
    ApiError 400."""
    given, name, first = request.headers.get("last-event-id"), "the header Last-Event-ID", 1
    if given is None:
        if request.query_params.get("stream") != "true":
            return None
        given, name, first = request.query_params.get("starting_after"), "the parameter 'starting_after'", 0
    if given is None:
        return 0
    if not (given.isascii() and given.isdigit() and len(given) <= 18):
        raise refused(f"{name} is not the id of an event: send the last one that came")
    return int(given) + 1 - first


def name_usual_path(scope: MutableMapping[str, Any]) -> None:
    """Gives a request for a path of Azure's OpenAI, below /openai/v1 or, older, below the name of a deployment, the
    path that everybody else asks for."""
    path = scope["path"]
    if path.startswith("/openai/v1/"):
        scope["path"] = path.removeprefix("/openai")
    elif found := _DEPLOYMENT.fullmatch(path):
        scope[_DEPLOYMENT_KEY], scope["path"] = found[1], f"/v1/{found[2]}"
