"""One accepted request: the events of its choices become the answer, streamed or whole.

Laws:

1. A stream that fails ends with an error event and an unfinished body: no client takes a part for the whole. An error
   of one choice fails all.
2. A stream begins with its first event or, after `_OPEN_S`, a ping; a slow whole answer with blank lines. Earlier
   failures have their own status.
3. A client that says how long it waits for a byte gets one in half that time.
4. Events of a resumable answer are numbered from 1 and follow from its tokens alone. A recorded answer breaks off
   without a word where the server ends first.
"""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Iterator, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from starlette.datastructures import Headers

from tpiedge.answers.log import AnswerReader, Parting, ServerEnds
from tpiedge.api.asked import Choice, Reply
from tpiedge.api.body import Disconnected, Receive, Send, left
from tpiedge.api.errors import ApiError, of_exception
from tpiedge.api.fields import ignored_header
from tpiedge.api.formats import (
    REQUEST_ID,
    RESUMABLE,
    AnswerForm,
    AnswerHead,
    json_bytes,
    json_parts,
    numbered,
)
from tpiedge.api.intake import Intake
from tpiedge.api.limits import Limits
from tpiedge.api.records import AcceptedRequest
from tpiedge.api.service import Service
from tpiedge.api.transcript import TextPiece, Transcript
from tpiedge.master.journal import Paused
from tpiedge.master.request_times import Reading
from tpiedge.units import format_seconds

_PATIENCE = ("x-stainless-read-timeout", "x-stainless-timeout")
"""Headers of OpenAI's clients for Python and JavaScript: seconds without a byte until they try again."""

#: Immediate errors come before it.
_OPEN_S = 0.25
_NO_SNIFF = (b"x-content-type-options", b"nosniff")
_JSON_HEADERS = ((b"content-type", b"application/json"), (b"cache-control", b"no-store"), _NO_SNIFF)


class Aborted(Exception):
    """The body stays unfinished, but what was written must reach the client."""


@dataclass(frozen=True, slots=True)
class Work:
    """An accepted request and how its client gets the answer. `after`: the number of the event that the stream begins
    after; `named`: whether the client knows the answer's id already; `ignored`: names of fields without an effect."""

    accepted: AcceptedRequest
    choices: tuple[Choice, ...]
    reply: Reply
    form: AnswerForm
    reader: AnswerReader
    after: int = 0
    named: bool = False
    ignored: tuple[str, ...] = ()

    @property
    def resumable(self) -> bool:
        return bool(self.form.kind)


