"""The interface of answer formats, which say what a stream sends first, while it waits, last, and when it fails."""

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tpiedge.api.errors import ApiError
from tpiedge.api.fields import BodyFields, JsonSchema
from tpiedge.api.parsed import ParsedRequest, named_model
from tpiedge.api.records import AcceptedRequest
from tpiedge.api.transcript import TextPiece, TokenScores, Transcript
from tpiedge.local.served_models import ServedModel
from tpiedge.local.service import Service
from tpiedge.model.output import OutputParser
from tpiedge.model.tokenizer import Tokenizer
from tpiedge.sanitise import sanitised_line

Json = dict[str, Any]

REQUEST_ID = "x-request-id"
RESUMABLE = "x-resumable"
"""The header of answers that can be resumed by their request id."""


class AnswerFormat(ABC):
    """Makes the bytes of one answer. Choices are numbered from 0. A frame has the bytes of one event.

    Law: frames of a resumable stream depend on the pieces alone."""

    stream_type = "text/event-stream; charset=utf-8"
    error_event = b""
    always_bytes = False  # whether the scores of a token without bytes have an empty list of bytes

    def __init__(self, accepted: AcceptedRequest, tokenizer: Tokenizer | None) -> None:
        reply = accepted.reply
        self.accepted, self.reply, self.begun_s = accepted, reply, time.monotonic()
        self.prompt_tokens = sum(len(one.request.prompt_ids) for one in accepted.prompts)
        self.transcripts = [
            Transcript(accepted.writer(one, tokenizer), tokenizer, one.echo, one.request.prompt_ids)
            for one in accepted.prompts
            for _ in range(accepted.each)
        ]
        self.items: list[Json] = []  # used by formats that write a choice as items
        self.parsers = [OutputParser(reply.speech) for _ in self.transcripts]
        self.scores = TokenScores(tokenizer, reply.logprobs, without_bytes=[] if self.always_bytes else None)

    def opening(self) -> Sequence[bytes]:
        return ()

    @abstractmethod
    def frames(self, choice: int, piece: TextPiece) -> Sequence[bytes]:
        """Returns the frames of the next piece of `choice`."""

    @abstractmethod
    def closing(self) -> Sequence[bytes]:
        """Returns the frames that follow all pieces."""

    def alive(self, why: str) -> bytes:
        """Returns a sign of life. `why`: the cause of the wait, or ""."""
        return comment(why or "ping")

    def broken(self, error: ApiError) -> bytes:
        """Returns the last frame of a stream that fails."""
        return self.error_event + event(self.failure(error))

    def whole(self, pieces: Sequence[Sequence[TextPiece]]) -> object:
        """Returns the JSON of a whole answer. `pieces`: the pieces of each choice."""
        raise NotImplementedError

    def failure(self, error: ApiError) -> Json:
        """Returns the JSON of an error that ends the answer."""
        return error.body() | {"id": self.accepted.name}


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """A kind of request and answer. `about` is the route's summary. `prefix` begins the ids of answers. `read` parses
    requests by `table`. `kind` is the API's type of answers, like "chat.completion". Clients cannot resume answers of
    the kind ""."""

    path: str
    about: str
    prefix: str
    table: JsonSchema
    read: Callable[[BodyFields, ServedModel], ParsedRequest]
    write: type[AnswerFormat]
    kind: str = ""

    def parse(self, values: dict[str, object], service: Service) -> tuple[ServedModel, ParsedRequest]:
        """Returns (the model, the parsed request). Raises ApiError, AnsweredAtOnce."""
        fields = BodyFields(values, self.table)
        model = named_model(fields, service)
        return model, self.read(fields, model)


def json_bytes(value: object) -> bytes:
    """Encodes JSON in ASCII, without line breaks, which would end an event."""
    return json.dumps(value).encode("ascii")


def long_json(value: object) -> bytes:
    """Encodes like `json_bytes`, but lets other threads run meanwhile."""
    if isinstance(value, dict):
        inner = [(b", ", json_bytes(key), b": ", long_json(one)) for key, one in value.items()]
        return b"".join([b"{", *[part for parts in inner for part in parts][1:], b"}"])
    if not isinstance(value, list):
        return json_bytes(value)
    # Each of a few entries may be large, as choices are; many entries are encoded together.
    if len(value) <= 128:
        entries = b", ".join(map(long_json, value))
    else:
        steps = (json_bytes(value[first : first + 128]) for first in range(0, len(value), 128))
        entries = b", ".join(step[1:-1] for step in steps)
    # Other threads run while `join` copies long bytes, but not while `+` does.
    return b"".join([b"[", entries, b"]"])


def event(value: object) -> bytes:
    return b"data: " + json_bytes(value) + b"\n\n"


def typed_event(kind: str, **fields: object) -> bytes:
    return f"event: {kind}\n".encode("ascii") + event({"type": kind, **fields})


def comment(text: str) -> bytes:
    # No empty line follows: OpenAI's client for Python would read an event there, and fail.
    return f": {sanitised_line(text)}\n".encode()
