"""Records an answer's request and events in a file: a killed master loses no event, a power cut about half a minute of
them, because nothing waits for the disk."""

import errno
import json
import os
import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import structs

from tpiedge.master.journal import AnswerEvent
from tpiedge.model.tokenizer import TextWriter
from tpiedge.sanitise import RateLimitedLog
from tpiedge.wire.control import Embedding, Finished, PromptScores, Token
from tpiedge.wire.requests import GenerationRequest

UNRECORDED: Final = "the answer goes on, but what is not written would not survive the master's end"
UNWRITTEN_BYTES: Final = 1 << 20  # above this, unwritten lines delete the record
RESUBMIT: Final = "taken up"  # the line that a later master writes when it resumes the answer
KINDS: Final[Mapping[str, Any]] = {"scores": PromptScores, "ended": Finished}

RecordedEvent: TypeAlias = tuple[int, Token | PromptScores | Finished]


@dataclass(frozen=True, slots=True)
class Question:
    """An accepted request. `name`: the answer's id. `requests`, `stops`: one for each choice; without stop strings,
    `stops` is empty. `nbytes`: estimated memory. `about`: the AcceptedRequest."""

    name: str
    requests: tuple[GenerationRequest, ...]
    stops: Sequence[TextWriter]
    stream: bool
    nbytes: int
    about: object = None


class RecordFile:
    """The file of one answer's lines. Thread-safe. Each write first repeats failed writes."""

    def __init__(
        self, path: Path, fd: int | None, log: RateLimitedLog, later: Callable[[Callable[[], None]], None]
    ) -> None:
        """Owns `fd`, open for appending; None: there is no file. `later` calls a function in another thread."""
        self._path = path
        self._fd = fd
        self._log = log
        self._later = later
        self._unwritten = b""
        self._lock = threading.RLock()  # held while waiting for the disk
        self._doomed = fd is None  # there is no file, or it will be deleted
        self._kept = False

    @property
    def there(self) -> bool:
        return not self._doomed

    def write(self, lines: bytes) -> bool:
        """Writes `lines`. Returns whether all lines so far are written."""
        with self._lock:
            if self._fd is None or self._doomed:
                return False
            self._unwritten += lines
            why = os.strerror(errno.ENOSPC)
            try:
                self._unwritten = self._unwritten[os.write(self._fd, self._unwritten) :]
            except OSError as error:
                why = str(error.strerror)
            if self._unwritten:
                self._log.warning("cannot write %s: %s; %s", self._path, why, UNRECORDED)
            if len(self._unwritten) > UNWRITTEN_BYTES:
                self.delete()
            return not self._unwritten

    def finish(self) -> None:
        """Closes the file without deleting it. Idempotent."""
        with self._lock:
            if self._unwritten:
                self.write(b"")
            self._close()

    def delete(self) -> None:
        """Deletes the record in another thread. Idempotent. Has no effect after `keep`."""
        if not self._doomed:
            self._doomed = True
            self._later(self._delete)

    def keep(self) -> None:
        """Keeps the file for the next master, unless it was deleted. Idempotent."""
        with self._lock:
            if not self._doomed:
                self._kept = True
                self.finish()

    def _delete(self) -> None:
        with self._lock:
            if self._kept:
                return
            self._close()
            try:
                self._path.unlink(missing_ok=True)
            except OSError as error:
                self._log.warning("cannot delete %s: %s; delete it yourself", self._path, error.strerror)

    def _close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            try:
                os.close(fd)
            except OSError as error:
                self._log.warning("cannot close %s: %s", self._path, error.strerror)


@dataclass(frozen=True, slots=True)
class FoundAnswer:
    """An answer that a previous master did not deliver."""

    question: Question
    record: RecordFile
    said: Sequence[RecordedEvent]


def event_bytes(event: AnswerEvent) -> int:
    """Estimates the event's memory in bytes, rather too high."""
    pairs = numbers = 0
    match event:
        case Token(logprobs=logprobs):
            pairs = len(logprobs)
        case PromptScores(scores=scores, likeliest=likeliest):
            pairs, numbers = len(likeliest), len(scores)
        case Embedding(values=values):
            numbers = len(values)
    return 320 + 128 * pairs + 36 * numbers


def event_line(choice: int, event: AnswerEvent) -> bytes:
    """Returns the event's line in the record; b"" for an event that is not recorded."""
    match event:
        case Finished(reason="cancel"):  # later masters resume cancelled choices
            return b""
        case Token(token=token, logprobs=logprobs):
            return line([choice, token, logprobs]) if choice or logprobs else _checked(b"%d" % token)
        case PromptScores() | Finished():
            kind = next(name for name, cls in KINDS.items() if isinstance(event, cls))
            _tag, *fields = msgspec.to_builtins(structs.replace(event, epoch=0))
            return line([choice, kind, fields])
    return b""


def line(value: object) -> bytes:
    return _checked(json.dumps(value, allow_nan=False, separators=(",", ":")).encode("ascii"))


def _checked(text: bytes) -> bytes:
    return b"%08x %b\n" % (zlib.crc32(text), text)
