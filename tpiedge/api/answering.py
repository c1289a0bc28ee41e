"""One accepted request: its events become the answer, streamed or whole; a client that leaves ends the work.

Laws:

1. A stream that fails ends with an error event and an unfinished body: no finish reason, no [DONE]. So no client can
   take a part for the whole.
2. A stream begins with its first event or, `_OPEN_S` after the request, with a ping; a whole answer with its end or,
   where that takes long, with blank lines: what fails earlier has a status of its own, what fails later is the one
   value of the body. The ping of an answer that pauses says why.
3. A client that says how long it waits for a byte (OpenAI's do) hears one in half that time: else it would ask again,
   and the same work be done twice.
4. How long it takes is the cluster's to bound, by its progress; by the clock it ends where the user wants that.
5. However it ends, the generation is cancelled unless it had finished; what a stop string ends is complete.
6. A resumable answer says so in its head, which a whole one sends early. The events of its stream are
   numbered from 1 on: they follow from its tokens and nothing else, so a later stream of it can begin after any of
   them; after one beyond its end it fails. Where the server ends before it, it breaks off without a word, for the next
   server to go on.
"""

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

from tpiedge.api.body import Disconnected, Receive
from tpiedge.api.errors import ApiError, of_exception
from tpiedge.api.limits import Limits
from tpiedge.api.replies import ReplyFormatter
from tpiedge.api.stream_bridge import AnswerFeed
from tpiedge.api.transcript import TextPiece, Transcript
from tpiedge.master.journal import Paused
from tpiedge.sanitise import sanitised_line
from tpiedge.units import format_seconds

__all__ = [
    "IGNORED",
    "REQUEST_ID",
    "RESUMABLE",
    "Aborted",
    "Answering",
    "BeyondEnd",
    "BrokenOff",
    "Send",
    "ServerEnds",
    "Stalled",
    "send_json",
]

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

REQUEST_ID = "x-request-id"
"""The header in which an answer names its request."""
RESUMABLE = "x-resumable"
"""The header of an answer of which a client that comes again gets the rest, by that name."""
IGNORED = "x-ignored-fields"
"""The header that lists the fields of the request which have no effect."""

_DONE = b"data: [DONE]\n\n"
#: Errors that are known at once come before it.
_OPEN_S = 0.25
#: After so many events others have their turn.
_TURN = 64
_BLANK = b"\n"  # JSON may begin with it
_NO_SNIFF = (b"x-content-type-options", b"nosniff")
_UNBUFFERED = (b"x-accel-buffering", b"no")
_STREAM_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    _NO_SNIFF,
)
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
            f"the answer's last event is {last}, the header Last-Event-ID says a later one: send the last that came",
            "invalid_value",
        )


class Stalled(Exception):
    """The client does not read."""


class ServerEnds(ApiError):
    """The server ends before the answer does."""

    def __init__(self) -> None:
        super().__init__(503, "the server is shutting down", "shutting_down")


