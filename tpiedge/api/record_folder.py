"""The folder of records: one file for each answer that is not delivered yet, for its owner alone.

A line is one write into the system's memory of files, and is not waited for until it is on the disk: a master that is
killed loses nothing, a power cut may lose the last half minute. What can be written no more never ends an answer: it
goes on, unrecorded, and a warning says so. Of what a master cannot go on with it keeps the newest MOST_OTHERS.
"""

import contextlib
import errno
import logging
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Final, TypeVar

from tpiedge.answers.record import FoundAnswer
from tpiedge.api.records import (
    RECORD_VERSION,
    AcceptedRequest,
    AnswerRecord,
    DamagedRecord,
    UnknownRecordVersion,
    accepted_lines,
    event_line,
    read_head,
    read_record,
    taken_up_line,
)
from tpiedge.errors import UserError
from tpiedge.host.private_file import private_bytes, private_folder
from tpiedge.master.journal import GUILTY
from tpiedge.model.tokenizer import Tokenizer
from tpiedge.sanitise import RateLimitedLog
from tpiedge.units import counted
from tpiedge.wire.control import Finished, PromptScores, Token

_log = logging.getLogger(__name__)

MOST_OTHERS: Final = 1000

_Read = TypeVar("_Read")
#: Of a record: what the system reads at a time. (A token with twenty scores has half a kilobyte.)
_MOST_BYTES: Final = (1 << 31) - 4097
_SUFFIX: Final = ".answer"
_SET_ASIDE: Final = ".aside"
_FLAGS: Final = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


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
        on. Raises UserError for a record of an unknown version, or that others may read, or that cannot be read.
        """
        packs = {path: self._read(path, read_head) for path in records_in(self._folder)}
        found = []
        for path in (path for path, pack in packs.items() if pack == self.pack):
            record = self._read(path, read_record)
            if record is None:
                continue
            if record.taken_up >= GUILTY:  # it may be what ends masters
                self._set_aside(path, f"{record.taken_up} masters went on with it, and ended before it did")
                continue
            question = record.accepted.question(record.accepted.choices, tokenizer)
            file = self._continued(path, record)
            found.append(FoundAnswer(question, file, record.said))
        others = [path for path, pack in packs.items() if pack not in (None, self.pack)]
        many = sorted([*others, *_named(self._folder, _SET_ASIDE)], key=_number_of)[:-MOST_OTHERS]
        for path in many:
            try:
                path.unlink()
            except OSError as error:
                raise _unusable(path, error) from None
        if left := len({*others} - {*many}):
            _log.warning(
                "left in %s: %s of another model, of which a master of that model makes the rest",
                self._folder,
                counted(left, "answer"),
            )
        return found

    def begin(self, accepted: AcceptedRequest) -> "RecordFile":
        """A record with the request. Where the disk has no room for one there is none, and a warning says so."""
        with self._lock:
            path = self._folder / f"{self._next:012d}-{accepted.name}{_SUFFIX}"
            self._next += 1
        fd = None
        try:
            fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | _FLAGS, 0o600)
        except OSError as error:
            self._log.warning("cannot make %s: %s; %s", path, error.strerror, _UNRECORDED)
        file = RecordFile(path, fd, self._log, self.later)
        file.write(accepted_lines(accepted))
        return file

    def _read(self, path: Path, read: Callable[[bytes], _Read | None]) -> _Read | None:
        """What the file says. None for a damaged one, and for one whose request was not written to its end: nobody was
        told of it."""
        try:
            found = read(private_bytes(path, _MOST_BYTES))
            if found is None:
                path.unlink()
            return found
        except UnknownRecordVersion as error:
            raise UserError(
                f"{path} is a record of version {error}, this tpiedge reads version {RECORD_VERSION}: start the "
                "tpiedge that wrote it, or move the file away"
            ) from None
        except DamagedRecord as error:
            self._set_aside(path, f"it is damaged, {error}")
            return None
        except OSError as error:
            raise _unusable(path, error) from None

    def _set_aside(self, path: Path, why: str) -> None:
        aside = path.with_suffix(_SET_ASIDE)
        try:
            path.rename(aside)
        except OSError as error:
            raise _unusable(path, error) from None
        _log.warning("the record of an answer was set aside as %s: %s", aside, why)

    def _continued(self, path: Path, record: AnswerRecord) -> "RecordFile":
        """The file, without what was cut off in it."""
        try:
            os.truncate(path, record.size)
            fd = os.open(path, os.O_WRONLY | os.O_APPEND | _FLAGS)
        except OSError as error:
            raise _unusable(path, error) from None
        return RecordFile(path, fd, self._log, self.later)


_UNRECORDED: Final = "the answer goes on, but would not survive the master's end"


class RecordFile:
    """One answer's record. For any thread. Nothing of it raises OSError."""

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
        self.write(taken_up_line())

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
            self._log.warning("cannot write %s: %s; %s", self._path, why, _UNRECORDED)
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


def records_in(folder: Path) -> list[Path]:
    """The files of records, by their number; none where there is no such folder."""
    return _named(folder, _SUFFIX)


def _named(folder: Path, suffix: str) -> list[Path]:
    found = (path for path in folder.glob(f"*{suffix}") if re.match("[0-9]{12,}-", path.name))
    return sorted(found, key=_number_of)


def _number_of(path: Path) -> int:
    return int(path.name.partition("-")[0])


def _unusable(path: Path, error: OSError) -> UserError:
    return UserError(f"cannot use {path}: {error.strerror}; mend that, or move the file away")
