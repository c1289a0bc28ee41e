"""What is on disk of an accepted request and its answer, so that the next master can go on with them: lines, pure.

The first line says which version wrote the record and for which weights. The second line is the request, each further
one what came next of its answer (a token, scores of the prompt, a choice's end), or that another master took it up;
lines of all choices stand in the order in which their clients hear of them.

Law: whatever a kill leaves of a record reads as the record at some earlier instant, or as none at all. So a line has a
checksum before it and its end after it: one that was cut off is no line, and any other damage is found.
"""

import hashlib
import hmac
import json
import secrets
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Final, Self

import msgspec
from msgspec import Meta, structs

from tpiedge.answers.record import Question, RecordedEvent
from tpiedge.api.asked import MAX_CHOICES, Asked, Choice, Reply, named_choices
from tpiedge.model.tokenizer import TextWriter, Tokenizer
from tpiedge.units import KIB
from tpiedge.wire.control import Finished, PromptScores, Token
from tpiedge.wire.fields import U64, Name, Text

RECORD_VERSION: Final = 5

_TAKEN_UP: Final = "taken up"
_CHECKSUM: Final = 9  # eight digits and a blank
_SALT_BYTES: Final = 16
#: How lines call the events that are no tokens.
_KINDS: Final[Mapping[str, Any]] = {"scores": PromptScores, "ended": Finished}

ANSWER_BYTES: Final = 16 * KIB
"""Memory of an answer that says nothing: its request, its locks, and its file on the disk."""


class DamagedRecord(Exception):
    """A whole line is not what was written; the message says which one and why."""


class UnknownRecordVersion(Exception):
    """Another version of tpiedge wrote the record; the message is the number."""


@dataclass(frozen=True, slots=True)
class AcceptedRequest:
    """A request as it was accepted, and how its answer is to be given.

    `name`: the answer's; `prompts`: the first choice of each prompt; `each`: how many choices a prompt has; `created`:
    in seconds since 1970; `model`: what its client is told; `pack`: the id of the weights; `key`: the `key_mark` of its
    client's API key, empty where none was needed.
    """

    name: Name
    prompts: Annotated[tuple[Choice, ...], Meta(max_length=MAX_CHOICES)]
    each: Annotated[int, Meta(ge=1, le=MAX_CHOICES)]
    reply: Reply
    created: U64
    model: Text
    pack: Name
    key: Annotated[str, Meta(max_length=2 * (_SALT_BYTES + 32))] = ""

    @classmethod
    def of(cls, asked: Asked, name: str, created: int, model: str, pack: str, key: bytes) -> Self:
        """`key`: the client's API key."""
        each = len(asked.choices) // (asked.choices[-1].prompt + 1)
        return cls(name, asked.choices[::each], each, asked.reply, created, model, pack, key_mark(key))

    @property
    def choices(self) -> tuple[Choice, ...]:
        """All of them, in their order."""
        return named_choices(self.prompts, self.each, self.name)

    def question(self, choices: Sequence[Choice], tokenizer: Tokenizer | None) -> Question:
        """What its answer needs to know; `choices` as of `choices`. Stop strings are found as Transcript does."""
        reply = self.reply
        stops = [
            TextWriter(
                tokenizer, reply.stops, one.request.prompt_ids if reply.goes_on else (), reply.speech.marks
            )
            for one in (choices if reply.stops else ())
        ]
        requests = tuple([choice.request for choice in choices])
        return Question(self.name, requests, stops, reply.stream, request_bytes(self), self)


@dataclass(frozen=True, slots=True)
class AnswerRecord:
    """What a file says. `size`: bytes of its whole lines; what follows is the rest of one that was cut off. `taken_up`:
    by how many masters since something was said last."""

    accepted: AcceptedRequest
    said: tuple[RecordedEvent, ...]
    size: int
    taken_up: int = 0


