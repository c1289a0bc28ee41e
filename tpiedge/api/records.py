"""The folder from which the next master resumes answers. Each answer has a private file.

Line 1 has the version and the id of the weights. Line 2 has the request. Each further line has an event, or says that a
later master resumed the answer. The newest MOST_OTHERS files that cannot be resumed are kept.

Law: a kill leaves an earlier state of a record, or no record. A line without a line break does not count. A checksum in
each line shows other damage."""

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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from tpiedge.answers import record
from tpiedge.api.parsed import MAX_CHOICES, Choice, Reply
from tpiedge.engine.sampling import MAX_SEED
from tpiedge.errors import TpiedgeError, UserError
from tpiedge.host.private_file import private_bytes, private_folder
from tpiedge.master.journal import POISON_AFTER
from tpiedge.model.tokenizer import TextWriter, Tokenizer
from tpiedge.sanitise import RateLimitedLog
from tpiedge.units import KIB, counted
from tpiedge.wire.control import PromptScores, Token
from tpiedge.wire.fields import U64, Name, Text

_log = logging.getLogger(__name__)

RECORD_VERSION: Final = 6
MOST_OTHERS: Final = 1000

#: The most bytes that the system reads at a time. (A token with twenty scores has half a kilobyte.)
_MOST_BYTES: Final = (1 << 31) - 4097
_SUFFIX: Final = ".answer"
_SET_ASIDE: Final = ".aside"
_FLAGS: Final = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_SALT_BYTES: Final = 16

ANSWER_BYTES: Final = 16 * KIB
"""Memory of an answer without events: its request, locks, and file."""


class DamagedRecord(Exception):
    """A complete line is damaged; the message says which line and why."""


class UnknownRecordVersion(Exception):
    """Another version wrote the record; the message is its number."""


class OtherModel(Exception):
    """The record is of other weights."""


@dataclass(frozen=True, slots=True)
class AcceptedRequest:
    """An accepted request. `name` is the answer's id. `prompts` has each prompt's first choice. `each` is the number of
    choices per prompt. `created` is in seconds since 1970. `pack` is the id of the weights. `key` is the API key's
    `key_mark`, or ""."""

    name: Name
    prompts: Annotated[tuple[Choice, ...], Meta(max_length=MAX_CHOICES)]
    each: Annotated[int, Meta(ge=1, le=MAX_CHOICES)]
    reply: Reply
    created: U64
    model: Text
    pack: Name
    key: Annotated[str, Meta(max_length=2 * (_SALT_BYTES + 32))] = ""

    @property
    def choices(self) -> tuple[Choice, ...]:
        """All choices, with their ids. The choices of a prompt have consecutive seeds."""
        found: list[Choice] = []
        for choice in self.prompts:
            request = choice.request
            for n in range(self.each):
                name = f"{self.name}-{len(found)}" if len(self.prompts) * self.each > 1 else self.name
                drawn = replace(request.sampling, seed=(request.sampling.seed + n) % (MAX_SEED + 1))
                found.append(replace(choice, request=replace(request, id=name, sampling=drawn)))
        return tuple(found)

    def writer(self, choice: Choice, tokenizer: Tokenizer | None) -> TextWriter:
        after = choice.request.prompt_ids if self.reply.goes_on else ()
        return TextWriter(tokenizer, self.reply.stops, after, self.reply.speech.marks)

    def question(self, tokenizer: Tokenizer | None) -> record.Question:
        choices, reply = self.choices, self.reply
        stops = [self.writer(one, tokenizer) for one in choices] if reply.stops else []
        requests = tuple([choice.request for choice in choices])
        return record.Question(self.name, requests, stops, reply.stream, request_bytes(self), self)


@dataclass(frozen=True, slots=True)
class AnswerRecord:
    """A record's content. `size`: bytes of complete lines. `resubmissions`: how many masters resumed the answer since
    its last event."""

    accepted: AcceptedRequest
    said: tuple[record.RecordedEvent, ...]
    size: int
    resubmissions: int = 0


