"""What is on disk of an accepted request and its answer, so that the next master can go on with them: lines, pure.

Laws:

1. The first line, of HEAD_BYTES at most, says which version wrote the record and for which weights: who cannot go on
   with it reads no more. The second line is the request, each further one what came next of its answer (a token, scores
   of the prompt, a choice's end), or that another master took it up. A line has a checksum before it and its end after
   it: one that was cut off is no line, and any other damage is found.
2. Whatever a kill leaves of a record reads as the record at some earlier instant, or as none at all.
3. What is read has been checked field by field, as messages are.
4. The lines of all choices stand in the order in which their clients hear of them.
"""

import hashlib
import hmac
import json
import secrets
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Final, Self

from tpiedge.answers.record import Question, RecordedEvent
from tpiedge.api.asked import MAX_CHOICES, Asked, Choice, Reply, named_choices
from tpiedge.api.moments import Moment
from tpiedge.api.prompt_echo import EchoedPrompt
from tpiedge.model.text import TextWriter
from tpiedge.model.tokenizer import Tokenizer
from tpiedge.units import KIB
from tpiedge.wire.control import Finished, PromptScores, Token
from tpiedge.wire.fields import U64, MaxItems, MaxLength, Name, Range, Text
from tpiedge.wire.requests import GenerationRequest, Grammar, Sampling
from tpiedge.wire.schema import schema_of

RECORD_VERSION: Final = 4
HEAD_BYTES: Final = 4096
"""The first line is shorter, however its weights are called."""

_TAKEN_UP: Final = "taken up"
_SCORES: Final = "scores"
_ENDED: Final = "ended"
_END: Final = b"\n"
_LINES_BEFORE_TOKENS: Final = 2
_CHECKSUM: Final = 9  # eight digits and a blank
_SALT_BYTES: Final = 16
_DIGEST_BYTES: Final = 32
_BOOT_CHARACTERS: Final = 64

ANSWER_BYTES: Final = 16 * KIB
"""Memory of an answer that says nothing: its request, its locks, and its file on the disk."""

_CHOICE: Final = 3 * KIB  # what looks for stop strings in it
_SCORE: Final = 128  # a pair of a number and a float
_NUMBER: Final = 36  # and its place in a tuple
_TEXT: Final = 96  # and its place in a tuple
_CHARACTER: Final = 4
_UNKNOWN: Final = Moment("", 0.0, 0.0)


class DamagedRecord(Exception):
    """A whole line is not what was written; the message says which one and why."""


class UnknownRecordVersion(Exception):
    """Another version of tpiedge wrote the record; the message is the number."""


@dataclass(frozen=True, slots=True)
class AcceptedRequest:
    """A request as it was accepted, and how its answer is to be given.

    `name`: the answer's; `prompts`: the first choice of each prompt; `each`: how many choices a prompt has; `created`:
    in seconds since 1970; `model`: what its client is told; `pack`: the id of the weights; `key`: the `key_mark` of its
    client's API key, empty where none was needed; `boot` and `up_s` as of Moment, the former empty in records of older
    versions.
    """

    name: Name
    prompts: Annotated[tuple[Choice, ...], MaxItems(MAX_CHOICES)]
    each: Annotated[int, Range(1, MAX_CHOICES)]
    reply: Reply
    created: U64
    model: Text
    pack: Name
    key: Annotated[str, MaxLength(2 * (_SALT_BYTES + _DIGEST_BYTES))] = ""
    boot: Annotated[str, MaxLength(_BOOT_CHARACTERS)] = ""
    up_s: float = 0.0

    @classmethod
    def of(
        cls,
        asked: Asked,
        name: str,
        created: int,
        model: str,
        pack: str,
        key: bytes,
        moment: Moment = _UNKNOWN,
    ) -> Self:
        """Of a client with that API key, at that moment."""
        each = len(asked.choices) // (asked.choices[-1].prompt + 1)
        choices, mark = asked.choices[::each], key_mark(key)
        return cls(
            name,
            choices,
            each,
            asked.reply,
            created,
            model,
            pack,
            mark,
            moment.boot[:_BOOT_CHARACTERS],
            moment.up_s,
        )

    @property
    def begun(self) -> Moment:
        """When it was accepted."""
        return Moment(self.boot, self.up_s, float(self.created))

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
    """How much memory it takes, about, and rather too much: objects of Python are counted, not what they say."""
    requests = [choice.request for choice in accepted.prompts]
    prompts = sum(len(one.prompt_ids) * _NUMBER + len(one.sampling.logit_bias) * _SCORE for one in requests)
    texts = sum(_TEXT + _CHARACTER * len(text) for text in _texts(accepted))
    return ANSWER_BYTES + _CHOICE * accepted.each * len(requests) + prompts + texts


