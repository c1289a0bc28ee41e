"""Reads requests to /v1/embeddings. Writes vectors as JSON, in the order of inputs."""

import base64
import math
import struct
from collections.abc import Sequence
from typing import Any, Final

from tpiedge.api import fields as t
from tpiedge.api import parsed as p
from tpiedge.api.errors import ApiError, refused
from tpiedge.api.fields import BodyFields
from tpiedge.api.formats import AnswerForm, AnswerFormat, json_bytes
from tpiedge.api.parsed import Choice, FormatName, ParsedRequest, Reply
from tpiedge.api.records import AcceptedRequest
from tpiedge.api.transcript import TextPiece
from tpiedge.local.served_models import ServedModel
from tpiedge.model.tokenizer import Tokenizer
from tpiedge.sanitise import sanitised_line
from tpiedge.wire.requests import GenerationRequest

_MAX_INPUTS: Final = 2048  # OpenAI's limit
_ENCODINGS: Final[dict[str, FormatName]] = {"float": "embeddings", "base64": "embeddings-base64"}
_POOLINGS: Final = ("mean", "last")
INPUT: Final = p.prompts(_MAX_INPUTS, "A text, token ids, or a list of either.")
POOLED: Final = {
    "model": p.MODEL,
    "pooling": t.word(
        *_POOLINGS, description="Of which positions the vector is; else as the model's files say."
    ),
    "dimensions": t.integer(1, 2**31, "None but the model's own."),
}
_EMBEDDINGS: Final = t.body(
    "input", **POOLED, input=INPUT, encoding_format=t.word(*_ENCODINGS) | {"default": "float"}
)


def _read_embeddings(fields: BodyFields, model: ServedModel) -> ParsedRequest:
    return embedded(fields, model, "input", _ENCODINGS[fields.get("encoding_format") or "float"])


def embedded(fields: BodyFields, model: ServedModel, key: str, form: FormatName) -> ParsedRequest:
    """Parses a request for vectors of the inputs in field `key`. Raises ApiError."""
    width, wanted = model.width, fields.get("dimensions")
    # Fewer dimensions mean something only in models that were trained for it.
    if wanted is not None and wanted != width:
        why = f"is {wanted}: embeddings of this model have {width}, and none fewer"
        raise fields.wrong("dimensions", why)
    pooling: Any = fields.get("pooling") or model.pooling
    if pooling not in _POOLINGS:
        raise refused(
            f"the model's files say that embeddings are pooled by {sanitised_line(pooling, 60)}, which is not "
            "supported: give 'pooling', which may be 'mean' or 'last'",
            "pooling",
        )
    choices, inputs = [], p.read_prompts(fields, key)
    if len(inputs) > _MAX_INPUTS:
        raise fields.wrong(key, f"has {len(inputs)} entries: at most {_MAX_INPUTS}")
    for number, one in enumerate(inputs):
        ids = p.read_token_ids(one, key, model)
        p.answer_limit(key, 0, len(ids), model)
        request = GenerationRequest("", ids, 0, stop_ids=model.eos_ids, keep_prefix=True, pooling=pooling)
        choices.append(Choice(request, number))
    # The answer is a stream, as many vectors at once would take much memory.
    reply = Reply(form, True, False, None, (), False)
    return ParsedRequest(tuple(choices), reply, fields.ignored)


class VectorFormat(AnswerFormat):
    """Writes vectors as an answer of /v1/embeddings."""

    stream_type = "application/json"

    def __init__(self, accepted: AcceptedRequest, tokenizer: Tokenizer | None) -> None:
        super().__init__(accepted, tokenizer)
        self._next = 0
        self._early: dict[int, bytes] = {}

    def opening(self) -> Sequence[bytes]:
        return (b'{"object": "list", "data": [',)

    def entry(self, number: int, values: Sequence[float]) -> object:
        unit = unit_vector(values)
        vector: object = unit
        if self.reply.format == "embeddings-base64":
            vector = base64.b64encode(struct.pack(f"<{len(unit)}f", *unit)).decode("ascii")
        return {"object": "embedding", "index": number, "embedding": vector}

    def frames(self, choice: int, piece: TextPiece) -> Sequence[bytes]:
        comma = b", " if choice else b""
        self._early[choice] = comma + json_bytes(self.entry(choice, piece.embedding))
        found = []
        while self._next in self._early:
            found.append(self._early.pop(self._next))
            self._next += 1
        return found

    def alive(self, _why: str) -> bytes:
        return b"\n"  # JSON may have blank lines between its parts

    def broken(self, error: ApiError) -> bytes:
        return b"\n" + json_bytes(self.failure(error))

    def closing(self) -> Sequence[bytes]:
        usage = dict.fromkeys(("prompt_tokens", "total_tokens"), self.prompt_tokens)
        return (b"], " + json_bytes({"model": self.accepted.model, "usage": usage})[1:],)


def unit_vector(values: Sequence[float]) -> list[float]:
    """Scales a vector to length 1. Nine digits are enough for every f32."""
    length = math.sqrt(math.fsum(value * value for value in values)) or 1.0  # clients compare by dot products
    return [float(f"{value / length:.9g}") for value in values]


EMBEDDING: Final = AnswerForm(
    "/v1/embeddings", "Vectors of texts", "embd", _EMBEDDINGS, _read_embeddings, VectorFormat
)
