"""The bytes of a streamed HTTP answer, with the time of each arrival, to the answer as its client saw it. Pure.

While a server is measured its client keeps the bytes only: they are read afterwards, so that this costs the server no
processor.
"""

import json
from collections.abc import Iterator, Sequence

from tpiedge.lab.bench.serve_figures import TimedAnswer
from tpiedge.sanitise import sanitised_line

Arrival = tuple[float, bytes]
"""Seconds, and what arrived then."""

_DATA = b"data: "
_DONE = b"[DONE]"
_OK = 200
_MOST_WORDS = 200


class _Unreadable(Exception):
    """The bytes are no answer; says why."""


def read_answer(
    sent_s: float, pieces: Sequence[Arrival], ended_s: float, prompt_tokens: int, failure: str = ""
) -> TimedAnswer:
    """The answer to a request for a stream of `/v1/completions`. `failure` is what the client found itself.

    `prompt_tokens` counts where the server does not say how many it had.
    """
    reading = _Reading(prompt_tokens)
    try:
        for time_s, payload in _events(pieces):
            reading.take(time_s, payload)
        error = failure or ("" if reading.done else "the server ended the answer early")
    except _Unreadable as unreadable:
        error = failure or str(unreadable)
    return TimedAnswer(sent_s, reading.arrivals, ended_s, reading.prompt_tokens, error)


class _Reading:
    """What the events up to now say."""

    def __init__(self, prompt_tokens: int) -> None:
        self.prompt_tokens = prompt_tokens
        self.done = False
        self._arrivals: list[float] = []
        self._tokens: int | None = None

    @property
    def arrivals(self) -> tuple[float, ...]:
        """Of each token. Those that the server counted beyond what it showed came with the last that it did show."""
        missing = (self._tokens or 0) - len(self._arrivals)
        return (*self._arrivals, *(self._arrivals[-1:] * missing))

    def take(self, time_s: float, payload: bytes) -> None:
        if payload == _DONE:
            self.done = True
            return
        match _value(payload):
            case {"error": {"message": message}} | {"error": str(message)}:
                raise _Unreadable(sanitised_line(str(message), _MOST_WORDS))
            case {"choices": choices, **more}:
                self._count(more.get("usage"))
                for choice in choices if isinstance(choices, list) else []:
                    self._arrivals += [time_s] * _tokens_of(choice)

    def _count(self, usage: object) -> None:
        match usage:
            case {"prompt_tokens": int(prompt), "completion_tokens": int(tokens)}:
                self.prompt_tokens, self._tokens = prompt, tokens


def _tokens_of(choice: object) -> int:
    """The ids where the server tells them; else a text is a token's."""
    match choice:
        case {"token_ids": list(ids)}:
            return len(ids)
        case {"text": str(text)}:
            return 1 if text else 0
    return 0


def _value(payload: bytes) -> object:
    try:
        return json.loads(payload)
    except (ValueError, RecursionError):
        raise _Unreadable("the server sent an event that is not JSON") from None


def _events(pieces: Sequence[Arrival]) -> Iterator[Arrival]:
    """The data of each event, when its line was complete."""
    head, body = _split(pieces)
    status = _status(head)
    chunked = b"transfer-encoding: chunked" in head.lower()
    content = _unchunked(body) if chunked else iter(body)
    if status != _OK:
        raise _Unreadable(_refusal(status, b"".join(data for _, data in content)))
    rest = b""
    for time_s, data in content:
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if line.startswith(_DATA):
                yield time_s, line.removeprefix(_DATA).strip()


def _split(pieces: Sequence[Arrival]) -> tuple[bytes, list[Arrival]]:
    """The head, and what came after it."""
    head = b""
    for index, (time_s, data) in enumerate(pieces):
        head += data
        end = head.find(b"\r\n\r\n")
        if end >= 0:
            return head[:end], [(time_s, head[end + 4 :]), *pieces[index + 1 :]]
    raise _Unreadable("the server closed the connection without an answer")


def _status(head: bytes) -> int:
    words = head.split(b"\r\n", 1)[0].split()
    if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
        raise _Unreadable("the server does not speak HTTP")
    return int(words[1])


def _refusal(status: int, body: bytes) -> str:
    try:
        message = json.loads(body)["error"]["message"]
    except (ValueError, KeyError, TypeError, RecursionError):
        message = "no reason is given"
    return f"HTTP status {status}: {sanitised_line(str(message), _MOST_WORDS)}"


def _unchunked(pieces: Sequence[Arrival]) -> Iterator[Arrival]:
    """The content of the chunks that are complete."""
    held = b""
    for time_s, data in pieces:
        held += data
        content = b""
        while (chunk := _first_chunk(held)) is not None:
            text, held = chunk
            content += text
        yield time_s, content


def _first_chunk(data: bytes) -> tuple[bytes, bytes] | None:
    """Its content, and what follows it; None where it is not complete."""
    size, found, rest = data.partition(b"\r\n")
    if not found:
        return None
    try:
        length = int(size.split(b";")[0], 16)
    except ValueError:
        raise _Unreadable("the server's chunks cannot be read") from None
    return (rest[:length], rest[length + 2 :]) if len(rest) >= length + 2 else None