def request_bytes(accepted: AcceptedRequest) -> int:
    """Estimates a request's memory in bytes, rather too high."""
    requests = [choice.request for choice in accepted.prompts]
    numbers = sum(36 * len(one.prompt_ids) + 128 * len(one.sampling.logit_bias) for one in requests)
    grammars = sum(len(one.grammar.text) for one in requests if one.grammar is not None)
    echoes = sum(len(choice.echo.text) for choice in accepted.prompts if choice.echo is not None)
    texts = 8 * (len(str(accepted.reply)) + grammars + echoes)
    return ANSWER_BYTES + 3 * KIB * accepted.each * len(requests) + numbers + texts


def key_mark(key: bytes, salt: bytes | None = None) -> str:
    """Returns a salted digest of `key`, or "" for an empty key."""
    if not key:
        return ""
    salt = salt or secrets.token_bytes(_SALT_BYTES)
    return (salt + hmac.digest(salt, key, hashlib.sha256)).hex()


def marks(mark: str, key: bytes) -> bool:
    """Whether `mark` is "" or was made from `key`. Takes constant time."""
    return not mark or hmac.compare_digest(mark, key_mark(key, bytes.fromhex(mark)[:_SALT_BYTES]))


def accepted_lines(accepted: AcceptedRequest) -> bytes:
    head = record.line({"version": RECORD_VERSION, "pack": accepted.pack})
    return head + record.line(msgspec.to_builtins(accepted))


def read_record(data: bytes, *packs: str) -> AnswerRecord | None:
    """Parses a record; returns None if its request is incomplete. `packs`: ids of known weights. Raises DamagedRecord,
    UnknownRecordVersion, OtherModel."""
    size = data.rfind(b"\n") + 1
    first, end, rest = data.partition(b"\n")
    if not end:
        return None
    with _line_of_damage(1):
        head = _value(first)
        if head["version"] != RECORD_VERSION:
            raise UnknownRecordVersion(str(head["version"]))
        if str(head["pack"]) not in packs:
            raise OtherModel
    lines = rest.split(b"\n")[:-1]
    if not lines:
        return None
    with _line_of_damage(2):
        accepted = msgspec.convert(_value(lines[0]), AcceptedRequest)
        bytes.fromhex(accepted.key)
        if not 1 <= len(accepted.prompts) * accepted.each <= MAX_CHOICES:
            raise ValueError(f"it has {len(accepted.prompts)} prompts with {accepted.each} choices each")
    #: [request id, number of tokens so far] of each choice.
    choices = [[choice.request.id, 0] for choice in accepted.choices]
    said: list[record.RecordedEvent] = []
    resubmissions = 0
    for number, one in enumerate(lines[1:], 3):
        with _line_of_damage(number):
            value = _value(one)
            if value == record.RESUBMIT:
                resubmissions += 1
                continue
            said.append(_read_event(value, choices))
        resubmissions = 0
    return AnswerRecord(accepted, tuple(said), size, resubmissions)


def _read_event(value: Any, choices: list[list[Any]]) -> record.RecordedEvent:
    """Raises ValueError, TypeError, KeyError."""
    found: Any = (0, value, ()) if isinstance(value, int) else value
    choice, kind, fields = found
    if type(choice) is not int or not 0 <= choice < len(choices):
        raise ValueError("there is no such choice")
    if isinstance(kind, str):
        event: Any = _message(record.KINDS[kind], fields)
    else:
        event = _message(Token, (0, *choices[choice], kind, fields))
        choices[choice][1] += 1
    if isinstance(event, PromptScores) and (not event.scores or len(event.likeliest) % len(event.scores)):
        raise ValueError("positions do not have as many scores each")
    return choice, event


def _message(kind: Any, fields: Any) -> Any:
    return msgspec.convert((kind.__struct_config__.tag, *fields), kind)