def request_bytes(accepted: AcceptedRequest) -> int:
    """How much memory it takes, about, and rather too much: 36 bytes for a number and its place in a tuple, 128 for a
    pair of them, 3 KiB for what looks for stop strings in a choice, 8 for a character of what its client wrote."""
    requests = [choice.request for choice in accepted.prompts]
    numbers = sum(36 * len(one.prompt_ids) + 128 * len(one.sampling.logit_bias) for one in requests)
    grammars = sum(len(one.grammar.text) for one in requests if one.grammar is not None)
    echoes = sum(len(choice.echo.text) for choice in accepted.prompts if choice.echo is not None)
    texts = 8 * (len(str(accepted.reply)) + grammars + echoes)
    return ANSWER_BYTES + 3 * KIB * accepted.each * len(requests) + numbers + texts


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
    head = _line({"version": RECORD_VERSION, "pack": accepted.pack})
    return head + _line(msgspec.to_builtins(accepted))


def event_line(choice: int, event: Token | PromptScores | Finished) -> bytes:
    """The next line of a record: a list that begins with the choice or, of a token of the first one without scores, the
    token's number."""
    if isinstance(event, Token):
        if not (choice or event.logprobs):
            return _checked(b"%d" % event.token)
        return _line([choice, event.token, event.logprobs])
    kind = next(name for name, cls in _KINDS.items() if isinstance(event, cls))
    return _line([choice, kind, msgspec.to_builtins(structs.replace(event, epoch=0))])


def taken_up_line() -> bytes:
    """The next line of a record with which another master goes on."""
    return _line(_TAKEN_UP)


def read_head(data: bytes) -> str | None:
    """The id of the weights; None where not even the first line was written whole.

    Raises DamagedRecord, UnknownRecordVersion.
    """
    line, end, _ = data.partition(b"\n")
    if not end:
        return None
    with _line_of_damage(1):
        head = _value(line)
        if head["version"] != RECORD_VERSION:
            raise UnknownRecordVersion(str(head["version"]))
        return str(head["pack"])


def read_record(data: bytes) -> AnswerRecord | None:
    """What the bytes of a file say; None where there is not even a whole request: nobody was told of it.

    Raises DamagedRecord, UnknownRecordVersion.
    """
    size = data.rfind(b"\n") + 1
    lines = data[:size].split(b"\n")[:-1]
    if read_head(data) is None or len(lines) < 2:
        return None
    with _line_of_damage(2):
        accepted = msgspec.convert(_value(lines[1]), AcceptedRequest)
        bytes.fromhex(accepted.key)
        if not 1 <= len(accepted.prompts) * accepted.each <= MAX_CHOICES:
            raise ValueError(f"it has {len(accepted.prompts)} prompts with {accepted.each} choices each")
    reader = _EventReader(accepted)
    said: list[RecordedEvent] = []
    taken_up = 0
    for number, line in enumerate(lines[2:], 3):
        with _line_of_damage(number):
            value = _value(line)
            if value == _TAKEN_UP:
                taken_up += 1
                continue
            said.append(reader.read(value))
        taken_up = 0
    return AnswerRecord(accepted, tuple(said), size, taken_up)


class _EventReader:
    """Of the lines of one answer, in their order."""

    def __init__(self, accepted: AcceptedRequest) -> None:
        self._names = [choice.request.id for choice in accepted.choices]
        self._tokens = [0 for _ in self._names]

    def read(self, value: Any) -> RecordedEvent:
        """Raises ValueError, TypeError, KeyError."""
        choice: Any
        kind: Any
        rest: Any
        choice, kind, *rest = (0, value, ()) if isinstance(value, int) else value
        if type(choice) is not int or not 0 <= choice < len(self._names):
            raise ValueError("there is no such choice")
        (fields,) = rest
        if isinstance(kind, str):
            event: Any = msgspec.convert(fields, _KINDS[kind])
        else:
            index, self._tokens[choice] = self._tokens[choice], self._tokens[choice] + 1
            event = msgspec.convert((0, self._names[choice], index, kind, fields), Token)
        if isinstance(event, PromptScores) and (not event.scores or len(event.likeliest) % len(event.scores)):
            raise ValueError("positions do not have as many scores each")
        return choice, event


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
    return json.loads(text)
