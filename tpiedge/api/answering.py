"""Turns the events of a request's choices into an answer, streamed or whole.

Laws:

1. A stream that fails ends with an error event and an unfinished body. One choice's error fails all choices.
2. A stream begins with its first event. After `_OPEN_S` without an event, it begins with a ping. A slow whole answer
   begins with blank lines. A failure before the first byte is an HTTP error.
3. If a request's headers name a read timeout, the client gets a byte within half of this time.
4. Events of a resumable answer are numbered from 1. They depend on the answer's tokens alone. If the server ends, a
   recorded answer breaks off without an error."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import Response

from tpiedge.answers.log import AnswerReader, DisconnectReason, ServerEnds
from tpiedge.api.body import Disconnected, Receive, Send, left
from tpiedge.api.errors import ApiError, of_exception, refused
from tpiedge.api.fields import ignored_header
from tpiedge.api.formats import REQUEST_ID, RESUMABLE, AnswerForm, json_bytes, long_json
from tpiedge.api.intake import Intake
from tpiedge.api.limits import Limits
from tpiedge.api.records import AcceptedRequest
from tpiedge.api.transcript import TextPiece
from tpiedge.master.journal import Paused
from tpiedge.master.request_times import Reading
from tpiedge.model.tokenizer import Tokenizer
from tpiedge.units import format_seconds

_TIMEOUT_HEADERS = ("x-stainless-read-timeout", "x-stainless-timeout")
"""Headers of OpenAI's clients: the seconds without a byte after which clients retry."""

#: The time until the first ping; an error before the first byte has its own HTTP status.
_OPEN_S = 0.25
_NO_SNIFF = {"x-content-type-options": "nosniff"}
_AT_ONCE = {"x-accel-buffering": "no"}
_STREAM_HEADERS = {"cache-control": "no-cache", **_NO_SNIFF, **_AT_ONCE}
_JSON_HEADERS = {"content-type": "application/json", "cache-control": "no-store", **_NO_SNIFF}


class Aborted(Exception):
    """Raised to leave the body unfinished. The client gets the bytes that were sent before."""


@dataclass(frozen=True, slots=True)
class Work:
    """An accepted request and its reader. `after` is the number of the client's last event. It is None if the client
    does not know the answer's id yet. `ignored` has the names of ignored fields."""

    accepted: AcceptedRequest
    tokenizer: Tokenizer | None
    form: AnswerForm
    reader: AnswerReader
    after: int | None = None
    ignored: tuple[str, ...] = ()