class Answering:
    """Sends one answer to `client`, once."""

    def __init__(self, work: Work, service: Service, intake: Intake, client: str) -> None:
        self._work = work
        self._reader = work.reader
        self._intake, self._client = intake, client
        self._limits = intake.limits
        accepted, reply, tokenizer = work.accepted, work.reply, service.tokenizer
        by_prompt = {choice.prompt: len(choice.request.prompt_ids) for choice in work.choices}
        head = AnswerHead(
            id=accepted.name,
            created=accepted.created,
            model=accepted.model,
            reply=reply,
            prompt_tokens=sum(by_prompt.values()),
            prompts=tuple(choice.prompt for choice in work.choices),
            tokenizer=tokenizer,
        )
        self._form = work.form.write(head)
        self._started = False
        self._transcripts = [
            Transcript(
                tokenizer,
                reply.stops,
                choice.echo,
                reply.speech.marks,
                choice.request.prompt_ids if reply.goes_on else (),
            )
            for choice in work.choices
        ]

    async def deliver(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Raises ApiError before the first byte, Aborted after it, Disconnected."""
        work = self._work
        parting: Parting | None = None
        named, stream = work.named, work.reply.stream
        # A whole answer that ends with the server has no head before its end.
        heard_of = stream or self._reader.log.lasting
        self._limits = _patient(self._limits, Headers(scope=scope))

        async def send_named(message: MutableMapping[str, Any]) -> None:
            nonlocal named
            await send(message)
            named = named or heard_of

        watcher = asyncio.create_task(self._watch(receive))
        timer, limit_s = None, self._limits.answer_s
        if limit_s is not None:
            late = ApiError(504, f"the answer took more than {format_seconds(limit_s)}", "deadline_exceeded")
            timer = asyncio.get_running_loop().call_later(limit_s, self._reader.end, late)
        try:
            await (self._stream(send_named) if stream else self._whole(send_named))
            parting = "sent"
        except Disconnected:
            raise
        except Exception as error:
            told, ends = of_exception(error, work.reply.grammar or None), isinstance(error, ServerEnds)
            if not self._started:  # the response is an error
                if named and not ends:
                    parting = "sent"
                raise told from error
            if self._promised and ends:  # the next server goes on with the answer
                raise Disconnected from error
            tokens = sum(transcript.count for transcript in self._transcripts)
            last = self._form.broken(told, tokens) if stream else json_bytes(self._form.failure(told, tokens))
            await self._write(send_named, last, more=stream)
            parting = "sent"
            if stream:
                raise Aborted from error
        finally:
            if parting is None:
                parting = "lost" if named else "for good"
            self._reader.leave(parting if work.resumable else "for good")
            if timer is not None:
                timer.cancel()
            watcher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watcher

    async def _watch(self, receive: Receive) -> None:
        await left(receive)
        self._reader.end(Disconnected())

    async def _pieces(self, quiet_s: float) -> AsyncIterator[tuple[int, TextPiece] | None]:
        """Yields pieces of the answer with the numbers of their choices, and None where a sign of life is due: after
        `quiet_s`, then every `ping_s`, and in a stream when a pause begins or more of the prompt is read."""
        now = asyncio.get_running_loop().time
        due = now() + quiet_s
        open_choices = set(range(len(self._transcripts)))
        for number in itertools.count():
            # A finished answer never waits below. Sixteen events with scores take some milliseconds.
            if number % 16 == 0:
                await asyncio.sleep(0)
                if now() >= due:
                    due = now() + self._limits.ping_s
                    yield None
            found = await self._reader.next(max(0.0, due - now()))
            if found is not None and found[0] not in open_choices:
                continue
            choice, event = (0, None) if found is None else found
            piece, stream = None, self._work.reply.stream
            if event is not None:
                for part in self._transcripts[choice].before(event):
                    yield choice, part
                    await asyncio.sleep(0)
                piece = self._transcripts[choice].feed(event)
            if isinstance(event, Paused | Reading) and stream:
                event = None
            if event is None or (piece is not None and stream):
                due = now() + self._limits.ping_s
            if piece is not None and piece.last is not None:
                open_choices.remove(choice)
                self._reader.log.complete(choice)
            if piece is not None:
                yield choice, piece
            elif event is None:
                yield None
            if not open_choices:
                return

    async def _whole(self, send: Send) -> None:
        pieces: list[list[TextPiece]] = [[] for _ in self._transcripts]
        quiet_s = self._limits.quiet_s
        async for found in self._pieces(min(_OPEN_S, quiet_s) if self._reader.log.lasting else quiet_s):
            if found is not None:
                choice, piece = found
                pieces[choice].append(piece)
                continue
            await self._start(send, _JSON_HEADERS)
            await self._write(send, b"\n")  # JSON may begin with it

        def written() -> bytes:
            return b"".join(json_parts(self._form.whole(pieces, self._transcripts)))

        if any(token.logprobs for parts in pieces for piece in parts for token in piece.tokens):
            body = await self._intake.run(self._client, written)  # thousands of scores take long
        else:
            body = written()
        if self._started:
            await self._write(send, body, more=False)
        else:
            await send_json(send, 200, body, dict(self._named()))

    async def _stream(self, send: Send) -> None:
        """Sends the events after the client's last one, and signs of life."""
        work, now, number = self._work, asyncio.get_running_loop().time, 0
        quiet_s = min(_OPEN_S, self._limits.ping_s)
        due = now() + quiet_s
        headers = (b"content-type", self._form.stream_type), (b"cache-control", b"no-cache"), _NO_SNIFF
        async for frames in self._all_frames(quiet_s):
            each = enumerate(frames or (), number + 1)
            told = [numbered(at, one) if work.resumable else one for at, one in each if at > work.after]
            number += len(frames or ())
            heard = bool(frames) and number >= work.after
            if frames is None or (not heard and now() >= due):
                reasons = (one.paused or one.reading for one in self._transcripts)
                told.append(self._form.alive(next(filter(None, reasons), "")))
            elif not heard:
                continue
            await self._start(send, headers)
            for one in told:
                await self._write(send, one)
            due = now() + self._limits.ping_s
        await self._start(send, headers)  # where nothing comes after the event that the client has
        await self._write(send, b"", more=False)

    async def _all_frames(self, quiet_s: float) -> AsyncIterator[Sequence[bytes] | None]:
        """Yields the events of the whole stream, those of each piece together; None as `_pieces` does."""
        opened = False
        async for found in self._pieces(quiet_s):
            if not opened:
                opened = True
                yield self._form.opening()
            yield None if found is None else self._form.frames(*found)
        yield self._form.closing(self._transcripts)

    @property
    def _promised(self) -> bool:
        """Whether the next server, too, gives the rest."""
        return self._work.resumable and self._reader.log.recorded

    def _named(self) -> Iterator[tuple[str, str]]:
        yield REQUEST_ID, self._work.accepted.name
        if self._promised:
            yield RESUMABLE, "yes"
        yield from ignored_header(self._work.ignored).items()

    async def _start(self, send: Send, headers: Sequence[tuple[bytes, bytes]]) -> None:
        if self._started:
            return
        self._started = True
        named = [(name.encode(), text.encode()) for name, text in self._named()]
        fields = [*headers, (b"x-accel-buffering", b"no"), *named]
        await send({"type": "http.response.start", "status": 200, "headers": fields})

    async def _write(self, send: Send, data: bytes, *, more: bool = True) -> None:
        await send({"type": "http.response.body", "body": data, "more_body": more})


def _patient(limits: Limits, headers: Headers) -> Limits:
    """Lowers limits for a client that says when it gives up."""
    for name in _PATIENCE:
        with contextlib.suppress(ValueError):
            wait_s = float(headers.get(name, ""))
            if wait_s > 0:  # NaN is not
                soon = max(0.25, wait_s / 2)
                return replace(limits, quiet_s=min(limits.quiet_s, soon), ping_s=min(limits.ping_s, soon))
    return limits


async def send_json(
    send: Send, status: int, value: object, headers: MutableMapping[str, str] | None = None
) -> None:
    """Sends a whole response. `value`: encoded JSON, or what is to be encoded."""
    body = value if isinstance(value, bytes) else json_bytes(value)
    found = [*_JSON_HEADERS, (b"content-length", str(len(body)).encode())]
    found += [(name.lower().encode(), text.encode()) for name, text in (headers or {}).items()]
    await send({"type": "http.response.start", "status": status, "headers": found})
    await send({"type": "http.response.body", "body": body})
