"""POST /v1/completions and /v1/chat/completions, and GET of the answers that clients may come again for."""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, replace
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import Request

from tpiedge.api.answering import (
    Aborted,
    Answering,
    BeyondEnd,
    BrokenOff,
    Send,
    ServerEnds,
    Stalled,
    send_json,
)
from tpiedge.api.body import Disconnected, Receive, parse_object
from tpiedge.api.errors import ApiError, refused
from tpiedge.api.guard import Guard, key_of
from tpiedge.api.intake import Intake
from tpiedge.api.kept_answers import KeptAnswer, KeptAnswers, Parting
from tpiedge.api.limits import Limits
from tpiedge.api.replies import ReplyFormatter
from tpiedge.api.schema import Reply, read_chat, read_completion
from tpiedge.api.service import Service
from tpiedge.api.stream_bridge import AnswerFeed, StreamBridge
from tpiedge.api.transcript import Transcript
from tpiedge.api.vain_fields import VainFields
from tpiedge.wire.requests import GenerationRequest

__all__ = ["Completions", "Deliveries", "Resumptions", "RunningAnswers", "Work"]

_EVENT_DIGITS = 18
#: How often it is looked whether all was sent, which it nearly always is at once.
_UNSENT_S = 0.02

_PATIENCE = ("x-stainless-read-timeout", "x-stainless-timeout")
"""Seconds without a byte that OpenAI's client for Python, the one for JavaScript, bears before it tries again."""


class RunningAnswers:
    """The answers that are being sent, so that the end of the server can end them."""

    def __init__(self) -> None:
        self._feeds: set[AnswerFeed] = set()
        self._aborted = False

    def add(self, feed: AnswerFeed) -> None:
        self._feeds = {running for running in self._feeds if not running.join(0)}
        self._feeds.add(feed)
        if self._aborted:
            _abort(feed)

    def abort(self) -> None:
        """Cancel all, those that are still added, too. On their event loop."""
        self._aborted = True
        for feed in self._feeds:
            _abort(feed)

    def join(self, limit_s: float) -> None:
        """Wait for their threads, in all at most that long."""
        deadline = time.monotonic() + limit_s
        for feed in self._feeds:
            feed.join(max(0.0, deadline - time.monotonic()))


def _abort(feed: AnswerFeed) -> None:
    feed.cancel()
    feed.end(ServerEnds())


@dataclass(frozen=True, slots=True)
class Work:
    """A request that was taken, and how its client gets the answer.

    `open` is called on the event loop, `leave` once the client has gone. `resumable` and `after` as of Answering;
    `named`: whether the client knows the id of the answer already; `ignored`: names of fields that it sent in vain.
    """

    request: GenerationRequest
    reply: Reply
    created: int
    model: str
    open: Callable[[], AnswerFeed]
    leave: Callable[[Parting], None]
    resumable: bool = False
    after: int = 0
    named: bool = False
    ignored: tuple[str, ...] = ()


