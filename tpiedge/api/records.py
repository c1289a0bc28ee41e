"""The folder from which the next master goes on with answers: a file, for its owner alone, for each accepted request
whose answer is not delivered yet.

The first line of a file says which version wrote it and for which weights. The second line is the request, each further
one what came next of its answer (a token, scores of the prompt, a choice's end), or that another master took it up;
lines of all choices stand in the order in which their clients hear of them. Of what a master cannot go on with it keeps
the newest MOST_OTHERS.

Law: whatever a kill leaves of a record reads as the record at some earlier instant, or as none at all. So a line has a
checksum before it and its end after it: one that was cut off is no line, and any other damage is found.
"""

import contextlib
import hashlib
import hmac
import json
import logging
import os
import re
import secrets
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Annotated, Any, Final, Self

import msgspec
from msgspec import Meta

from tpiedge.answers.record import (
    KINDS,
    TAKEN_UP,
    UNRECORDED,
    FoundAnswer,
    Question,
    RecordedEvent,
    RecordFile,
    line,
)
from tpiedge.api.asked import MAX_CHOICES, Asked, Choice, Reply, named_choices
from tpiedge.errors import UserError
from tpiedge.host.private_file import private_bytes, private_folder
from tpiedge.master.journal import GUILTY
from tpiedge.model.tokenizer import TextWriter, Tokenizer
from tpiedge.sanitise import RateLimitedLog
from tpiedge.units import KIB, counted
from tpiedge.wire.control import PromptScores, Token
from tpiedge.wire.fields import U64, Name, Text

_log = logging.getLogger(__name__)

RECORD_VERSION: Final = 6
MOST_OTHERS: Final = 1000

#: Of a record: what the system reads at a time. (A token with twenty scores has half a kilobyte.)
_MOST_BYTES: Final = (1 << 31) - 4097
_SUFFIX: Final = ".answer"
_SET_ASIDE: Final = ".aside"
_FLAGS: Final = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_SALT_BYTES: Final = 16

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
    salt = salt or secrets.token_bytes(_SALT_BYTES)
    return (salt + hmac.digest(salt, key, hashlib.sha256)).hex()


def marks(mark: str, key: bytes) -> bool:
    """Whether `mark` is of `key`, in constant time; an empty one is of every key."""
    return not mark or hmac.compare_digest(mark, key_mark(key, bytes.fromhex(mark)[:_SALT_BYTES]))


def accepted_lines(accepted: AcceptedRequest) -> bytes:
    """The beginning of a record."""
    head = line({"version": RECORD_VERSION, "pack": accepted.pack})
    return head + line(msgspec.to_builtins(accepted))


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
    #: Of each choice, the name of its request and how many tokens it has.
    choices = [[choice.request.id, 0] for choice in accepted.choices]
    said: list[RecordedEvent] = []
    taken_up = 0
    for number, one in enumerate(lines[2:], 3):
        with _line_of_damage(number):
            value = _value(one)
            if value == TAKEN_UP:
                taken_up += 1
                continue
            said.append(_read_event(value, choices))
        taken_up = 0
    return AnswerRecord(accepted, tuple(said), size, taken_up)


def _read_event(value: Any, choices: list[list[Any]]) -> RecordedEvent:
    """Raises ValueError, TypeError, KeyError."""
    found: Any = (0, value, ()) if isinstance(value, int) else value
    choice, kind, fields = found
    if type(choice) is not int or not 0 <= choice < len(choices):
        raise ValueError("there is no such choice")
    if isinstance(kind, str):
        event: Any = msgspec.convert(fields, KINDS[kind])
    else:
        event = msgspec.convert((0, *choices[choice], kind, fields), Token)
        choices[choice][1] += 1
    if isinstance(event, PromptScores) and (not event.scores or len(event.likeliest) % len(event.scores)):
        raise ValueError("positions do not have as many scores each")
    return choice, event


@contextlib.contextmanager
def _line_of_damage(number: int) -> Iterator[None]:
    """Raises DamagedRecord for what a value of another kind than expected raises."""
    try:
        yield
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise DamagedRecord(f"line {number}: {error}") from None


def _value(line: bytes) -> Any:
    checksum, _, text = line.partition(b" ")
    if checksum != b"%08x" % zlib.crc32(text):
        raise ValueError("it differs from its checksum")
    return json.loads(text)


