"""POST of what is answered, as /v1/chat/completions, and GET of the answers that clients may come again for."""

import asyncio
import secrets
import time
from collections.abc import Callable, MutableMapping
from dataclasses import replace
from typing import Any, TypeAlias

from starlette.requests import Request

from tpiedge.api.answer_forms import ANSWER_FORMS
from tpiedge.api.answer_reader import AnswerReader, Parting
from tpiedge.api.answering import Send, send_json
from tpiedge.api.asked import AnsweredAtOnce, FormatName
from tpiedge.api.azure import deployment_of
from tpiedge.api.body import Receive, parse_object
from tpiedge.api.deliveries import Deliveries, RunningAnswers, Work
from tpiedge.api.errors import ApiError, refused
from tpiedge.api.fields import IgnoredFields
from tpiedge.api.further_choices import submit_choices
from tpiedge.api.guard import Guard, key_of
from tpiedge.api.intake import Intake
from tpiedge.api.kept_answer import KeptAnswer
from tpiedge.api.kept_answers import KeptAnswers
from tpiedge.api.limits import Limits
from tpiedge.api.records import key_mark
from tpiedge.api.service import Service
from tpiedge.api.stream_bridge import AnswerFeed, StreamBridge

_EVENT_DIGITS = 18

_Opened: TypeAlias = tuple[Callable[[], AnswerFeed], Callable[[Parting], None]]
"""What opens the answer, and what leaves it."""


class Completions:
    """An ASGI endpoint."""

    def __init__(
        self,
        service: Service,
        intake: Intake,
        deliveries: Deliveries,
        kept: KeptAnswers | None,
        guard: Guard,
        limits: Limits,
        ignored: IgnoredFields,
        form: FormatName,
    ) -> None:
        """`kept`: where clients may come again for their answers."""
        self._service = service
        self._intake = intake
        self._deliveries = deliveries
        self._kept = kept
        self._guard = guard
        self._limits = limits
        self._ignored = ignored
        self._form = form

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        request, loop = Request(scope, receive), asyncio.get_running_loop()
        key, client = self._guard.key_needed(scope["headers"]), self._intake.client(request)
        own = self._intake.scope(request)
        with self._intake.place(client) as take:
            body = await self._intake.body(request, take)
            try:
                accepted = self._intake.run(
                    client,
                    lambda: self._accept(body, deployment_of(scope), key, client, own, loop),
                    lambda late: late.leave(Parting.FOR_GOOD),
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
        loop: asyncio.AbstractEventLoop,
    ) -> Work:
        """Parse, check, tokenize, submit: in a thread. `deployment` counts as the request's model. The answer will be
        read on `loop`."""
        values = parse_object(body, self._limits.body_values)
        if deployment is not None:
            values["model"] = deployment
        form = ANSWER_FORMS[self._form]
        name = f"{form.prefix}-{secrets.token_hex(12)}"
        asked = form.read(values, self._service, name).within(scope)
        self._ignored.say(asked.ignored)
        created, model = int(time.time()), self._service.model().name
        if self._kept is not None:
            reader = self._kept.accept(asked, name, created, model, key, client)
            work = _kept_work(
                reader, Work(name, asked.choices, asked.reply, created, model, reader.open, reader.leave)
            )
        else:
            requests = [choice.request for choice in asked.choices]
            bridge = StreamBridge(name, *submit_choices(requests, self._service, client), loop)
            opened: _Opened = (lambda: bridge), (lambda _: bridge.cancel())
            work = Work(name, asked.choices, asked.reply, created, model, *opened)
        return replace(work, ignored=asked.ignored, mark=key_mark(key))


class Resumptions:
    """GET .../{id}, an ASGI endpoint: the rest of a stream for who says after which event, by a header or as OpenAI's
    client of responses does, else the whole answer. DELETE .../{id}: nobody wants it any more.

    Whoever may not have an answer is told what is told of one that does not exist.
    """

    def __init__(
        self, deliveries: Deliveries, running: RunningAnswers, kept: KeptAnswers | None, form: FormatName
    ) -> None:
        self._deliveries = deliveries
        self._running = running
        self._kept = kept
        self._form = form

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["method"] == "HEAD":  # which would take the reader's place and nothing else
            raise ApiError(405, "Method Not Allowed", "method_not_allowed", headers={"Allow": "GET, DELETE"})
        name, key = scope["path_params"]["id"], key_of(scope["headers"])
        if scope["method"] == "DELETE":
            if not self._running.delete(name, self._form, key):
                self._found(name, key).delete()
            kind = f"{ANSWER_FORMS[self._form].kind}.deleted"
            await send_json(send, 200, {"id": name, "object": kind, "deleted": True})
            return
        after = _last_event(Request(scope))
        found = self._found(name, key)
        accepted = found.accepted
        stream = accepted.reply.stream and after is not None
        reader = found.read(collects=not stream)
        work = Work(
            accepted.name,
            accepted.choices,
            replace(accepted.reply, stream=stream),
            accepted.created,
            accepted.model,
            reader.open,
            reader.leave,
            after=after or 0,
            named=True,
        )
        await self._deliveries.deliver(_kept_work(reader, work), scope, receive, send)

    def _found(self, name: str, key: bytes) -> KeptAnswer:
        found = None if self._kept is None else self._kept.find(name, self._form, key)
        if found is None:
            raise ApiError(404, "there is no such answer, or no longer", "answer_not_found")
        return found


def _kept_work(reader: AnswerReader, work: Work) -> Work:
    """`work`, of an answer for which its client may come again."""
    return replace(work, resumable=True, acknowledge=reader.acknowledge, recorded=reader.is_recorded)


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