class Deliveries:
    """Brings answers to clients. For one event loop."""

    def __init__(self, service: Service, running: RunningAnswers, limits: Limits) -> None:
        self._service = service
        self._running = running
        self._limits = limits

    async def deliver(
        self, work: Work, scope: MutableMapping[str, Any], receive: Receive, send: Send
    ) -> None:
        """Send the answer. Raises as Answering.run."""
        tokenizer = self._service.tokenizer
        envelope = ReplyFormatter(
            id=work.request.id,
            created=work.created,
            model=work.model,
            reply=work.reply,
            prompt_tokens=len(work.request.prompt_ids),
            tokenizer=tokenizer,
        )
        limits = _patient(self._limits, Headers(scope=scope))
        parting, named = Parting.FOR_GOOD, work.named

        async def send_named(message: MutableMapping[str, Any]) -> None:
            nonlocal named
            await send(message)
            named = True

        try:
            # Where the system has no thread left, the work is not left alone.
            feed = work.open()
            self._running.add(feed)
            transcript = Transcript(tokenizer, work.reply.stops)
            answering = Answering(
                envelope, feed, transcript, limits, work.resumable, work.after, work.ignored
            )
            await answering.run(receive, send_named)
            if work.resumable:
                await _sent(scope, limits.write_s)
            parting = Parting.SERVED
        except (asyncio.CancelledError, Disconnected, Stalled, BrokenOff, ServerEnds, BeyondEnd):
            parting = Parting.LOST if named else Parting.FOR_GOOD
            raise
        except Aborted as error:
            if isinstance(error.__cause__, BeyondEnd):
                parting = Parting.LOST
            raise
        finally:
            work.leave(parting)


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
        vain: VainFields,
        *,
        chat: bool,
    ) -> None:
        """`kept`: where clients may come again for their answers."""
        self._service = service
        self._intake = intake
        self._deliveries = deliveries
        self._kept = kept
        self._guard = guard
        self._limits = limits
        self._vain = vain
        self._chat = chat

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        key = self._guard.key_needed(scope["headers"])
        with self._intake.place() as take:
            body = await self._intake.body(Request(scope, receive), take)
            work = await self._intake.run(
                lambda: self._accept(body, key), lambda late: late.leave(Parting.FOR_GOOD)
            )
        await self._deliveries.deliver(work, scope, receive, send)

    def _accept(self, body: bytearray, key: bytes) -> Work:
        """Parse, check, tokenize, submit: in a thread."""
        values = parse_object(body, self._limits.body_values)
        kind, read = ("chatcmpl", read_chat) if self._chat else ("cmpl", read_completion)
        asked = read(values, self._service, f"{kind}-{secrets.token_hex(12)}")
        request, reply, ignored = asked.request, asked.reply, asked.ignored
        self._vain.say(ignored)
        created, model = int(time.time()), self._service.model().name
        if self._kept is not None:
            reader = self._kept.accept(request, reply, created, model, key)
            return Work(
                request, reply, created, model, reader.open, reader.leave, resumable=True, ignored=ignored
            )
        generation = self._service.submit(request)

        def leave(parting: Parting) -> None:
            if parting is not Parting.SERVED:
                generation.cancel()

        def open_feed() -> AnswerFeed:
            return StreamBridge(generation, request.id)

        return Work(request, reply, created, model, open_feed, leave, ignored=ignored)


class Resumptions:
    """GET .../{id}, an ASGI endpoint: the rest of a stream for who says after which event, else the whole answer.
    DELETE .../{id}: nobody wants it any more.

    Whoever may not have an answer is told what is told of one that does not exist.
    """

    def __init__(self, deliveries: Deliveries, kept: KeptAnswers | None, *, chat: bool) -> None:
        self._deliveries = deliveries
        self._kept = kept
        self._chat = chat

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["method"] == "HEAD":  # which would take the reader's place and nothing else
            raise ApiError(405, "Method Not Allowed", "method_not_allowed", headers={"Allow": "GET, DELETE"})
        name, key = scope["path_params"]["id"], key_of(scope["headers"])
        if scope["method"] == "DELETE":
            self._found(name, key).delete()
            kind = "chat.completion" if self._chat else "text_completion"
            await send_json(send, 200, {"id": name, "object": f"{kind}.deleted", "deleted": True})
            return
        after = _last_event(Headers(scope=scope).get("last-event-id"))
        found = self._found(name, key)
        accepted = found.accepted
        stream = accepted.reply.stream and after is not None
        reader = found.read(collects=not stream)
        work = Work(
            accepted.request,
            replace(accepted.reply, stream=stream),
            accepted.created,
            accepted.model,
            reader.open,
            reader.leave,
            resumable=True,
            after=after or 0,
            named=True,
        )
        await self._deliveries.deliver(work, scope, receive, send)

    def _found(self, name: str, key: bytes) -> KeptAnswer:
        found = None if self._kept is None else self._kept.find(name, chat=self._chat, key=key)
        if found is None:
            raise ApiError(404, "there is no such answer, or no longer", "answer_not_found")
        return found


def _last_event(text: str | None) -> int | None:
    """The number in the header Last-Event-ID. Raises ApiError 400."""
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= _EVENT_DIGITS):
        raise refused("the header Last-Event-ID is not the id of an event: send the last one that came")
    return int(text)


async def _sent(scope: MutableMapping[str, Any], limit_s: float) -> None:
    """Waits until the connection has handed everything to the system, which sends it whatever becomes of us. Raises
    Stalled, Disconnected."""
    unsent: Callable[[], int | None] = scope["state"]["unsent"]
    deadline = time.monotonic() + limit_s
    while (left := unsent()) != 0:
        if left is None:
            raise Disconnected
        if time.monotonic() > deadline:
            raise Stalled
        await asyncio.sleep(_UNSENT_S)


def _patient(limits: Limits, headers: Headers) -> Limits:
    """`limits` for a client that says when it gives up, as OpenAI's do."""
    for name in _PATIENCE:
        with contextlib.suppress(ValueError):
            wait_s = float(headers.get(name, ""))
            if wait_s > 0:  # NaN is not
                return limits.heard_within(wait_s)
    return limits
