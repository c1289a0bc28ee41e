"""The routes of answers: POST requests an answer, GET resumes it, DELETE ends it."""

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

from tpiedge.answers.shelf import AnswerShelf
from tpiedge.api import anthropic, embeddings, ollama, openai, responses
from tpiedge.api.answering import Answering, Work, json_response
from tpiedge.api.errors import ApiError, refused
from tpiedge.api.fields import ignored_header
from tpiedge.api.formats import AnswerForm
from tpiedge.api.guard import key_of
from tpiedge.api.intake import Intake
from tpiedge.api.parsed import AnsweredAtOnce, FormatName
from tpiedge.api.records import AcceptedRequest, RecordFolder, key_mark, marks
from tpiedge.local.service import Service

ANSWER_FORMS: Final[Mapping[FormatName, AnswerForm]] = {
    "completion": openai.COMPLETION,
    "chat": openai.CHAT,
    "embeddings": embeddings.EMBEDDING,
    "message": anthropic.MESSAGE,
    "response": responses.RESPONSE,
    "ollama-chat": ollama.CHAT,
    "ollama-generate": ollama.GENERATE,
    "ollama-embed": ollama.EMBED,
    "ollama-embeddings": ollama.OLD_EMBED,
}
_DEPLOYMENT: Final = re.compile(r"/openai/deployments/(.+?)/((?:chat/)?completions|embeddings)")
_DEPLOYMENT_KEY: Final = "tpiedge.deployment"


@dataclass(frozen=True, slots=True)
class Answers:
    """Accepts requests and finds their answers. `records` keep answers for the next server."""

    service: Service
    intake: Intake
    shelf: AnswerShelf
    records: RecordFolder | None

    def routes(self) -> list[Route]:
        found = []
        for name, form in ANSWER_FORMS.items():
            found.append(Route(form.path, partial(self._post, name), methods=["POST"]))
            if form.kind:
                kept = partial(self._kept, name)
                found.append(Route(f"{form.path}/{{id}}", kept, methods=["GET", "DELETE"]))
        return found

    def accept(self, form_name: FormatName, values: dict[str, object], sender: Request) -> Work:
        """Checks, tokenizes and submits a request. Blocks."""
        if _DEPLOYMENT_KEY in sender.scope:
            values["model"] = sender.scope[_DEPLOYMENT_KEY]  # in Azure's paths the deployment names the model
        form, service, records = ANSWER_FORMS[form_name], self.service, self.records
        name = f"{form.prefix}-{secrets.token_hex(12)}"
        try:
            model, parsed = form.parse(values, service)
        except AnsweredAtOnce as known:
            service.load(known.model, known.keep_s)
            raise
        guard = self.intake.guard
        keeps, scope = guard.keeps_context, guard.scope(sender)
        own = partial(replace, scope=scope, pack=model.digest, keep_context=keeps)
        prompts = tuple([replace(one, request=own(one.request)) for one in parsed.prompts])
        key = key_mark(guard.key(sender))
        accepted = AcceptedRequest(
            name, prompts, parsed.each, parsed.reply, int(time.time()), model.name, model.digest, key
        )
        record = partial(records.create, accepted) if records and form.kind else lambda: None
        reader = self.shelf.accept(accepted.question(model.tokenizer), self.intake.client(sender), record)
        if parsed.keep_s is not None:  # after it waits: 0 would unload its weights first
            service.keep_weights(parsed.keep_s)
        return Work(accepted, model.tokenizer, form, reader, ignored=parsed.ignored)

    async def _post(self, form: FormatName, request: Request) -> ASGIApp:
        try:
            work = await self.intake.done(
                request,
                lambda values: self.accept(form, values, request),
                lambda work: work.reader.disconnect("for good"),
            )
        except AnsweredAtOnce as known:
            return json_response(200, known.body, ignored_header(known.ignored))
        return Answering(work, self.intake, self.intake.client(request)).deliver

    async def _kept(self, form: FormatName, request: Request) -> ASGIApp:
        if request.method == "HEAD":  # it would only replace the reader
            raise ApiError(405, "Method Not Allowed", "method_not_allowed", headers={"Allow": "GET, DELETE"})
        name, key, known = request.path_params["id"], key_of(request.headers), ANSWER_FORMS[form]
        after = _last_event(request) if request.method == "GET" else None
        log = self.shelf.find(name)
        accepted: Any = None if log is None else log.question.about
        # Another client's answer is treated like one that does not exist.
        if log is None or accepted.reply.format != form or not marks(accepted.key, key):
            raise ApiError(404, "there is no such answer, or no longer", "answer_not_found")
        if request.method == "DELETE":
            log.delete()
            return json_response(200, {"id": name, "object": f"{known.kind}.deleted", "deleted": True})
        client = self.intake.client(request)
        model = await self.intake.run(client, lambda: self.service.packed(accepted.pack))
        reply = replace(accepted.reply, stream=accepted.reply.stream and after is not None)
        reader = log.read(collects=not reply.stream)
        work = Work(replace(accepted, reply=reply), model.tokenizer, known, reader, after or 0)
        return Answering(work, self.intake, client).deliver


def _last_event(request: Request) -> int | None:
    """Returns the number of the client's last event; None asks for the whole answer. Raises ApiError."""
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
    """Rewrites a path of Azure's OpenAI API in `scope` to OpenAI's path."""
    path = scope["path"]
    if path.startswith("/openai/v1/"):
        scope["path"] = path.removeprefix("/openai")
    elif found := _DEPLOYMENT.fullmatch(path):
        scope[_DEPLOYMENT_KEY], scope["path"] = found[1], f"/v1/{found[2]}"
