"""What is on disk of an accepted request and its answer, so that the next master can go on with them: lines, pure.

Laws:

1. The first line, of HEAD_BYTES at most, says which version wrote the record and for which weights: who cannot go on
   with it reads no more. The second line is the request, each further one the next token of its answer, or that
   another master took it up. A line has a checksum before it and its end after it: one that was cut off is no line,
   and any other damage is found.
2. Whatever a kill leaves of a record reads as the record at some earlier instant, or as none at all.
3. What is read has been checked field by field, as messages are.
"""

import hashlib
import hmac
import json
import secrets
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Final

from tpiedge.api.asked import Reply
from tpiedge.wire.control import Token
from tpiedge.wire.fields import U64, MaxLength, Name, Text
from tpiedge.wire.requests import GenerationRequest, Grammar, Sampling
from tpiedge.wire.schema import schema_of

__all__ = [
    "HEAD_BYTES",
    "RECORD_VERSION",
    "AcceptedRequest",
    "AnswerRecord",
    "DamagedRecord",
    "UnknownRecordVersion",
    "accepted_lines",
    "key_mark",
    "marks",
    "read_head",
    "read_record",
    "taken_up_line",
    "token_line",
]

RECORD_VERSION: Final = 3
HEAD_BYTES: Final = 4096
"""The first line is shorter, however its weights are called."""

_TAKEN_UP: Final = "taken up"
_END: Final = b"\n"
_LINES_BEFORE_TOKENS: Final = 2
_CHECKSUM: Final = 9  # eight digits and a blank
_SALT_BYTES: Final = 16
_DIGEST_BYTES: Final = 32


class DamagedRecord(Exception):
    """A whole line is not what was written; the message says which one and why."""


class UnknownRecordVersion(Exception):
    """Another version of tpiedge wrote the record; the message is the number."""


@dataclass(frozen=True, slots=True)
class AcceptedRequest:
    """A request as it was accepted, and how its answer is to be given.

    `created`: in seconds since 1970; `model`: what its client is told; `pack`: the id of the weights; `key`: the
    `key_mark` of its client's API key, empty where none was needed.
    """

    request: GenerationRequest
    reply: Reply
    created: U64
    model: Text
    pack: Name
    key: Annotated[str, MaxLength(2 * (_SALT_BYTES + _DIGEST_BYTES))] = ""


@dataclass(frozen=True, slots=True)
class AnswerRecord:
    """What a file says. `size`: bytes of its whole lines; what follows is the rest of one that was cut off. `taken_up`:
    by how many masters since something was said last."""

    accepted: AcceptedRequest
    said: tuple[Token, ...]
    size: int
    taken_up: int = 0


def key_mark(key: bytes, salt: bytes | None = None) -> str:
    """What tells that somebody has `key`, and not what it is; empty for an empty one."""
    if not key:
        return ""
    salt = secrets.token_bytes(_SALT_BYTES) if salt is None else salt
    return (salt + hmac.digest(salt, key, hashlib.sha256)).hex()


def marks(mark: str, key: bytes) -> bool:
    """Whether `mark` is of `key`, in constant time; an empty one is of every key."""
    return not mark or hmac.compare_digest(mark, key_mark(key, bytes.fromhex(mark)[:_SALT_BYTES]))


def accepted_lines(accepted: AcceptedRequest) -> bytes:
    """The beginning of a record."""
    values = asdict(accepted)
    return _line({"version": RECORD_VERSION, "pack": values.pop("pack")}) + _line(values)


def token_line(token: Token) -> bytes:
    """The next line of a record: the token's number or, with its scores, a list of both."""
    return _line([token.token, token.logprobs]) if token.logprobs else _checked(b"%d" % token.token)


def read_head(data: bytes) -> str | None:
    """The id of the weights, from a record's first HEAD_BYTES; None where not even they were written whole.

    Raises DamagedRecord, UnknownRecordVersion.
    """
    line, end, _ = data[:HEAD_BYTES].partition(_END)
    if not end and len(data) < HEAD_BYTES:
        return None
    with _line_of_damage(1):
        return _pack(_value(line))


def read_record(data: bytes) -> AnswerRecord | None:
    """What the bytes of a file say; None where there is not even a whole request: nobody was told of it.

    Raises DamagedRecord, UnknownRecordVersion.
    """
    size = data.rfind(_END) + 1
    lines = data[:size].split(_END)[:-1]
    pack = read_head(data)
    if pack is None or len(lines) < _LINES_BEFORE_TOKENS:
        return None
    with _line_of_damage(2):
        accepted = _accepted(_value(lines[1]), pack)
    said: list[Token] = []
    taken_up = 0
    for number, line in enumerate(lines[_LINES_BEFORE_TOKENS:], _LINES_BEFORE_TOKENS + 1):
        with _line_of_damage(number):
            value = _value(line)
            if value == _TAKEN_UP:
                taken_up += 1
                continue
            said.append(_token(value, accepted.request.id, len(said)))
        taken_up = 0
    return AnswerRecord(accepted, tuple(said), size, taken_up)


def taken_up_line() -> bytes:
    """The next line of a record with which another master goes on."""
    return _line(_TAKEN_UP)


def _line(value: object) -> bytes:
    return _checked(json.dumps(value, allow_nan=False, separators=(",", ":")).encode("ascii"))


def _checked(text: bytes) -> bytes:
    return b"%08x %b\n" % (zlib.crc32(text), text)


@contextmanager
def _line_of_damage(number: int) -> Iterator[None]:
    """Raises DamagedRecord for what a value of another kind than expected raises."""
    try:
        yield
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise DamagedRecord(f"line {number}: {error}") from None


def _value(line: bytes) -> Any:
    text = line[_CHECKSUM:]
    if line[:_CHECKSUM] != b"%08x " % zlib.crc32(text):
        raise ValueError("it differs from its checksum")
    return _frozen(json.loads(text))


def _pack(head: Any) -> str:
    if head["version"] != RECORD_VERSION:
        raise UnknownRecordVersion(str(head["version"]))
    if not isinstance(head["pack"], str):
        raise TypeError("it names no weights")
    return head["pack"]


def _accepted(value: Any, pack: str) -> AcceptedRequest:
    values = dict(value)
    asked = dict(values.pop("request"))
    asked["sampling"] = Sampling(**asked["sampling"])
    if asked.get("grammar") is not None:
        asked["grammar"] = Grammar(**asked["grammar"])
    request = GenerationRequest(**asked)
    accepted = AcceptedRequest(request, Reply(**values.pop("reply")), pack=pack, **values)
    _check(accepted)
    bytes.fromhex(accepted.key)
    return accepted


def _token(value: Any, request: str, index: int) -> Token:
    number, scores = (value, ()) if isinstance(value, int) else value
    token = Token(0, request, index, number, scores)
    _check(token)
    return token


def _check(value: object) -> None:
    """Raises ValueError for a field that no message may have."""
    kind: Any = type(value)
    schema_of(kind).write(value)


def _frozen(value: Any) -> Any:
    """JSON's arrays as tuples."""
    if isinstance(value, dict):
        return {key: _frozen(one) for key, one in value.items()}
    return tuple([_frozen(one) for one in value]) if isinstance(value, list) else value
