"""The forms that an answer can have on the wire, and its parts as bytes: JSON, and the events of a stream."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tpiedge.api.asked import Asked, Reply, check_model
from tpiedge.api.errors import ApiError
from tpiedge.api.fields import BodyFields, JsonSchema
from tpiedge.api.service import Service
from tpiedge.api.transcript import TextPiece, Transcript
from tpiedge.model.tokenizer import Tokenizer
from tpiedge.sanitise import sanitised_line

REQUEST_ID = "x-request-id"
"""The header in which an answer names its request."""
RESUMABLE = "x-resumable"
"""The header of an answer of which a client that comes again gets the rest, by that name."""


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """Everything about an answer except the answer. `created`: in seconds since 1970; `prompt_tokens`: of all prompts;
    `prompts`: of each choice, the number of its prompt."""

    id: str
    created: int
    model: str
    reply: Reply
    prompt_tokens: int
    prompts: tuple[int, ...]
    tokenizer: Tokenizer | None


class AnswerFormat(ABC):
    """Makes the bytes of one answer, of which no other is made with it. Choices have their numbers from 0 on.

    What a stream consists of follows from the pieces and nothing else: so a later stream of the same answer can go on
    after any of its frames.
    """

    #: The content type of a stream.
    stream_type: bytes = b"text/event-stream; charset=utf-8"

    def __init__(self, head: AnswerHead) -> None:
        self.head = head

    def opening(self) -> Sequence[bytes]:
        """Frames before any piece."""
        return ()

    @abstractmethod
    def frames(self, choice: int, piece: TextPiece) -> Sequence[bytes]:
        """Frames of the next piece of a choice."""

    @abstractmethod
    def closing(self, transcripts: Sequence[Transcript]) -> Sequence[bytes]:
        """Frames after all pieces, from the transcripts of all choices."""

    def alive(self, why: str) -> bytes:
        """What a client hears that waits for the next frame of a stream, and no part of the answer. `why` it waits,
        where that is known."""
        return comment(why or "ping")

    def broken(self, error: ApiError, tokens: int) -> bytes:
        """The last frame of a stream that fails after so many tokens."""
        return event(self.failure(error, tokens))

    def whole(self, pieces: Sequence[Sequence[TextPiece]], transcripts: Sequence[Transcript]) -> object:
        """An answer that is not streamed, of the pieces of each choice, as JSON; for forms that have it."""
        raise NotImplementedError

    def failure(self, error: ApiError, _tokens: int) -> object:
        """The same where it fails after its beginning."""
        return error.body() | {"id": self.head.id}


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """A form of answers: all that is known of it. `path`: of its route, where it has one of its own; `about`: what that
    is for; `prefix`: what the answers' names begin with; `table`: of the fields of its requests, which `read` makes an
    Asked of; `kind`: as its API calls an answer, where clients may come again for it, or have it deleted."""

    path: str
    about: str
    prefix: str
    table: JsonSchema
    read: Callable[[BodyFields, Service, str], Asked]
    write: type[AnswerFormat]
    kind: str = ""

    def asked(self, values: dict[str, object], service: Service, name: str) -> Asked:
        """Reads a request, for the answer of that name. Raises ApiError, AnsweredAtOnce."""
        fields = BodyFields(values, self.table)
        check_model(fields, service)
        return self.read(fields, service, name)


Json = dict[str, object]
"""An object of JSON."""


def json_bytes(value: object) -> bytes:
    """ASCII only: a line separator within the text cannot end an event early."""
    return json.dumps(value).encode("ascii")


def json_parts(value: object) -> Iterator[bytes]:
    """Joined they are `json_bytes` of it. Other threads wait for each part: it is short if no single value is long."""
    if isinstance(value, dict):
        yield b"{"
        for number, (key, inner) in enumerate(value.items()):
            yield b", " * (number > 0) + json_bytes(key) + b": "
            yield from json_parts(inner)
        yield b"}"
    elif isinstance(value, list):
        # Of few each may be large, as the choices of an answer are; many are written together.
        few = len(value) <= 128
        parts = (
            json_parts(value[first]) if few else [json_bytes(value[first : first + 128])[1:-1]]
            for first in range(0, len(value), 1 if few else 128)
        )
        yield b"["
        for number, part in enumerate(parts):
            yield b", " * (number > 0)
            yield from part
        yield b"]"
    else:
        yield json_bytes(value)


def event(value: object) -> bytes:
    """A server-sent event."""
    return b"data: " + json_bytes(value) + b"\n\n"


def named_event(name: str, value: object) -> bytes:
    """A server-sent event that has a name."""
    return b"event: " + name.encode("ascii") + b"\n" + event(value)


def json_line(value: object) -> bytes:
    """A value of a stream of JSON."""
    return json_bytes(value) + b"\n"


def numbered(number: int, frame: bytes) -> bytes:
    """The event with the number by which clients say that they have it."""
    return b"id: %d\n%b" % (number, frame)


def comment(text: str) -> bytes:
    """What clients do not take for a part of the answer. No empty line follows: OpenAI's client for Python takes it for
    an event as soon as it has heard a number, and fails as that has no data."""
    return f": {sanitised_line(text)}\n".encode()
