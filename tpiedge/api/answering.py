"""One accepted request: its events become the answer, streamed or whole; a client that leaves ends the work. The answer
has one or more choices, which end each by itself, and one form.

Laws:

1. A stream that fails ends with an error event and an unfinished body: no finish reason, no [DONE]. So no client can
   take a part for the whole. What fails one choice fails all.
2. A stream begins with its first event or, `_OPEN_S` after the request, with a ping, also where thousands of events
   are passed over before it; a whole answer with its end or, where that takes long, with blank lines: what fails
   earlier has a status of its own, what fails later is the one value of the body. The ping of an answer that pauses
   says why, that of a long prompt how far it is read.
3. A client that says how long it waits for a byte (OpenAI's do) hears one in half that time: else it would ask again,
   and the same work be done twice.
4. How long it takes is the cluster's to bound, by its progress; by the clock it ends where the user wants that.
5. What a stop string ends is complete.
6. The events of the stream of a resumable answer are numbered from 1 on: they follow from its tokens and nothing else,
   so a later stream of it can begin after any of them; after one beyond its end it fails. One that is recorded says so
   in its head, which a whole one sends early, and breaks off without a word where the server ends before it, for the
   next server to go on.
"""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

from tpiedge.answers.log import AnswerReader, ServerEnds
from tpiedge.api.body import Disconnected, Receive, left
from tpiedge.api.errors import ApiError, of_exception
from tpiedge.api.fields import IGNORED
from tpiedge.api.formats import AnswerFormat
from tpiedge.api.frames import json_bytes, json_parts, numbered
from tpiedge.api.limits import Limits
from tpiedge.api.transcript import TextPiece, Transcript
from tpiedge.master.journal import Paused
from tpiedge.master.reading_progress import Reading
from tpiedge.units import format_seconds

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

REQUEST_ID = "x-request-id"
"""The header in which an answer names its request."""
RESUMABLE = "x-resumable"
"""The header of an answer of which a client that comes again gets the rest, by that name."""

#: Errors that are known at once come before it.
_OPEN_S = 0.25
#: After so many events others have their turn: with twenty scores each they are some milliseconds' work.
_TURN = 16
#: So many scores are written at once.
_MANY_SCORES = 2048
_BLANK = b"\n"  # JSON may begin with it
_NO_SNIFF = (b"x-content-type-options", b"nosniff")
_UNBUFFERED = (b"x-accel-buffering", b"no")
_JSON_HEADERS = ((b"content-type", b"application/json"), (b"cache-control", b"no-store"), _NO_SNIFF)


class Aborted(Exception):
    """The body is to stay unfinished; what was written is still to reach the client."""


class BrokenOff(Aborted):
    """The next server goes on with the answer."""


class BeyondEnd(ApiError):
    """The rest of a stream is wanted after an event that it does not have: nobody got anything of the answer."""

    def __init__(self, last: int) -> None:
        super().__init__(
            400,
            f"the request names an event after the answer's last one, which is {last}: name the last that came",
            "invalid_value",
        )


class Stalled(Exception):
    """The client does not read."""