def _texts(accepted: AcceptedRequest) -> Iterator[str]:
    """What its client wrote, or what was made of that."""
    reply = accepted.reply
    yield from (reply.echo, *reply.stops, *reply.tools, *reply.namespaces)
    for some in reply.texts:
        yield from some
    for choice in accepted.prompts:
        if choice.echo is not None:
            yield choice.echo.text
        if choice.request.grammar is not None:
            yield choice.request.grammar.text


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
    # Older versions read no others in the second line.
    head = {name: values.pop(name) for name in ("pack", "boot", "up_s")}
    return _line({"version": RECORD_VERSION, **head}) + _line(values)


def event_line(choice: int, event: Token | PromptScores | Finished) -> bytes:
    """The next line of a record: a list that begins with the choice or, of a token of the first one without scores, the
    token's number."""
    match event:
        case Token(token=token, logprobs=logprobs):
            return _checked(b"%d" % token) if not (choice or logprobs) else _line([choice, token, logprobs])
        case PromptScores(first=first, scores=scores, likeliest=likeliest):
            return _line([choice, _SCORES, first, scores, likeliest])
        case Finished():
            told = (event.reason, event.prompt_tokens, event.tokens, event.cached_tokens, event.steps)
            return _line([choice, _ENDED, *told])


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
        head = _value(lines[0])
        moment = {name: head[name] for name in ("boot", "up_s") if name in head}
        accepted = _accepted(_value(lines[1]), pack, moment)
    reader = _EventReader(accepted)
    said: list[RecordedEvent] = []
    taken_up = 0
    for number, line in enumerate(lines[_LINES_BEFORE_TOKENS:], _LINES_BEFORE_TOKENS + 1):
        with _line_of_damage(number):
            value = _value(line)
            if value == _TAKEN_UP:
                taken_up += 1
                continue
            said.append(reader.read(value))
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


def _accepted(value: Any, pack: str, moment: Mapping[str, Any]) -> AcceptedRequest:
    values = {**value, **moment}
    prompts = tuple([_choice(one) for one in values.pop("prompts")])
    accepted = AcceptedRequest(prompts=prompts, reply=Reply(**values.pop("reply")), pack=pack, **values)
    _check(accepted)
    bytes.fromhex(accepted.key)
    if not 1 <= len(prompts) * accepted.each <= MAX_CHOICES:
        raise ValueError(f"it has {len(prompts)} prompts with {accepted.each} choices each")
    return accepted


def _choice(value: Any) -> Choice:
    asked = dict(value["request"])
    asked["sampling"] = Sampling(**asked["sampling"])
    if asked.get("grammar") is not None:
        asked["grammar"] = Grammar(**asked["grammar"])
    echo = None if value["echo"] is None else EchoedPrompt(**value["echo"])
    return Choice(GenerationRequest(**asked), value["prompt"], echo)


class _EventReader:
    """Of the lines of one answer, in their order."""

    def __init__(self, accepted: AcceptedRequest) -> None:
        self._names = [choice.request.id for choice in accepted.choices]
        self._tokens = [0 for _ in self._names]

    def read(self, value: Any) -> RecordedEvent:
        """Raises ValueError, TypeError."""
        choice: Any
        kind: Any
        rest: Any
        choice, kind, *rest = (0, value, ()) if isinstance(value, int) else value
        if type(choice) is not int or not 0 <= choice < len(self._names):
            raise ValueError("there is no such choice")
        name = self._names[choice]
        event: Token | PromptScores | Finished
        if kind == _SCORES:
            event = PromptScores(0, name, *rest)
            if not event.scores or len(event.likeliest) % len(event.scores):
                raise ValueError("positions do not have as many scores each")
        elif kind == _ENDED:
            reason, prompt_tokens, tokens, cached_tokens, steps = rest
            event = Finished(0, name, reason, prompt_tokens, tokens, cached_tokens, steps)
        else:
            event = Token(0, name, self._tokens[choice], kind, *rest)
            self._tokens[choice] += 1
        _check(event)
        return choice, event


def _check(value: object) -> None:
    """Raises ValueError for a field that no message may have."""
    kind: Any = type(value)
    schema_of(kind).write(value)


def _frozen(value: Any) -> Any:
    """JSON's arrays as tuples."""
    if isinstance(value, dict):
        return {key: _frozen(one) for key, one in value.items()}
    return tuple([_frozen(one) for one in value]) if isinstance(value, list) else value