class RecordFolder:
    """For one master at a time, which serves the weights of the id `pack`. For any thread.

    Raises UserError where there can be no such folder.
    """

    def __init__(self, folder: Path, pack: str) -> None:
        self.pack = pack
        self._folder = private_folder(folder)
        self._log = RateLimitedLog(_log)
        self._lock = threading.Lock()
        self._closed = False
        #: A daemon: a disk that hangs keeps no master from its end.
        self._chores: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="records", daemon=True)
        #: The number of the next file: their order is that of the requests.
        self._next = max(map(_number_of, records_in(folder)), default=0) + 1

    def close(self, limit_s: float) -> None:
        """Waits until what was deleted is, at most that long. Idempotent."""
        with self._lock:
            self._closed = True
            self._chores.put(None)
        if self._thread.ident is not None:
            self._thread.join(limit_s)

    def later(self, chore: Callable[[], None]) -> None:
        """Calls it in the thread that waits for the disk; here after `close`, or where no thread is left."""
        with self._lock, contextlib.suppress(RuntimeError):
            if not self._closed:
                if self._thread.ident is None:
                    self._thread.start()
                self._chores.put(chore)
                return
        chore()

    def _work(self) -> None:
        while (chore := self._chores.get()) is not None:
            chore()

    def found(self, tokenizer: Tokenizer | None = None) -> list[FoundAnswer]:
        """What the master before this one left of this model, in the order of the requests. To be called first of all.

        Damaged records are set aside, each with a warning, and those that GUILTY masters took up, none of which got
        on. Raises UserError for a record of an unknown version, or that others may read, or that cannot be used.
        """
        found, others = [], []
        for path in records_in(self._folder):
            with _usable(path):
                data = private_bytes(path, _MOST_BYTES)
                try:
                    pack = read_head(data)
                    record = read_record(data) if pack == self.pack else None
                except DamagedRecord as error:
                    _set_aside(path, f"it is damaged, {error}")
                    continue
                if pack not in (None, self.pack):
                    others.append(path)
                elif record is None:  # its request was not written to its end: nobody was told of it
                    path.unlink()
                elif record.taken_up >= GUILTY:  # it may be what ends masters
                    _set_aside(path, f"{record.taken_up} masters went on with it, and ended before it did")
                else:
                    os.truncate(path, record.size)
                    file = RecordFile(
                        path, os.open(path, os.O_WRONLY | os.O_APPEND | _FLAGS), self._log, self.later
                    )
                    question = record.accepted.question(record.accepted.choices, tokenizer)
                    found.append(FoundAnswer(question, file, record.said))
        many = sorted([*others, *_named(self._folder, _SET_ASIDE)], key=_number_of)[:-MOST_OTHERS]
        for path in many:
            with _usable(path):
                path.unlink()
        if left := len({*others} - {*many}):
            _log.warning(
                "left in %s: %s of another model, of which a master of that model makes the rest",
                self._folder,
                counted(left, "answer"),
            )
        return found

    def begin(self, accepted: AcceptedRequest) -> RecordFile:
        """A record with the request. Where the disk has no room for one there is none, and a warning says so."""
        with self._lock:
            path = self._folder / f"{self._next:012d}-{accepted.name}{_SUFFIX}"
            self._next += 1
        fd = None
        try:
            fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | _FLAGS, 0o600)
        except OSError as error:
            self._log.warning("cannot make %s: %s; %s", path, error.strerror, UNRECORDED)
        file = RecordFile(path, fd, self._log, self.later)
        file.write(accepted_lines(accepted))
        return file


def records_in(folder: Path) -> list[Path]:
    """The files of records, by their number; none where there is no such folder."""
    return _named(folder, _SUFFIX)


def _named(folder: Path, suffix: str) -> list[Path]:
    found = (path for path in folder.glob(f"*{suffix}") if re.match("[0-9]{12,}-", path.name))
    return sorted(found, key=_number_of)


def _number_of(path: Path) -> int:
    return int(path.name.partition("-")[0])


@contextlib.contextmanager
def _usable(path: Path) -> Iterator[None]:
    """Raises UserError for what the system or the record's version has against it."""
    try:
        yield
    except UnknownRecordVersion as error:
        raise UserError(
            f"{path} is a record of version {error}, this tpiedge reads version {RECORD_VERSION}: start the tpiedge "
            "that wrote it, or move the file away"
        ) from None
    except OSError as error:
        raise UserError(f"cannot use {path}: {error.strerror}; mend that, or move the file away") from None


def _set_aside(path: Path, why: str) -> None:
    """Raises OSError."""
    aside = path.rename(path.with_suffix(_SET_ASIDE))
    _log.warning("the record of an answer was set aside as %s: %s", aside, why)
