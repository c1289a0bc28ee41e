"""The folder of records: one file for each answer that is not delivered yet, for its owner alone.

A master that begins to record deletes what nobody wrote to for KEPT_DAYS and, of what it cannot go on with, all but the
newest MOST_OTHERS: so nothing fills the disk, nor makes starts slow.

A line is one write into the system's memory of files, and is not waited for until it is on the disk: a master that is
killed loses nothing, a power cut may lose the last half minute. What can be written no more never ends an answer: it
goes on, unrecorded, and a warning says so.
"""

import errno
import logging
import os
import queue
import re
import stat
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from tpiedge.api.records import (
    HEAD_BYTES,
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
from tpiedge.host.private_file import private_folder
from tpiedge.master.journal import GUILTY
from tpiedge.rate_limited_log import RateLimitedLog
from tpiedge.units import counted
from tpiedge.wire.control import Finished, PromptScores, Token

__all__ = ["KEPT_DAYS", "MOST_OTHERS", "FoundAnswer", "RecordFile", "RecordFolder", "records_in"]

_log = logging.getLogger(__name__)

KEPT_DAYS: Final = 7
MOST_OTHERS: Final = 1000

_DAY_S: Final = 86_400
_Read = TypeVar("_Read")
_DIGITS: Final = 12
_SUFFIX: Final = ".answer"
_SET_ASIDE: Final = ".aside"
_NAME: Final = re.compile(rf"[0-9]{{{_DIGITS},}}-")
_OWNER_ONLY: Final = 0o600
_FLAGS: Final = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_UNRECORDED: Final = "the answer goes on, but would not survive the master's end"
_COUNTS: Final = "that this master went on with the answer counts as if it had failed"


class RecordFile:
    """One answer's record, made by RecordFolder. For any thread. Nothing of it raises OSError."""

    def __init__(
        self, path: Path, fd: int | None, log: RateLimitedLog, later: Callable[[Callable[[], None]], None]
    ) -> None:
        """`fd`: open for appending, and from now on this object's; None where there is no file. `later` calls what it
        is given in another thread."""
        self._path = path
        self._fd = fd
        self._log = log
        self._later = later
        self._lock = threading.Lock()  # held while the disk is waited for
        self._doomed = False
        self._kept = False
        #: The file's size without its last line, where that is this master's that it took the answer up.
        self._untried_size: int | None = None

    def add(self, choice: int, event: Token | PromptScores | Finished) -> None:
        """Adds what is about to be passed on of a choice."""
        self.write(event_line(choice, event))

    def take_up(self) -> None:
        """Adds that another master asks for the rest."""
        self._write(taken_up_line(), takes_up=True)

    def write(self, line: bytes) -> None:
        """Adds a line."""
        self._write(line, takes_up=False)

    def _write(self, line: bytes, *, takes_up: bool) -> None:
        with self._lock:
            if self._fd is None or self._doomed:
                return
            try:
                untried_size = os.fstat(self._fd).st_size if takes_up else None
                if os.write(self._fd, line) == len(line):
                    self._untried_size = untried_size
                    return
                why = os.strerror(errno.ENOSPC)
            except OSError as error:
                why = str(error.strerror)
            self._log.warning("cannot write %s: %s; %s", self._path, why, _UNRECORDED)
            self._delete()

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

    def take_back(self) -> None:
        """After `keep`, where the master ended in order: that it took the answer up, and no more, does not count. No
        effect on other files. Idempotent."""
        with self._lock:
            size, self._untried_size = self._untried_size, None
            if not self._kept or size is None:
                return
            try:
                os.close(_cut(self._path, size))
            except OSError as error:
                self._log.warning("cannot shorten %s: %s; %s", self._path, error.strerror, _COUNTS)

    def _delete_now(self) -> None:
        with self._lock:
            self._delete()

    def _delete(self) -> None:
        if self._fd is None:
            return
        self._close()
        self._untried_size = None
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            self._log.warning("cannot delete %s: %s; delete it yourself", self._path, error.strerror)

    def _close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is None:
            return
        try:
            os.close(fd)
        except OSError as error:
            self._log.warning("cannot close %s: %s", self._path, error.strerror)


@dataclass(frozen=True, slots=True)
class FoundAnswer:
    """An answer that a master before this one did not deliver, and the file in which its record goes on."""

    record: AnswerRecord
    file: RecordFile


class RecordFolder:
    """For one master at a time, which serves the weights of the id `pack`. For any thread.

    Raises UserError where there can be no such folder.
    """

    def __init__(self, folder: Path, pack: str, now: Callable[[], float] = time.time) -> None:
        """`now`: in seconds since 1970, as the files' times are."""
        self.pack = pack
        self._now = now
        self._folder = private_folder(folder)
        self._log = RateLimitedLog(_log)
        self._lock = threading.Lock()
        self._chores: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._worker: threading.Thread | None = None  # while the disk may have to be waited for
        #: The number of the next file: their order is that of the requests.
        self._next = max(map(_number_of, records_in(folder)), default=0) + 1

    def close(self, limit_s: float) -> None:
        """Waits until what was deleted is, at most that long. Idempotent."""
        with self._lock:
            worker, self._worker = self._worker, None
        if worker is not None:
            self._chores.put(None)
            worker.join(limit_s)

    def _later(self, chore: Callable[[], None]) -> None:
        with self._lock:
            self._chores.put(chore)
            if self._worker is not None:
                return
            worker = threading.Thread(target=self._work, name="records", daemon=True)
            try:
                worker.start()
            except RuntimeError:  # the system has no thread left: late is better than never
                self._chores.get()
            else:
                self._worker = worker
                return
        chore()

    def _work(self) -> None:
        while (chore := self._chores.get()) is not None:
            chore()

    def found(self) -> list[FoundAnswer]:
        """What the master before this one left of this model, in the order of the requests. To be called first of all.

        Damaged records are set aside, each with a warning, and those that GUILTY masters took up, none of which got
        on; how many are of other models, one line says, and another how many were deleted. Raises UserError for a
        record of an unknown version, or that others may read, or that cannot be read.
        """
        since = self._now() - KEPT_DAYS * _DAY_S
        old = [
            path for path in (*records_in(self._folder), *_aside_in(self._folder)) if _written(path) < since
        ]
        _delete(old)
        ours, others = self._divided()
        found = [
            FoundAnswer(record, self._continued(path, record.size))
            for path in ours
            if (record := self._read(path, read_record)) is not None and not self._ends_masters(path, record)
        ]
        many = sorted([*others, *_aside_in(self._folder)], key=_number_of)[:-MOST_OTHERS]
        _delete(many)
        self._say(len({*others} - {*many}), len(old) + len(many))
        return found

    def begin(self, accepted: AcceptedRequest) -> RecordFile:
        """A record with the request. Where the disk has no room for one there is none, and a warning says so."""
        line = accepted_lines(accepted)
        with self._lock:
            path = self._folder / f"{self._next:0{_DIGITS}d}-{accepted.name}{_SUFFIX}"
            self._next += 1
        try:
            fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | _FLAGS, _OWNER_ONLY)
        except OSError as error:
            self._log.warning("cannot make %s: %s; %s", path, error.strerror, _UNRECORDED)
            return RecordFile(path, None, self._log, self._later)
        file = RecordFile(path, fd, self._log, self._later)
        file.write(line)
        return file

    def _divided(self) -> tuple[list[Path], list[Path]]:
        """The records of this model, and those of others."""
        packs = {path: self._read(path, read_head, HEAD_BYTES) for path in records_in(self._folder)}
        known = [path for path, pack in packs.items() if pack is not None]
        ours = [path for path in known if packs[path] == self.pack]
        return ours, [path for path in known if packs[path] != self.pack]

    def _say(self, others: int, deleted: int) -> None:
        if others:
            _log.warning(
                "left in %s: %s of another model, of which a master of that model makes the rest",
                self._folder,
                counted(others, "answer"),
            )
        if deleted:
            _log.warning(
                "deleted from %s: %s, older than %d days or beyond the newest %d with which this master cannot go on",
                self._folder,
                counted(deleted, "record"),
                KEPT_DAYS,
                MOST_OTHERS,
            )

    def _read(self, path: Path, read: Callable[[bytes], _Read | None], most: int = -1) -> _Read | None:
        """What the beginning of the file says, of so many bytes, or all of it. None for a damaged one, and for one
        whose request was not written to its end: nobody was told of it."""
        data = _private_bytes(path, most)
        try:
            found = read(data)
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

    def _ends_masters(self, path: Path, record: AnswerRecord) -> bool:
        """Whether the request may be what ends masters; then it is not tried again."""
        if record.taken_up < GUILTY:
            return False
        self._set_aside(path, f"{record.taken_up} masters went on with it, and ended before it did")
        return True

    def _set_aside(self, path: Path, why: str) -> None:
        aside = path.with_suffix(_SET_ASIDE)
        try:
            path.rename(aside)
        except OSError as error:
            raise _unusable(path, error) from None
        _log.warning("the record of an answer was set aside as %s: %s", aside, why)

    def _continued(self, path: Path, size: int) -> RecordFile:
        """The file, without what was cut off in it."""
        try:
            fd = _cut(path, size)
        except OSError as error:
            raise _unusable(path, error) from None
        return RecordFile(path, fd, self._log, self._later)


