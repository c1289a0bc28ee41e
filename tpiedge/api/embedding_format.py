"""Embeddings as OpenAI's API has them: JSON that is sent part by part, as the vectors come.

A part is written when it has come and all before it have; those that come too early wait as bytes.
"""

import base64
import math
import struct
from collections.abc import Sequence

from tpiedge.api.errors import ApiError
from tpiedge.api.formats import AnswerHead
from tpiedge.api.frames import json_bytes
from tpiedge.api.transcript import TextPiece, Transcript

__all__ = ["EmbeddingFormat", "unit_vector"]

_DIGITS = 9
"""As many as tell every f32 from its neighbours."""


class EmbeddingFormat:
    """An AnswerFormat, whose every choice is a vector."""

    stream_type = b"application/json"

    def __init__(self, head: AnswerHead) -> None:
        self._head = head
        self._encoded = head.reply.format == "embeddings-base64"
        self._next = 0
        self._early: dict[int, bytes] = {}

    def opening(self) -> Sequence[bytes]:
        return (b'{"object": "list", "data": [',)

    def frames(self, choice: int, piece: TextPiece) -> Sequence[bytes]:
        comma = b", " if choice else b""
        self._early[choice] = comma + json_bytes(self._entry(choice, piece))
        found = []
        while self._next in self._early:
            found.append(self._early.pop(self._next))
            self._next += 1
        return found

    def closing(self, _transcripts: Sequence[Transcript]) -> Sequence[bytes]:
        rest = json_bytes({"model": self._head.model, "usage": self._usage})
        return (b"], " + rest[1:],)

    def alive(self, _why: str) -> bytes:
        return b"\n"  # between two parts JSON may have it

    def broken(self, error: ApiError, tokens: int) -> bytes:
        """What makes it no JSON any more, whatever a client does with a body that breaks off."""
        return b"\n" + json_bytes(self.failure(error, tokens))

    def whole(self, pieces: Sequence[Sequence[TextPiece]], _transcripts: Sequence[Transcript]) -> object:
        data = [self._entry(number, parts[-1]) for number, parts in enumerate(pieces)]
        return {"object": "list", "data": data, "model": self._head.model, "usage": self._usage}

    def failure(self, error: ApiError, _tokens: int) -> object:
        return error.body() | {"id": self._head.id}

    @property
    def _usage(self) -> dict[str, int]:
        tokens = sum(self._head.prompt_tokens)
        return {"prompt_tokens": tokens, "total_tokens": tokens}

    def _entry(self, number: int, piece: TextPiece) -> dict[str, object]:
        unit = unit_vector(piece.embedding)
        vector: object = unit
        if self._encoded:
            vector = base64.b64encode(struct.pack(f"<{len(unit)}f", *unit)).decode("ascii")
        return {"object": "embedding", "index": number, "embedding": vector}


def unit_vector(values: Sequence[float]) -> list[float]:
    """The vector made one unit long, as clients who compare them by their products expect; zeros stay zeros. Each
    number is written with the digits of an f32."""
    length = math.sqrt(math.fsum(value * value for value in values)) or 1.0
    return [float(f"{value / length:.{_DIGITS}g}") for value in values]
