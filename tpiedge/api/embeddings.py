"""/v1/embeddings: its requests, and vectors as JSON that is sent part by part, as they come.

A part is written when it has come and all before it have; those that come too early wait as bytes.
"""

import base64
import json
import math
import struct
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, cast

from tpiedge.api import tables as t
from tpiedge.api.answer_fields import MODEL, TOKEN_IDS, check_model
from tpiedge.api.asked import (
    Asked,
    Choice,
    FormatName,
    Reply,
    answer_limit,
    check_characters,
    encode,
    named_choices,
    read_token_ids,
    request_of,
)
from tpiedge.api.errors import ApiError, refused
from tpiedge.api.fields import BodyFields
from tpiedge.api.formats import AnswerFormat, AnswerHead, json_bytes
from tpiedge.api.service import Service
from tpiedge.api.transcript import TextPiece, Transcript
from tpiedge.sanitise import sanitised_line
from tpiedge.wire.requests import Pooling, Sampling

_MAX_INPUTS: Final = 2048
"""That one request may have: as many as OpenAI's."""
_FORMS: Final[dict[str, FormatName]] = {"float": "embeddings", "base64": "embeddings-base64"}
_POOLINGS: Final = ("mean", "last")
INPUT: Final = t.any_of(
    t.TEXT,
    TOKEN_IDS,
    {**t.array(t.TEXT, most=_MAX_INPUTS), "type": "array", "minItems": 1},
    {**t.array(TOKEN_IDS, most=_MAX_INPUTS), "type": "array", "minItems": 1},
    description="A text, token ids, or a list of either.",
)
POOLED: Final = {
    "model": MODEL,
    "pooling": t.word(*_POOLINGS, description="Of which positions the vector is."),
    "dimensions": t.integer(1, 2**31, "None but the model's own."),
}
EMBEDDINGS: Final = t.body(
    "model", "input", **POOLED, input=INPUT, encoding_format=t.word(*_FORMS), user=t.VAIN
)


def read_embeddings(values: dict[str, object], service: Service, name: str) -> Asked:
    """`name`: the answer's. Raises ApiError."""
    fields = BodyFields(values, EMBEDDINGS)
    return embedded(fields, service, name, "input", _FORMS[fields.text("encoding_format") or "float"])


def embedded(fields: BodyFields, service: Service, name: str, key: str, form: FormatName) -> Asked:
    """`key` is the field that has the texts. Raises ApiError."""
    check_model(fields, service)
    _check_dimensions(fields, service)
    pooling = _pooling(fields, service)
    choices = []
    for number, one in enumerate(_inputs(fields, key)):
        ids = _ids(one, key, service)
        answer_limit(key, 0, len(ids), service)
        request = replace(request_of(ids, 0, Sampling(), service, ignore_eos=False), pooling=pooling)
        choices.append(Choice(request, number))
    # As a stream, each part of which is an embedding: the whole of many would take much memory.
    reply = Reply(form, True, False, None, (), False)
    return Asked(named_choices(choices, 1, name), reply, fields.ignored)


def _pooling(fields: BodyFields, service: Service) -> Pooling:
    """The pooling that the request names, or else the model."""
    pooling = fields.text("pooling") or service.model().pooling
    if pooling in _POOLINGS:
        return cast(Pooling, pooling)
    raise refused(
        f"the model's files say that embeddings are pooled by {sanitised_line(pooling, 60)}, which is not supported: "
        "give 'pooling', which may be 'mean' or 'last'",
        "pooling",
    )


def _check_dimensions(fields: BodyFields, service: Service) -> None:
    """Raises ApiError where not all dimensions are wanted: the first ones alone mean something only in models that were
    trained for it."""
    width = service.model().width
    wanted = fields.integer("dimensions")
    if wanted is not None and wanted != width:
        raise refused(
            f"'dimensions' is {wanted}: embeddings of this model have {width}, and none fewer", "dimensions"
        )


def _inputs(fields: BodyFields, key: str) -> list[object]:
    """One text or list of token ids each."""
    given = fields.raw(key)
    if isinstance(given, str):
        return [given]
    if not isinstance(given, list):
        raise fields.wrong_type(key, "a string, or an array of strings or token ids", given)
    if not given:
        raise refused(f"'{key}' is empty: give at least one text", key)
    if type(given[0]) is int:
        return [given]
    if len(given) > _MAX_INPUTS:
        raise refused(f"'{key}' has {len(given)} entries: at most {_MAX_INPUTS}", key)
    if {type(one) for one in given} not in ({str}, {list}):
        raise refused(f"'{key}' must hold strings alone, token ids alone, or arrays of these", key)
    return given


def _ids(one: object, key: str, service: Service) -> tuple[int, ...]:
    if isinstance(one, list):
        return read_token_ids(one, key, service)
    text = str(one)
    check_characters(key, [text], service)
    return encode(text, service, key, add_special=True)


_DIGITS: Final = 9
"""As many as tell every f32 from its neighbours."""


class VectorFormat(AnswerFormat):
    """Every choice is a vector: what begins the JSON, the entries, and what ends it."""

    stream_type = b"application/json"

    def __init__(self, head: AnswerHead) -> None:
        super().__init__(head)
        self._next = 0
        self._early: dict[int, bytes] = {}

    @abstractmethod
    def entry(self, number: int, values: Sequence[float]) -> object:
        """One vector's part of the array, as JSON."""

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