@contextlib.contextmanager
def _line_of_damage(number: int) -> Iterator[None]:
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
    """The records of one master. `packs`: ids of the weights that it can serve. Thread-safe. Raises UserError."""

    def __init__(self, folder: Path, *packs: str) -> None:
        self._packs = packs
        self._folder = private_folder(folder)
        self._log = RateLimitedLog(_log)
        self._lock = threading.Lock()
        chores: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._chores: SimpleQueue[Callable[[], None] | None] | None = chores  # until `close`
        #: A daemon, so that a disk that hangs does not keep the master from ending.
        self._thread = threading.Thread(target=_work, args=(chores,), name="records", daemon=True)
        self._found: dict[Path, int] = {}  # bytes of each record that this master resumes
        #: Number of the next file: files are in the order of the requests.
        self._next = max(map(_number_of, records_in(folder)), default=0) + 1

    def close(self, limit_s: float) -> None:
        """Waits for all chores, at most `limit_s`. Idempotent."""
        with self._lock:
            if self._chores is not None:
                self._chores.put(None)
            self._chores = None
        if self._thread.ident is not None:
            self._thread.join(limit_s)

    def later(self, chore: Callable[[], None]) -> None:
        """Runs a chore in a thread or, if that is impossible, at once."""
        with self._lock, contextlib.suppress(RuntimeError):
            if self._chores is not None:
                if self._thread.ident is None:
                    self._thread.start()
                self._chores.put(chore)
                return
        chore()

    def found(
        self, tokenizer: Callable[[str], Tokenizer | None] = lambda _: None
    ) -> list[record.FoundAnswer]:
        """Returns undelivered answers of known models, oldest first. Sets bad records aside. Call `found` before all
        other methods. The function `tokenizer` gets the id of a pack. Raises UserError."""
        found, others, packs = [], [], set(self._packs)
        for path in records_in(self._folder):
            with _usable(path):
                data = private_bytes(path, _MOST_BYTES)
                try:
                    read = read_record(data, *packs)
                except OtherModel:
                    others.append(path)
                    continue
                except DamagedRecord as error:
                    _set_aside(path, f"it is damaged, {error}")
                    continue
                if read is None:  # no client heard of it
                    path.unlink()
                elif read.resubmissions >= POISON_AFTER:  # perhaps it kills masters
                    _set_aside(path, f"{read.resubmissions} masters resumed it and ended first")
                else:
                    try:
                        question = read.accepted.question(tokenizer(read.accepted.pack))
                    except TpiedgeError as error:
                        _log.warning("the model %s cannot be served: %s", read.accepted.model, error)
                        packs.discard(read.accepted.pack)
                        others.append(path)
                        continue
                    os.truncate(path, read.size)
                    self._found[path] = read.size
                    file = record.RecordFile(
                        path, os.open(path, os.O_WRONLY | os.O_APPEND | _FLAGS), self._log, self.later
                    )
                    found.append(record.FoundAnswer(question, file, read.said))
        excess = sorted([*others, *records_in(self._folder, _SET_ASIDE)], key=_number_of)[:-MOST_OTHERS]
        for path in excess:
            with _usable(path):
                path.unlink()
        if left := len({*others} - {*excess}):
            words = "left in %s: %s of another model; a master of that model resumes them"
            _log.warning(words, self._folder, counted(left, "answer"))
        return found

    def ended_in_order(self) -> None:
        """Drops RESUBMIT lines that no event followed. Call it at the master's orderly end."""
        for path, size in self._found.items():
            with contextlib.suppress(OSError):  # it was deleted, or the disk fails and the line stays
                if path.read_bytes()[size:] == record.line(record.RESUBMIT):
                    os.truncate(path, size)

    def create(self, accepted: AcceptedRequest) -> record.RecordFile:
        """Creates a record with the request. A failure of the disk is only logged."""
        with self._lock:
            path = self._folder / f"{self._next:012d}-{accepted.name}{_SUFFIX}"
            self._next += 1
        fd = None
        try:
            fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | _FLAGS, 0o600)
        except OSError as error:
            self._log.warning("cannot make %s: %s; %s", path, error.strerror, record.UNRECORDED)
        file = record.RecordFile(path, fd, self._log, self.later)
        if not file.write(accepted_lines(accepted)):
            file.delete()
        return file


def _work(chores: SimpleQueue[Callable[[], None] | None]) -> None:
    while (chore := chores.get()) is not None:
        chore()


def records_in(folder: Path, suffix: str = _SUFFIX) -> list[Path]:
    """Returns the records with `suffix`, in the order of their numbers."""
    found = (path for path in folder.glob(f"*{suffix}") if re.match("[0-9]{12,}-", path.name))
    return sorted(found, key=_number_of)


def _number_of(path: Path) -> int:
    return int(path.name.partition("-")[0])


@contextlib.contextmanager
def _usable(path: Path) -> Iterator[None]:
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
    aside = path.rename(path.with_suffix(_SET_ASIDE))
    _log.warning("the record of an answer was set aside as %s: %s", aside, why)
