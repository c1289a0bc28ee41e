"""What an answer knows of its request, and the file in which is recorded what came of it.

A line is one write into the system's memory of files, and is not waited for until it is on the disk: a master that is
killed loses nothing, a power cut may lose the last half minute.
"""

import errno
import json
import os
import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeGuard

import msgspec
from msgspec import structs

from tpiedge.answers.generation import AnswerEvent
from tpiedge.model.tokenizer import TextWriter
from tpiedge.sanitise import RateLimitedLog
from tpiedge.wire.control import Embedding, Finished, PromptScores, Token
from tpiedge.wire.requests import GenerationRequest

UNRECORDED: Final = "the answer goes on, but would not survive the master's end"
TAKEN_UP: Final = "taken up"
"""The line with which another master goes on."""
KINDS: Final[Mapping[str, Any]] = {"scores": PromptScores, "ended": Finished}
"""How lines call the events that are no tokens."""

RecordedEvent: TypeAlias = tuple[int, Token | PromptScores | Finished]
"""What is recorded of an answer, with the number of the choice that it is of."""


@dataclass(frozen=True, slots=True)
class Question:
    """An accepted request, as its answer needs to know it. `name`: the answer's; `requests`: one for each choice;
    `stops`: what finds the stop strings of each, empty where there are none; `stream`: how it is given; `nbytes`: of
    memory that it takes, about; `about`: what else its owner knows of it."""

    name: str
    requests: tuple[GenerationRequest, ...]
    stops: Sequence[TextWriter]
    stream: bool
    nbytes: int
    about: object = None


class RecordFile:
    """What survives the master of one answer: a file to whose end lines are added. For any thread. What can be written
    no more never ends an answer: it goes on, unrecorded, and a warning says so."""

    def __init__(
        self,
        path: Path,
        fd: int | None,
        log: RateLimitedLog,
        later: Callable[[Callable[[], None]], None],
    ) -> None:
        """`fd`: open for appending, and from now on this object's; None where there is no file. `later` calls what it
        is given in another thread."""
        self._path = path
        self._fd = fd
        #: Whether there is a file, open or not.
        self._there = fd is not None
        self._log = log
        self._later = later
        self._lock = threading.Lock()  # held while the disk is waited for
        self._doomed = self._kept = False

    @property
    def there(self) -> bool:
        """Whether all that was passed on is recorded."""
        return self._there and not self._doomed

    def add(self, choice: int, event: Token | PromptScores | Finished) -> None:
        """Adds what is about to be passed on of a choice."""
        self.write(event_line(choice, event))

    def take_up(self) -> None:
        """Adds that another master asks for the rest."""
        self.write(line(TAKEN_UP))

    def write(self, lines: bytes) -> None:
        """Adds these lines; without room for them there is no record any more."""
        with self._lock:
            if self._fd is None or self._doomed:
                return
            try:
                if os.write(self._fd, lines) == len(lines):
                    return
                why = os.strerror(errno.ENOSPC)
            except OSError as error:
                why = str(error.strerror)
            self._log.warning("cannot write %s: %s; %s", self._path, why, UNRECORDED)
            self._delete()

    def finish(self) -> None:
        """Nothing more is written: the file stays, and none is open for it. Idempotent."""
        with self._lock:
            self._close()

    def delete(self) -> None:
        """The answer needs no record any more. Does not wait for the disk. Idempotent; no effect after `keep`."""
        if not self._doomed:
            self._doomed = True
            self._later(self._delete_now)

    def keep(self) -> None:
        """From now on nothing is written, and the file stays for the next master, unless it was deleted. Idempotent."""
        with self._lock:
            if not self._doomed:
                self._kept = True
                self._close()

    def _delete_now(self) -> None:
        with self._lock:
            self._delete()

    def _delete(self) -> None:
        if not self._there or self._kept:
            return
        self._close()
        self._there = False
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
    """An answer that a master before this one did not deliver."""

    question: Question
    record: RecordFile
    said: Sequence[RecordedEvent]


def event_bytes(event: AnswerEvent) -> int:
    """How much memory it takes, about, and rather too much: its objects, a pair of a number and a float for a score,
    and a number with its place in a tuple."""
    pairs = numbers = 0
    match event:
        case Token(logprobs=logprobs):
            pairs = len(logprobs)
        case PromptScores(scores=scores, likeliest=likeliest):
            pairs, numbers = len(likeliest), len(scores)
        case Embedding(values=values):
            numbers = len(values)
    return 320 + 128 * pairs + 36 * numbers


def is_recorded(event: AnswerEvent) -> TypeGuard[Token | PromptScores | Finished]:
    """Whether another master needs to know it. A choice that is cancelled has no end: that one goes on with it."""
    return isinstance(event, Token | PromptScores) or (
        isinstance(event, Finished) and event.reason != "cancel"
    )


def event_line(choice: int, event: Token | PromptScores | Finished) -> bytes:
    """The next line of a record: a list that begins with the choice or, of a token of the first one without scores, the
    token's number."""
    if isinstance(event, Token):
        if not (choice or event.logprobs):
            return _checked(b"%d" % event.token)
        return line([choice, event.token, event.logprobs])
    kind = next(name for name, cls in KINDS.items() if isinstance(event, cls))
    return line([choice, kind, msgspec.to_builtins(structs.replace(event, epoch=0))])


def line(value: object) -> bytes:
    """The line that says so."""
    return _checked(json.dumps(value, allow_nan=False, separators=(",", ":")).encode("ascii"))


def _checked(text: bytes) -> bytes:
    return b"%08x %b\n" % (zlib.crc32(text), text)