@dataclass(frozen=True, slots=True)
class Answering:
    """Runs once. `resumable`: whether a client that comes again can have the rest; `after`: the number of the event
    that a stream of it begins after; `ignored`: names of the request's fields that have no effect."""

    envelope: ReplyFormatter
    feed: AnswerFeed
    transcript: Transcript
    limits: Limits
    resumable: bool = False
    after: int = 0
    ignored: tuple[str, ...] = ()

    async def run(self, receive: Receive, send: Send) -> None:
        """Send the answer. Raises ApiError before the first byte, Aborted after it, Disconnected, Stalled."""
        watcher = asyncio.create_task(self._watch(receive))
        timer = self._timer()
        try:
            await (self._stream(send) if self.envelope.reply.stream else self._whole(send))
        finally:
            if timer is not None:
                timer.cancel()
            self.feed.cancel()
            watcher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watcher

    def _timer(self) -> asyncio.TimerHandle | None:
        """Ends the answer by the clock, where there is to be one."""
        limit_s = self.limits.answer_s
        if limit_s is None:
            return None
        late = ApiError(504, f"the answer took more than {format_seconds(limit_s)}", "deadline_exceeded")
        return asyncio.get_running_loop().call_later(limit_s, self.feed.end, late)

    async def _watch(self, receive: Receive) -> None:
        """A client that leaves is noticed while nothing is sent, too."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self.feed.cancel()
        self.feed.end(Disconnected())

    async def _pieces(self, quiet_s: float) -> AsyncIterator[TextPiece | None]:
        """The pieces of the answer; None where the client is to hear that we live: after `quiet_s`, then every
        `ping_s`. The pieces themselves, and that a pause begins, it hears in a stream only."""
        now = asyncio.get_running_loop().time
        due = now() + quiet_s
        for number in itertools.count():
            if number % _TURN == 0:  # where all is there already, nothing else waits
                await asyncio.sleep(0)
            event = await self.feed.next(max(0.0, due - now()))
            piece = None if event is None else self.transcript.feed(event)
            if isinstance(event, Paused) and self.envelope.reply.stream:
                event = None
            if event is None or (piece is not None and self.envelope.reply.stream):
                due = now() + self.limits.ping_s
            if piece is not None and piece.last is not None:
                self.feed.complete()
            if piece is not None or event is None:
                yield piece
            if piece is not None and piece.last is not None:
                return

    async def _whole(self, send: Send) -> None:
        started = False
        pieces = []
        try:
            quiet_s = self.limits.quiet_s
            async for piece in self._pieces(min(_OPEN_S, quiet_s) if self.resumable else quiet_s):
                if piece is not None:
                    pieces.append(piece)
                    continue
                if not started:
                    started = True
                    await self._start(send, _JSON_HEADERS)
                await self._write(send, _BLANK)
            answer = self.envelope.whole(pieces, self.transcript)
        except (Disconnected, Stalled):
            raise
        except Exception as error:
            if not started:
                raise of_exception(error) from error
            self._break_off(error)
            answer = self._failure(of_exception(error))
        if started:
            await self._guarded(send({"type": "http.response.body", "body": _json(answer)}))
        else:
            await self._guarded(send_json(send, 200, answer, dict(self._named())))

    async def _stream(self, send: Send) -> None:
        started, number = False, 0
        try:
            async for event in self._events():
                if not started and (event is None or number >= self.after - 1):
                    started = True
                    await self._start(send, _STREAM_HEADERS)
                if event is None:
                    await self._write(send, _comment(self.transcript.paused or "ping"))
                    continue
                number += 1
                if number > self.after:
                    await self._write(send, self._numbered(number, event))
            if number < self.after:
                raise BeyondEnd(number)
        except (Disconnected, Stalled):
            raise
        except Exception as error:
            if not started:
                raise of_exception(error) from error
            self._break_off(error)
            await self._write(send, _event(self._failure(of_exception(error))))
            raise Aborted from error
        await self._guarded(send({"type": "http.response.body", "body": b""}))

    async def _events(self) -> AsyncIterator[bytes | None]:
        """What the stream consists of; None as of `_pieces`."""
        opening = self.envelope.opening()
        async for piece in self._pieces(min(_OPEN_S, self.limits.ping_s)):
            if opening is not None:
                yield _event(opening)
                opening = None
            yield None if piece is None else _event(self.envelope.chunk(piece))
        if self.envelope.reply.include_usage:
            yield _event(self.envelope.closing(self.transcript))
        yield _DONE

    def _numbered(self, number: int, event: bytes) -> bytes:
        return b"id: %d\n%b" % (number, event) if self.resumable else event

    def _break_off(self, error: Exception) -> None:
        """Raises BrokenOff where the next server goes on with the answer."""
        if self.resumable and isinstance(error, ServerEnds):
            raise BrokenOff from error

    def _named(self) -> Iterator[tuple[str, str]]:
        yield REQUEST_ID, self.envelope.id
        if self.resumable:
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

    def _failure(self, error: ApiError) -> dict[str, object]:
        """What a client needs to report it: the request and how far it came."""
        return error.body() | {"id": self.envelope.id, "tokens": self.transcript.count}


async def send_json(
    send: Send, status: int, value: object, headers: MutableMapping[str, str] | None = None
) -> None:
    """A whole response."""
    body = _json(value)
    found = [*_JSON_HEADERS, (b"content-length", str(len(body)).encode())]
    found += [(name.lower().encode(), text.encode()) for name, text in (headers or {}).items()]
    await send({"type": "http.response.start", "status": status, "headers": found})
    await send({"type": "http.response.body", "body": body})


def _comment(text: str) -> bytes:
    """What clients do not take for a part of the answer."""
    return f": {sanitised_line(text)}\n\n".encode()


def _event(value: object) -> bytes:
    return b"data: " + _json(value) + b"\n\n"


def _json(value: object) -> bytes:
    # ASCII only: a line separator within the text cannot end an event early.
    return json.dumps(value).encode("ascii")