@dataclass(frozen=True, slots=True)
class Answering:
    """Runs once, for an answer with a transcript for each of its choices. `name`: of its request; `resumable`: whether
    a client that comes again can have the rest; `after`: the number of the event that a stream of it begins after;
    `ignored`: names of the request's fields that have no effect; `grammar` as of Reply."""

    name: str
    form: AnswerFormat
    stream: bool
    reader: AnswerReader
    transcripts: Sequence[Transcript]
    limits: Limits
    resumable: bool = False
    after: int = 0
    ignored: tuple[str, ...] = ()
    grammar: str = ""

    async def run(self, receive: Receive, send: Send) -> None:
        """Send the answer. Raises ApiError before the first byte, Aborted after it, Disconnected, Stalled."""
        watcher = asyncio.create_task(self._watch(receive))
        timer = self._timer()
        try:
            await (self._stream(send) if self.stream else self._whole(send))
        finally:
            if timer is not None:
                timer.cancel()
            watcher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watcher

    def _timer(self) -> asyncio.TimerHandle | None:
        """Ends the answer by the clock, where there is to be one."""
        limit_s = self.limits.answer_s
        if limit_s is None:
            return None
        late = ApiError(504, f"the answer took more than {format_seconds(limit_s)}", "deadline_exceeded")
        return asyncio.get_running_loop().call_later(limit_s, self.reader.end, late)

    async def _watch(self, receive: Receive) -> None:
        """A client that leaves is noticed while nothing is sent, too."""
        await left(receive)
        self.reader.end(Disconnected())

    async def _pieces(self, quiet_s: float) -> AsyncIterator[tuple[int, TextPiece] | None]:
        """The pieces of the answer with the numbers of their choices; None where the client is to hear that we live:
        after `quiet_s`, then every `ping_s`. The pieces themselves, that a pause begins, and how far the prompt is
        read, it hears in a stream only."""
        now = asyncio.get_running_loop().time
        due = now() + quiet_s
        open_choices = set(range(len(self.transcripts)))
        for number in itertools.count():
            if number % _TURN == 0:  # where all is there already, nothing else waits
                await asyncio.sleep(0)
                if now() >= due:
                    due = now() + self.limits.ping_s
                    yield None
            found = await self.reader.next(max(0.0, due - now()))
            if found is not None and found[0] not in open_choices:
                continue
            choice, event = (0, None) if found is None else found
            piece = None
            if event is not None:
                for part in self.transcripts[choice].before(event):
                    yield choice, part
                    await asyncio.sleep(0)
                piece = self.transcripts[choice].feed(event)
            if isinstance(event, Paused | Reading) and self.stream:
                event = None
            if event is None or (piece is not None and self.stream):
                due = now() + self.limits.ping_s
            if piece is not None and piece.last is not None:
                open_choices.remove(choice)
                self.reader.log.complete(choice)
            if piece is not None:
                yield choice, piece
            elif event is None:
                yield None
            if not open_choices:
                return

    async def _whole(self, send: Send) -> None:
        started = False
        pieces: list[list[TextPiece]] = [[] for _ in self.transcripts]
        try:
            quiet_s = self.limits.quiet_s
            async for found in self._pieces(min(_OPEN_S, quiet_s) if self.reader.log.lasting else quiet_s):
                if found is not None:
                    choice, piece = found
                    pieces[choice].append(piece)
                    continue
                if not started:
                    started = True
                    await self._start(send, _JSON_HEADERS)
                await self._write(send, _BLANK)
            body = await self._body(pieces)
        except (Disconnected, Stalled):
            raise
        except Exception as error:
            if not started:
                raise self._error(error) from error
            self._break_off(error)
            body = json_bytes(self.form.failure(self._error(error), self._tokens))
        if started:
            await self._guarded(send({"type": "http.response.body", "body": body}))
        else:
            await self._guarded(_send_body(send, 200, body, dict(self._named())))

    async def _body(self, pieces: Sequence[Sequence[TextPiece]]) -> bytes:
        """Of a whole answer. Thousands of scores take seconds: a thread writes them."""
        tokens = (token for parts in pieces for piece in parts for token in piece.tokens)
        if sum(1 + len(token.logprobs) for token in tokens) <= _MANY_SCORES:
            return json_bytes(self.form.whole(pieces, self.transcripts))
        return await asyncio.to_thread(
            lambda: b"".join(json_parts(self.form.whole(pieces, self.transcripts)))
        )

    async def _stream(self, send: Send) -> None:
        started = False
        try:
            async for number, frame in self._frames():
                if not started:
                    started = True
                    await self._start(send, self._stream_headers())
                if frame is None:
                    await self._write(send, self.form.alive(self._why))
                elif frame:
                    await self._write(send, numbered(number, frame) if self.resumable else frame)
        except (Disconnected, Stalled):
            raise
        except Exception as error:
            if not started:
                raise self._error(error) from error
            self._break_off(error)
            await self._write(send, self.form.broken(self._error(error), self._tokens))
            raise Aborted from error
        await self._guarded(send({"type": "http.response.body", "body": b""}))

    async def _frames(self) -> AsyncIterator[tuple[int, bytes | None]]:
        """The events of the stream with their numbers, empty for the one that it begins after; None as of `_pieces`,
        and where pieces come of which nothing is told yet, or only what the client has."""
        now, number = asyncio.get_running_loop().time, 0
        due = now() + min(_OPEN_S, self.limits.ping_s)
        async for frames in self._all_frames(min(_OPEN_S, self.limits.ping_s)):
            told = False
            for frame in frames or ():
                number += 1
                if number >= self.after:
                    told = True
                    yield number, frame if number > self.after else b""
            if frames is None or (not told and now() >= due):
                told = True
                yield number, None
            if told:
                due = now() + self.limits.ping_s
        if number < self.after:
            raise BeyondEnd(number)

    async def _all_frames(self, quiet_s: float) -> AsyncIterator[Sequence[bytes] | None]:
        """The events of the whole stream, those of each piece together; None as of `_pieces`."""
        opened = False
        async for found in self._pieces(quiet_s):
            if not opened:
                opened = True
                yield self.form.opening()
            yield None if found is None else self.form.frames(*found)
        yield self.form.closing(self.transcripts)

    def _error(self, error: Exception) -> ApiError:
        return of_exception(error, self.grammar or None)

    @property
    def _tokens(self) -> int:
        return sum(transcript.count for transcript in self.transcripts)

    @property
    def _why(self) -> str:
        """Why the answer pauses, if it does, or how far the prompt is read."""
        return next((why for one in self.transcripts if (why := one.paused or one.reading)), "")

    def _stream_headers(self) -> Sequence[tuple[bytes, bytes]]:
        return (b"content-type", self.form.stream_type), (b"cache-control", b"no-cache"), _NO_SNIFF

    @property
    def _promised(self) -> bool:
        """Whether a client that comes again gets the rest, beyond the server's end, too."""
        return self.resumable and self.reader.log.recorded

    def _break_off(self, error: Exception) -> None:
        """Raises BrokenOff where the next server goes on with the answer."""
        if self._promised and isinstance(error, ServerEnds):
            raise BrokenOff from error

    def _named(self) -> Iterator[tuple[str, str]]:
        yield REQUEST_ID, self.name
        if self._promised:
            yield RESUMABLE, "yes"
        if self.ignored:
            yield IGNORED, ", ".join(self.ignored)

    async def _start(self, send: Send, headers: Sequence[tuple[bytes, bytes]]) -> None:
        named = [(name.encode(), text.encode()) for name, text in self._named()]
        start = {"type": "http.response.start", "status": 200, "headers": [*headers, _UNBUFFERED, *named]}
        await self._guarded(send(start))

    async def _write(self, send: Send, data: bytes) -> None:
        await self._guarded(send({"type": "http.response.body", "body": data, "more_body": True}))

    async def _guarded(self, sending: Awaitable[None]) -> None:
        """A client that does not read for long is given up."""
        try:
            async with asyncio.timeout(self.limits.write_s):
                await sending
        except TimeoutError:
            raise Stalled from None


async def send_json(
    send: Send, status: int, value: object, headers: MutableMapping[str, str] | None = None
) -> None:
    """A whole response."""
    await _send_body(send, status, json_bytes(value), headers)


async def _send_body(send: Send, status: int, body: bytes, headers: MutableMapping[str, str] | None) -> None:
    found = [*_JSON_HEADERS, (b"content-length", str(len(body)).encode())]
    found += [(name.lower().encode(), text.encode()) for name, text in (headers or {}).items()]
    await send({"type": "http.response.start", "status": status, "headers": found})
    await send({"type": "http.response.body", "body": body})
