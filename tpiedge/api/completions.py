"""POST of what is answered, as /v1/chat/completions, and GET of the answers that clients may come again for."""

import re
import secrets
import time
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, replace
from typing import Any, Final

from starlette.requests import Request
from starlette.routing import Route

from tpiedge.answers.log import AnswerLog, Parting
from tpiedge.answers.shelf import AnswerShelf
from tpiedge.api import anthropic, embeddings, ollama, openai_request, responses
from tpiedge.api.answering import Answering, Work, send_json
from tpiedge.api.asked import AnsweredAtOnce, FormatName
from tpiedge.api.body import Receive, Send
from tpiedge.api.errors import ApiError, refused
from tpiedge.api.fields import ignored_header
from tpiedge.api.formats import AnswerForm
from tpiedge.api.guard import key_of
from tpiedge.api.intake import Intake
from tpiedge.api.record_folder import RecordFolder
from tpiedge.api.records import AcceptedRequest, marks
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
        """Nobody comes again for answers of forms without a kind."""
        forms = [(name, form) for name, form in ANSWER_FORMS.items() if form.path]
        asked = [Route(form.path, _Completions(self, name), methods=["POST"]) for name, form in forms]
        kept = [
            Route(f"{form.path}/{{id}}", _Resumptions(self, name), methods=["GET", "DELETE"])
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
        asked = form.asked(values, service, name).within(self.intake.scope(sender))
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

    def find(self, form: FormatName, name: str, key: bytes) -> tuple[AnswerLog, AcceptedRequest]:
        """Whoever may not have an answer is told what is told of one that does not exist."""
        log = self.shelf.find(name)
        accepted = None if log is None else log.question.about
        if (
            log is None
            or not isinstance(accepted, AcceptedRequest)
            or accepted.reply.format != form
            or not marks(accepted.key, key)
        ):
            raise ApiError(404, "there is no such answer, or no longer", "answer_not_found")
        return log, accepted


@dataclass(frozen=True, slots=True)
class _Completions:
    """An ASGI endpoint."""

    answers: Answers
    form: FormatName

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        request, intake = Request(scope, receive), self.answers.intake
        try:
            work = await intake.done(
                request,
                lambda values: self.answers.accept(self.form, values, request),
                lambda late: late.reader.leave(Parting.FOR_GOOD),
            )
        except AnsweredAtOnce as known:
            await send_json(send, 200, known.body, ignored_header(known.ignored))
            return
        client = intake.client(request)
        await Answering(work, self.answers.service, intake, client).deliver(scope, receive, send)


@dataclass(frozen=True, slots=True)
class _Resumptions:
    """GET .../{id}, an ASGI endpoint: the rest of a stream for who says after which event, by a header or as OpenAI's
    client of responses does, else the whole answer. DELETE .../{id}: nobody wants it any more."""

    answers: Answers
    form: FormatName

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["method"] == "HEAD":  # which would take the reader's place and nothing else
            raise ApiError(405, "Method Not Allowed", "method_not_allowed", headers={"Allow": "GET, DELETE"})
        name, key = scope["path_params"]["id"], key_of(scope["headers"])
        if scope["method"] == "DELETE":
            self.answers.find(self.form, name, key)[0].delete()
            kind = f"{ANSWER_FORMS[self.form].kind}.deleted"
            await send_json(send, 200, {"id": name, "object": kind, "deleted": True})
            return
        request, intake = Request(scope), self.answers.intake
        after = _last_event(request)
        log, accepted = self.answers.find(self.form, name, key)
        reply = replace(accepted.reply, stream=accepted.reply.stream and after is not None)
        reader = log.read(collects=not reply.stream)
        form = ANSWER_FORMS[self.form]
        work = Work(accepted, accepted.choices, reply, form, reader, after=after or 0, named=True)
        client = intake.client(request)
        await Answering(work, self.answers.service, intake, client).deliver(scope, receive, send)


def _last_event(request: Request) -> int | None:
    """The number of the last event that came, from 1 on, 0 before the first; None where the whole is wanted. Raises
    ApiError 400."""
    if (last := request.headers.get("last-event-id")) is not None:
        return _number(last, "the header Last-Event-ID")
    if request.query_params.get("stream") != "true":
        return None
    after = request.query_params.get("starting_after")
    return 0 if after is None else _number(after, "the parameter 'starting_after'") + 1


def _number(text: str, name: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise refused(f"{name} is not the id of an event: send the last one that came")
    return int(text)


def name_usual_path(scope: MutableMapping[str, Any]) -> None:
    """Gives a request for a path of Azure's OpenAI, below /openai/v1 or, older, below the name of a deployment, the
    path that everybody else asks for."""
    path = scope["path"]
    if path.startswith("/openai/v1/"):
        scope["path"] = path.removeprefix("/openai")
    elif found := _DEPLOYMENT.fullmatch(path):
        scope[_DEPLOYMENT_KEY], scope["path"] = found[1], f"/v1/{found[2]}"
