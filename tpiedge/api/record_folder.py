"""The folder of records: one file for each answer that is not delivered yet, for its owner alone.

A master that begins to record deletes what nobody wrote to for KEPT_DAYS and, of what it cannot go on with, all but the
newest MOST_OTHERS: so nothing fills the disk, nor makes starts slow. The times of files are those of a clock that may
have been set since: so each master leaves beside the folder when it began, by all clocks, and the next one first sets
the times of all files by as much as the time of day went ahead of the time that passed, or fell behind (`moments.py`).
"""

import logging
import os
import queue
import re
import stat
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

from tpiedge.answers.record import FoundAnswer
from tpiedge.api.moments import Moment, this_moment
from tpiedge.api.record_file import OPEN_FLAGS, OWNER_ONLY, PARTIAL, UNRECORDED, RecordFile, cut
from tpiedge.api.records import (
    HEAD_BYTES,
    RECORD_VERSION,
    AcceptedRequest,
    AnswerRecord,
    DamagedRecord,
    UnknownRecordVersion,
    read_head,
    read_record,
)
from tpiedge.errors import TpiedgeError, UserError
from tpiedge.host.private_file import private_folder, read_private, replace_private
from tpiedge.master.journal import GUILTY
from tpiedge.model.tokenizer import Tokenizer
from tpiedge.rate_limited_log import RateLimitedLog
from tpiedge.units import counted

_log = logging.getLogger(__name__)

KEPT_DAYS: Final = 7
MOST_OTHERS: Final = 1000

_DAY_S: Final = 86_400
_CLOCK_ERROR_S: Final = 60.0  # which no file's time is worth setting for
_Read = TypeVar("_Read")
_DIGITS: Final = 12
_SUFFIX: Final = ".answer"
_SET_ASIDE: Final = ".aside"
_NAME: Final = re.compile(rf"[0-9]{{{_DIGITS},}}-")


class RecordFolder:
    """For one master at a time, which serves the weights of the id `pack`. For any thread.

    Raises UserError where there can be no such folder.
    """

    def __init__(self, folder: Path, pack: str, now: Callable[[], Moment] = this_moment) -> None:
        self.pack = pack
        self._now = now
        self._folder = private_folder(folder)
        #: When the last master began, by all clocks.
        self._clock = folder.with_name(f"{folder.name}.clock")
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

    def later(self, chore: Callable[[], None]) -> None:
        """Calls it in the thread that waits for the disk."""
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

    def found(self, tokenizer: Tokenizer | None = None) -> list[FoundAnswer]:
        """What the master before this one left of this model, in the order of the requests. To be called first of all.

        Damaged records are set aside, each with a warning, and those that GUILTY masters took up, none of which got
        on; how many are of other models, one line says, and another how many were deleted. Raises UserError for a
        record of an unknown version, or that others may read, or that cannot be read.
        """
        now = self._now()
        _delete(_named(self._folder, PARTIAL))
        self._set_times(now)
        since = now.day_s - KEPT_DAYS * _DAY_S
        old = [
            path for path in (*records_in(self._folder), *_aside_in(self._folder)) if _written(path) < since
        ]
        _delete(old)
        ours, others = self._divided()
        found = [
            FoundAnswer(
                record.accepted.question(record.accepted.choices, tokenizer),
                self._continued(path, record),
                record.said,
                now.since(record.accepted.begun),
                record.taken_up,
            )
            for path in ours
            if (record := self._read(path, read_record)) is not None and not self._ends_masters(path, record)
        ]
        many = sorted([*others, *_aside_in(self._folder)], key=_number_of)[:-MOST_OTHERS]
        _delete(many)
        self._say(len({*others} - {*many}), len(old) + len(many))
        return found

    def moment(self) -> Moment:
        """Now, as a request keeps it."""
        return self._now()

    def begin(self, accepted: AcceptedRequest) -> RecordFile:
        """A record with the request. Where the disk has no room for one there is none, and a warning says so."""
        with self._lock:
            path = self._folder / f"{self._next:0{_DIGITS}d}-{accepted.name}{_SUFFIX}"
            self._next += 1
        try:
            fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | OPEN_FLAGS, OWNER_ONLY)
        except OSError as error:
            self._log.warning("cannot make %s: %s; %s", path, error.strerror, UNRECORDED)
            return RecordFile(path, accepted, None, self._log, self.later)
        file = RecordFile(path, accepted, fd, self._log, self.later)
        file.begin()
        return file

    def _set_times(self, now: Moment) -> None:
        """Sets the times of files as if the clock had gone right since the last master began; to now where it is not
        known when that was."""
        last = self._last_moment()
        ahead_s = now.day_s if last is None else now.day_s - last.day_s - now.since(last)
        if abs(ahead_s) > _CLOCK_ERROR_S:
            for path in (*records_in(self._folder), *_aside_in(self._folder)):
                written = min(_written(path) + ahead_s, now.day_s)
                try:
                    os.utime(path, (written, written), follow_symlinks=False)
                except OSError as error:
                    raise _unusable(path, error) from None
        try:
            replace_private(self._clock, {"boot": now.boot, "up_s": now.up_s, "day_s": now.day_s})
        except TpiedgeError as error:
            _log.warning("%s; the next master takes all records for new ones", error)

    def _last_moment(self) -> Moment | None:
        try:
            values = read_private(self._clock) or {}
        except UserError as error:
            _log.warning("%s; this master takes all records for new ones", error)
            return None
        boot, up_s, day_s = (values.get(name) for name in ("boot", "up_s", "day_s"))
        if isinstance(boot, str) and isinstance(up_s, float) and isinstance(day_s, float):
            return Moment(boot, up_s, day_s)
        return None

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

    def _continued(self, path: Path, record: AnswerRecord) -> RecordFile:
        """The file, without what was cut off in it."""
        try:
            fd = cut(path, record.size)
        except OSError as error:
            raise _unusable(path, error) from None
        return RecordFile(path, record.accepted, fd, self._log, self.later)


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
        with os.fdopen(os.open(path, os.O_RDONLY | OPEN_FLAGS), "rb") as file:
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
