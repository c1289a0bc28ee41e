"""The interface of the formats of answers, and the bytes of JSON and of events."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tpiedge.api.asked import Asked, Reply, check_model
from tpiedge.api.errors import ApiError
from tpiedge.api.fields import BodyFields, JsonSchema
from tpiedge.api.service import Service
from tpiedge.api.transcript import TextPiece, Transcript
from tpiedge.model.tokenizer import Tokenizer
from tpiedge.sanitise import sanitised_line

REQUEST_ID = "x-request-id"
RESUMABLE = "x-resumable"
"""The header that says that the answer can be resumed by this name."""


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """The fields that every answer begins with. `created` is in seconds since 1970, `prompt_tokens` counts those of all
    prompts, and `prompts` has the number of each choice's prompt."""

    id: str
    created: int
    model: str
    reply: Reply
    prompt_tokens: int
    prompts: tuple[int, ...]
    tokenizer: Tokenizer | None


class AnswerFormat(ABC):
    """Makes the bytes of one answer. Choices are numbered from 0.

    Law: the frames of a stream depend on the pieces alone, so another stream of the answer can resume after any frame.
    """

    stream_type: bytes = b"text/event-stream; charset=utf-8"

    def __init__(self, head: AnswerHead) -> None:
        self.head = head

    def opening(self) -> Sequence[bytes]:
        return ()

    @abstractmethod
    def frames(self, choice: int, piece: TextPiece) -> Sequence[bytes]:
        """Returns the frames of a choice's next piece."""

    @abstractmethod
    def closing(self, transcripts: Sequence[Transcript]) -> Sequence[bytes]:
        """Returns the frames after all pieces. `transcripts`: one of each choice."""

    def alive(self, why: str) -> bytes:
        """Returns a sign of life that is no part of the answer. `why`: what the client waits for, if known."""
        return comment(why or "ping")

    def broken(self, error: ApiError, tokens: int) -> bytes:
        """Returns the last frame of a stream that fails after so many tokens."""
        return event(self.failure(error, tokens))

    def whole(self, pieces: Sequence[Sequence[TextPiece]], transcripts: Sequence[Transcript]) -> object:
        """Returns an answer that is not streamed, as JSON. `pieces`: all of each choice."""
        raise NotImplementedError

    def failure(self, error: ApiError, _tokens: int) -> object:
        """Returns the JSON of an answer that is not streamed and fails."""
        return error.body() | {"id": self.head.id}


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """A form of answers. `path`: of its route; `about`: the route's summary; `prefix`: of the answers' names;
    `table`: of its requests, which `read` parses; `kind`: the API's name of an answer that can be resumed, else ""."""

    path: str
    about: str
    prefix: str
    table: JsonSchema
    read: Callable[[BodyFields, Service], Asked]
    write: type[AnswerFormat]
    kind: str = ""

    def asked(self, values: dict[str, object], service: Service) -> Asked:
        """Reads a request. Raises ApiError, AnsweredAtOnce."""
        fields = BodyFields(values, self.table)
        check_model(fields, service)
        return self.read(fields, service)


Json = dict[str, Any]


def json_bytes(value: object) -> bytes:
    """Encodes in ASCII, so that no line separator within the text ends an event early."""
    return json.dumps(value).encode("ascii")


def json_parts(value: object) -> Iterator[bytes]:
    """Yields `json_bytes` of the value in short parts, between which other threads run."""
    if isinstance(value, dict):
        yield b"{"
        for number, (key, inner) in enumerate(value.items()):
            yield b", " * (number > 0) + json_bytes(key) + b": "
            yield from json_parts(inner)
        yield b"}"
    elif isinstance(value, list):
        # A few entries may be large each, as choices are; many are written together.
        step = 1 if len(value) <= 128 else 128
        yield b"["
        for first in range(0, len(value), step):
            yield b", " * (first > 0)
            yield from (
                json_parts(value[first]) if step == 1 else [json_bytes(value[first : first + step])[1:-1]]
            )
        yield b"]"
    else:
        yield json_bytes(value)


def event(value: object) -> bytes:
    return b"data: " + json_bytes(value) + b"\n\n"


def typed_event(kind: str, **fields: object) -> bytes:
    """Returns a server-sent event whose name is also the type of its object."""
    return f"event: {kind}\n".encode("ascii") + event({"type": kind, **fields})


def json_line(value: object) -> bytes:
    return json_bytes(value) + b"\n"


def numbered(number: int, frame: bytes) -> bytes:
    """Adds the number by which clients resume after the event."""
    return b"id: %d\n%b" % (number, frame)


def comment(text: str) -> bytes:
    """Returns a comment of a stream. No empty line follows, as OpenAI's client for Python would take it for an event
    without data, and fail."""
    return f": {sanitised_line(text)}\n".encode()
