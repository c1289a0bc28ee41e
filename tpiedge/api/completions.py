"""POST /v1/completions and /v1/chat/completions."""

import contextlib
import secrets
import time
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import Request

from tpiedge.api.answering import Answering, Send
from tpiedge.api.body import Receive, parse_object
from tpiedge.api.errors import ApiError
from tpiedge.api.intake import Intake
from tpiedge.api.limits import Limits
from tpiedge.api.replies import ReplyFormatter
from tpiedge.api.schema import Reply, read_chat, read_completion
from tpiedge.api.service import Generation, Service
from tpiedge.api.stream_bridge import StreamBridge
from tpiedge.api.transcript import Transcript
from tpiedge.wire.requests import GenerationRequest

__all__ = ["Completions", "RunningAnswers"]

_PATIENCE = ("x-stainless-read-timeout", "x-stainless-timeout")
"""Seconds without a byte that OpenAI's client for Python, the one for JavaScript, bears before it tries again."""


class RunningAnswers:
    """The answers that have a thread, so that the end of the server can end them."""

    def __init__(self) -> None:
        self._bridges: set[StreamBridge] = set()

    def add(self, bridge: StreamBridge) -> None:
        self._bridges = {running for running in self._bridges if not running.join(0)}
        self._bridges.add(bridge)

    def abort(self) -> None:
        """Cancel all, on their event loop."""
        for bridge in self._bridges:
            bridge.cancel()
            bridge.end(ApiError(503, "the server is shutting down", "shutting_down"))

    def join(self, limit_s: float) -> None:
        """Wait for their threads, in all at most that long."""
        deadline = time.monotonic() + limit_s
        for bridge in self._bridges:
            bridge.join(max(0.0, deadline - time.monotonic()))


@dataclass(frozen=True, slots=True)
class _Accepted:
    request: GenerationRequest
    reply: Reply
    generation: Generation


class Completions:
    """An ASGI endpoint."""

    def __init__(
        self, service: Service, intake: Intake, running: RunningAnswers, limits: Limits, *, chat: bool
    ) -> None:
        self._service = service
        self._intake = intake
        self._running = running
        self._limits = limits
        self._chat = chat

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        with self._intake.place() as take:
            body = await self._intake.body(Request(scope, receive), take)
            work = await self._intake.run(lambda: self._accept(body), lambda late: late.generation.cancel())
        request, reply = work.request, work.reply
        tokenizer = self._service.tokenizer
        envelope = ReplyFormatter(
            id=request.id,
            created=int(time.time()),
            model=self._service.model().name,
            reply=reply,
            prompt_tokens=len(request.prompt_ids),
            tokenizer=tokenizer,
        )
        bridge = _bridge(work)
        self._running.add(bridge)
        limits = _patient(self._limits, Headers(scope=scope))
        await Answering(envelope, bridge, Transcript(tokenizer, reply.stops), limits).run(receive, send)

    def _accept(self, body: bytearray) -> _Accepted:
        """Parse, check, tokenize, submit: in a thread."""
        values = parse_object(body, self._limits.body_values)
        kind, read = ("chatcmpl", read_chat) if self._chat else ("cmpl", read_completion)
        request, reply = read(values, self._service, f"{kind}-{secrets.token_hex(12)}")
        return _Accepted(request, reply, self._service.submit(request))


def _patient(limits: Limits, headers: Headers) -> Limits:
    """`limits` for a client that says when it gives up, as OpenAI's do."""
    for name in _PATIENCE:
        with contextlib.suppress(ValueError):
            wait_s = float(headers.get(name, ""))
            if wait_s > 0:  # NaN is not
                return limits.heard_within(wait_s)
    return limits


def _bridge(work: _Accepted) -> StreamBridge:
    """Where the system has no thread left, the work is not left alone."""
    try:
        return StreamBridge(work.generation, work.request.id)
    except BaseException:
        work.generation.cancel()
        raise
