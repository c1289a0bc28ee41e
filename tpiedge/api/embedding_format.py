"""Embeddings as JSON that is sent part by part, as the vectors come.

A part is written when it has come and all before it have; those that come too early wait as bytes.
"""

import base64
import json
import math
import struct
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final

from tpiedge.api.errors import ApiError
from tpiedge.api.formats import AnswerHead
from tpiedge.api.frames import json_bytes
from tpiedge.api.transcript import TextPiece, Transcript

_DIGITS: Final = 9
"""As many as tell every f32 from its neighbours."""


class VectorFormat(ABC):
    """An AnswerFormat, whose every choice is a vector: what begins the JSON, the entries, and what ends it."""

    stream_type = b"application/json"

    def __init__(self, head: AnswerHead) -> None:
        self.head = head
        self._next = 0
        self._early: dict[int, bytes] = {}

    @abstractmethod
    def opening(self) -> Sequence[bytes]: ...

    @abstractmethod
    def entry(self, number: int, values: Sequence[float]) -> object:
        """One vector's part of the array, as JSON."""

    @abstractmethod
    def closing(self, transcripts: Sequence[Transcript]) -> Sequence[bytes]: ...

    def failure(self, error: ApiError, _tokens: int) -> object:
        return error.body() | {"id": self.head.id}

    def frames(self, choice: int, piece: TextPiece) -> Sequence[bytes]:
        comma = b", " if choice else b""
        self._early[choice] = comma + json_bytes(self.entry(choice, piece.embedding))
        found = []
        while self._next in self._early:
            found.append(self._early.pop(self._next))
            self._next += 1
        return found

    def alive(self, _why: str) -> bytes:
        return b"\n"  # between two parts JSON may have it

    def broken(self, error: ApiError, tokens: int) -> bytes:
        """What makes it no JSON any more, whatever a client does with a body that breaks off."""
        return b"\n" + json_bytes(self.failure(error, tokens))

    def whole(self, pieces: Sequence[Sequence[TextPiece]], transcripts: Sequence[Transcript]) -> object:
        entries = [frame for number, parts in enumerate(pieces) for frame in self.frames(number, parts[-1])]
        return json.loads(b"".join((*self.opening(), *entries, *self.closing(transcripts))))

    @property
    def prompt_tokens(self) -> int:
        return sum(self.head.prompt_tokens)


class EmbeddingFormat(VectorFormat):
    """As OpenAI's API has them."""

    def opening(self) -> Sequence[bytes]:
        return (b'{"object": "list", "data": [',)

    def entry(self, number: int, values: Sequence[float]) -> object:
        unit = unit_vector(values)
        vector: object = unit
        if self.head.reply.format == "embeddings-base64":
            vector = base64.b64encode(struct.pack(f"<{len(unit)}f", *unit)).decode("ascii")
        return {"object": "embedding", "index": number, "embedding": vector}

    def closing(self, _transcripts: Sequence[Transcript]) -> Sequence[bytes]:
        usage = {"prompt_tokens": self.prompt_tokens, "total_tokens": self.prompt_tokens}
        return (b"], " + json_bytes({"model": self.head.model, "usage": usage})[1:],)


def unit_vector(values: Sequence[float]) -> list[float]:
    """The vector made one unit long, as clients who compare them by their products expect; zeros stay zeros. Each
    number is written with the digits of an f32."""
    length = math.sqrt(math.fsum(value * value for value in values)) or 1.0
    return [float(f"{value / length:.{_DIGITS}g}") for value in values]