class Answering:
    """Sends one answer, once. `client`: the client's name for quotas."""

    def __init__(self, work: Work, intake: Intake, client: str) -> None:
        self._work, self._reader = work, work.reader
        self._intake, self._client = intake, client
        self._limits, self._started = intake.limits, False
        self._form = work.form.write(work.accepted, work.tokenizer)

    async def deliver(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Sends the answer. Raises ApiError before the first byte, Aborted after it, and Disconnected at any time."""
        reason: DisconnectReason | None = None
        named, stream = self._work.after is not None, self._form.reply.stream
        # The client of a whole answer without a record rarely learns its id before the end.
        heard_of = stream or self._reader.log.lasting
        self._limits = _with_client_timeout(self._limits, Headers(scope=scope))

        async def send_named(message: MutableMapping[str, Any]) -> None:
            nonlocal named
            await send(message)
            named = named or heard_of

        watcher = asyncio.create_task(self._watch(receive))
        try:
            await (self._stream(send_named) if stream else self._whole(send_named))
            reason = "sent"
        except Disconnected:
            raise
        except Exception as error:
            told, ends = of_exception(error, self._form.reply.grammar or None), isinstance(error, ServerEnds)
            if not self._started:  # the response is an error
                reason = "sent" if named and not ends else None
                raise told from error
            if ends and self._work.form.kind and self._reader.log.recorded:  # the next server resumes it
                raise Disconnected from error
            last = self._form.broken(told) if stream else json_bytes(self._form.failure(told))
            await self._write(send_named, last, more=stream)
            reason = "sent"
            if stream:
                raise Aborted from error
        finally:
            known: DisconnectReason = reason or ("lost" if named else "for good")
            self._reader.disconnect(known if self._work.form.kind else "for good")
            watcher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watcher

    async def _watch(self, receive: Receive) -> None:
        limit_s = self._limits.answer_s
        why: Exception = Disconnected()
        try:
            async with asyncio.timeout(limit_s):
                await left(receive)
        except TimeoutError:
            limit = format_seconds(limit_s or 0.0)
            why = ApiError(504, f"the answer took more than {limit}", "deadline_exceeded")
        self._reader.end(why)

    async def _pieces(self, quiet_s: float) -> AsyncIterator[tuple[int, TextPiece] | None]:
        """Yields (choice, piece), or None when a sign of life is due. `quiet_s`: seconds until the first sign of
        life."""
        now = asyncio.get_running_loop().time
        due = now() + quiet_s
        open_choices, stream = set(range(len(self._form.transcripts))), self._form.reply.stream
        for number in itertools.count():
            # Other tasks run here: a finished answer never waits below, and 16 events with scores take milliseconds.
            if number % 16 == 0:
                await asyncio.sleep(0)
                if now() >= due:
                    due = now() + self._limits.ping_s
                    yield None
            choice, event = await self._reader.next(max(0.0, due - now())) or (0, None)
            if event is not None and choice not in open_choices:
                continue
            piece = None
            if event is not None:
                for part in self._form.transcripts[choice].before(event):
                    yield choice, part
                    await asyncio.sleep(0)
                piece = self._form.transcripts[choice].feed(event)
            alive = event is None or (stream and isinstance(event, Paused | Reading))
            if alive or (piece is not None and stream):
                due = now() + self._limits.ping_s
            if piece is not None and piece.last is not None:
                open_choices.remove(choice)
                self._reader.log.complete(choice)
            if piece is not None:
                yield choice, piece
            elif alive:
                yield None
            if not open_choices:
                return

    async def _whole(self, send: Send) -> None:
        pieces: list[list[TextPiece]] = [[] for _ in self._form.transcripts]
        quiet_s = self._limits.quiet_s
        async for found in self._pieces(min(_OPEN_S, quiet_s) if self._reader.log.lasting else quiet_s):
            if found is not None:
                pieces[found[0]].append(found[1])
                continue
            await self._start(send, {**_JSON_HEADERS, **_AT_ONCE})
            await self._write(send, b"\n")  # JSON may begin with blank lines

        def written() -> bytes:
            return long_json(self._form.whole(pieces))

        # Encoding thousands of scores takes long.
        scored = self._form.reply.logprobs is not None
        body = await self._intake.run(self._client, written) if scored else written()
        await self._start(send, {**_JSON_HEADERS, "content-length": str(len(body))})
        await self._write(send, body, more=False)

    async def _stream(self, send: Send) -> None:
        now, number, after = asyncio.get_running_loop().time, 0, self._work.after or 0
        quiet_s = min(_OPEN_S, self._limits.ping_s)
        due = now() + quiet_s
        headers = {"content-type": self._form.stream_type, **_STREAM_HEADERS}
        async for frames in self._all_frames(quiet_s):
            told = []
            for frame in frames or ():
                number += 1
                if number > after:
                    told.append(b"id: %d\n%b" % (number, frame) if self._work.form.kind else frame)
            heard = bool(frames) and number >= after
            if frames is None or (not heard and now() >= due):
                reasons = (one.paused or one.reading for one in self._form.transcripts)
                told.append(self._form.alive(next(filter(None, reasons), "")))
            elif not heard:
                continue
            await self._start(send, headers)
            for one in told:
                await self._write(send, one)
            due = now() + self._limits.ping_s
        if number < after:
            last = f"the answer's last one, which is {number}"
            raise refused(f"the event id is beyond {last}: send the id of the last event that arrived")
        await self._start(send, headers)  # if the client has the last event already
        await self._write(send, b"", more=False)

    async def _all_frames(self, quiet_s: float) -> AsyncIterator[Sequence[bytes] | None]:
        opened = False
        async for found in self._pieces(quiet_s):
            if not opened:
                opened = True
                yield self._form.opening()
            yield None if found is None else self._form.frames(*found)
        yield self._form.closing()

    async def _start(self, send: Send, headers: Mapping[str, str]) -> None:
        if not self._started:
            self._started = True
            resumable = {RESUMABLE: "yes"} if self._work.form.kind and self._reader.log.recorded else {}
            named = {REQUEST_ID: self._work.accepted.name, **resumable, **ignored_header(self._work.ignored)}
            told = Headers({**headers, **named}).raw
            await send({"type": "http.response.start", "status": 200, "headers": told})

    async def _write(self, send: Send, data: bytes, *, more: bool = True) -> None:
        await send({"type": "http.response.body", "body": data, "more_body": more})


def _with_client_timeout(limits: Limits, headers: Headers) -> Limits:
    for name in _TIMEOUT_HEADERS:
        with contextlib.suppress(ValueError):
            wait_s = float(headers.get(name, ""))
            if wait_s > 0:  # NaN is not
                soon = max(0.25, wait_s / 2)
                return replace(limits, quiet_s=min(limits.quiet_s, soon), ping_s=min(limits.ping_s, soon))
    return limits


def json_response(status: int, value: object, headers: Mapping[str, str] | None = None) -> Response:
    return Response(json_bytes(value), status, {**_JSON_HEADERS, **(headers or {})})