def _cut(path: Path, size: int) -> int:
    """The file, of so many bytes from now on, open for appending. Raises OSError."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | _FLAGS)
    try:
        os.ftruncate(fd, size)
    except OSError:
        os.close(fd)
        raise
    return fd


def records_in(folder: Path) -> list[Path]:
    """The files of records, by their number; none where there is no such folder."""
    return _named(folder, _SUFFIX)


def _aside_in(folder: Path) -> list[Path]:
    return _named(folder, _SET_ASIDE)


def _named(folder: Path, suffix: str) -> list[Path]:
    found = (path for path in folder.glob(f"*{suffix}") if _NAME.match(path.name))
    return sorted(found, key=_number_of)


def _written(path: Path) -> float:
    """When it was written to last, in seconds since 1970."""
    try:
        return path.lstat().st_mtime
    except OSError as error:
        raise _unusable(path, error) from None


def _delete(paths: Sequence[Path]) -> None:
    for path in paths:
        try:
            path.unlink()
        except OSError as error:
            raise _unusable(path, error) from None


def _number_of(path: Path) -> int:
    return int(path.name.partition("-")[0])


def _private_bytes(path: Path, most: int) -> bytes:
    """What the file begins with, `most` bytes, or all of it where that is -1. Raises UserError, also where others may
    read it."""
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | _FLAGS), "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if not stat.S_ISREG(mode) or mode & 0o077:
                raise UserError(
                    f"{path} is not a file that only its owner may use: chmod 600 {path}, or move it away"
                )
            return file.read(most)
    except OSError as error:
        raise _unusable(path, error) from None


def _unusable(path: Path, error: OSError) -> UserError:
    return UserError(f"cannot use {path}: {error.strerror}; mend that, or move the file away")
