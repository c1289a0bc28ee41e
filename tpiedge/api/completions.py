"""POST of what is answered, as /v1/chat/completions, and GET of the answers that clients may come again for."""

import secrets
import time
from collections.abc import MutableMapping
from dataclasses import replace
from typing import Any

from starlette.requests import Request

from tpiedge.answers.log import AnswerLog, Parting
from tpiedge.answers.shelf import AnswerShelf
from tpiedge.api.answer_forms import ANSWER_FORMS
from tpiedge.api.answering import Send, send_json
from tpiedge.api.asked import AnsweredAtOnce, FormatName
from tpiedge.api.azure import deployment_of
from tpiedge.api.body import Receive, parse_object
from tpiedge.api.deliveries import Deliveries, Work
from tpiedge.api.errors import ApiError, refused
from tpiedge.api.fields import IgnoredFields
from tpiedge.api.guard import Guard, key_of
from tpiedge.api.intake import Intake
from tpiedge.api.limits import Limits
from tpiedge.api.moments import this_moment
from tpiedge.api.record_folder import RecordFolder
from tpiedge.api.records import AcceptedRequest, marks
from tpiedge.api.service import Service

_EVENT_DIGITS = 18


class Completions:
    """An ASGI endpoint."""

    def __init__(
        self,
        service: Service,
        intake: Intake,
        deliveries: Deliveries,
        shelf: AnswerShelf,
        records: RecordFolder | None,
        guard: Guard,
        limits: Limits,
        ignored: IgnoredFields,
        form: FormatName,
    ) -> None:
        """`records`: where answers are to survive the server."""
        self._service = service
        self._intake = intake
        self._deliveries = deliveries
        self._shelf = shelf
        self._records = records
        self._guard = guard
        self._limits = limits
        self._ignored = ignored
        self._form = form

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        key, client = self._guard.key_needed(scope["headers"]), self._intake.client(request)
        own = self._intake.scope(request)
        with self._intake.place(client) as take:
            body = await self._intake.body(request, take)
            try:
                accepted = self._intake.run(
                    client,
                    lambda: self._accept(body, deployment_of(scope), key, client, own),
                    lambda late: late.reader.leave(Parting.FOR_GOOD),
                )
                work = await self._intake.awaited(accepted, request)
            except AnsweredAtOnce as known:
                await send_json(send, 200, known.body, self._ignored.headers(known.ignored))
                return
        await self._deliveries.deliver(work, scope, receive, send)

    def _accept(
        self,
        body: bytearray,
        deployment: str | None,
        key: bytes,
        client: str,
        scope: str,
    ) -> Work:
        """Parse, check, tokenize, submit: in a thread. `deployment` counts as the request's model."""
        values = parse_object(body, self._limits.body_values)
        if deployment is not None:
            values["model"] = deployment
        form, service, records = ANSWER_FORMS[self._form], self._service, self._records
        name = f"{form.prefix}-{secrets.token_hex(12)}"
        asked = form.read(values, service, name).within(scope)
        self._ignored.say(asked.ignored)
        pack, moment = ("", this_moment()) if records is None else (records.pack, records.moment())
        accepted = AcceptedRequest.of(asked, name, int(time.time()), service.model().name, pack, key, moment)
        question = accepted.question(asked.choices, service.tokenizer)
        reader = self._shelf.accept(
            question, client, lambda: records.begin(accepted) if records and form.kind else None
        )
        return Work(accepted, asked.choices, asked.reply, reader, bool(form.kind), ignored=asked.ignored)


class Resumptions:
    """GET .../{id}, an ASGI endpoint: the rest of a stream for who says after which event, by a header or as OpenAI's
    client of responses does, else the whole answer. DELETE .../{id}: nobody wants it any more.

    Whoever may not have an answer is told what is told of one that does not exist.
    """

    def __init__(self, deliveries: Deliveries, shelf: AnswerShelf, form: FormatName) -> None:
        self._deliveries = deliveries
        self._shelf = shelf
        self._form = form

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["method"] == "HEAD":  # which would take the reader's place and nothing else
            raise ApiError(405, "Method Not Allowed", "method_not_allowed", headers={"Allow": "GET, DELETE"})
        name, key = scope["path_params"]["id"], key_of(scope["headers"])
        if scope["method"] == "DELETE":
            self._found(name, key)[0].delete()
            kind = f"{ANSWER_FORMS[self._form].kind}.deleted"
            await send_json(send, 200, {"id": name, "object": kind, "deleted": True})
            return
        after = _last_event(Request(scope))
        log, accepted = self._found(name, key)
        reply = replace(accepted.reply, stream=accepted.reply.stream and after is not None)
        reader = log.read(collects=not reply.stream)
        work = Work(accepted, accepted.choices, reply, reader, True, after=after or 0, named=True)
        await self._deliveries.deliver(work, scope, receive, send)

    def _found(self, name: str, key: bytes) -> tuple[AnswerLog, AcceptedRequest]:
        log = self._shelf.find(name)
        accepted = None if log is None else log.question.about
        allowed = (
            isinstance(accepted, AcceptedRequest)
            and accepted.reply.format == self._form
            and marks(accepted.key, key)
        )
        if log is None or not isinstance(accepted, AcceptedRequest) or not allowed:
            raise ApiError(404, "there is no such answer, or no longer", "answer_not_found")
        return log, accepted


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
    if not (text.isascii() and text.isdigit() and len(text) <= _EVENT_DIGITS):
        raise refused(f"{name} is not the id of an event: send the last one that came")
    return int(text)
