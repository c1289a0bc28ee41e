"""The record of one answer on the disk.

A line is one write into the system's memory of files, and is not waited for until it is on the disk: a master that is
killed loses nothing, a power cut may lose the last half minute. What can be written no more never ends an answer: it
goes on, unrecorded, and a warning says so. Once the disk has room the whole record is written anew, under another name
until it is complete: a master that is killed meanwhile leaves none.
"""

import errno
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from tpiedge.answers.record import RecordedEvent
from tpiedge.api.records import AcceptedRequest, accepted_lines, event_line, taken_up_line
from tpiedge.rate_limited_log import RateLimitedLog
from tpiedge.wire.control import Finished, PromptScores, Token

OWNER_ONLY: Final = 0o600
OPEN_FLAGS: Final = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
PARTIAL: Final = ".partial"
"""How a record is called until it is complete, in place of its suffix."""
UNRECORDED: Final = "the answer goes on, but would not survive the master's end"

_COUNTS: Final = "that this master went on with the answer counts as if it had failed"


class RecordFile:
    """One answer's record, made by RecordFolder. For any thread. Nothing of it raises OSError."""

    def __init__(
        self,
        path: Path,
        accepted: AcceptedRequest,
        fd: int | None,
        log: RateLimitedLog,
        later: Callable[[Callable[[], None]], None],
    ) -> None:
        """`accepted`: the request; `fd`: open for appending, and from now on this object's; None where there
        is no file. `later` calls what it is given in another thread."""
        self._accepted = accepted
        self._path = path
        self._fd = fd
        #: Whether there is a file, open or not.
        self._there = fd is not None
        self._log = log
        self._later = later
        self._lock = threading.Lock()  # held while the disk is waited for
        self._doomed = False
        self._kept = False
        #: The file's size without its last line, where that is this master's that it took the answer up.
        self._untried_size: int | None = None

    @property
    def there(self) -> bool:
        """Whether all that was passed on is recorded."""
        return self._there and not self._doomed

    @property
    def lost(self) -> bool:
        """Whether it is not recorded because the disk could not take it, and `write_anew` is to be tried."""
        return not (self._there or self._doomed or self._kept)

    def add(self, choice: int, event: Token | PromptScores | Finished) -> None:
        """Adds what is about to be passed on of a choice."""
        self._write(event_line(choice, event), takes_up=False)

    def begin(self) -> None:
        """Writes the request."""
        self._write(accepted_lines(self._accepted), takes_up=False)

    def take_up(self) -> None:
        """Adds that another master asks for the rest."""
        self._write(taken_up_line(), takes_up=True)

    def finish(self) -> None:
        """Nothing more is written: the file stays, and none is open for it. Idempotent."""
        with self._lock:
            self._close()

    def write_anew(self, said: Sequence[RecordedEvent], taken_up: int, *, now_too: bool) -> None:
        """As of Record."""
        told = b"".join(event_line(*one) for one in said)
        data = accepted_lines(self._accepted) + told + taken_up_line() * taken_up
        with self._lock:
            if not self.lost:
                return
            partial = self._path.with_suffix(PARTIAL)
            try:
                fd = os.open(
                    partial, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_TRUNC | OPEN_FLAGS, OWNER_ONLY
                )
                try:
                    _write_all(fd, data)
                    partial.rename(self._path)
                except OSError:
                    os.close(fd)
                    partial.unlink()
                    raise
            except OSError as error:
                self._log.warning("cannot write %s: %s; %s", self._path, error.strerror, UNRECORDED)
                return
            self._fd, self._there = fd, True
        if now_too:
            self.take_up()

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
            self._log.warning("cannot write %s: %s; %s", self._path, why, UNRECORDED)
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
                os.close(cut(self._path, size))
            except OSError as error:
                self._log.warning("cannot shorten %s: %s; %s", self._path, error.strerror, _COUNTS)

    def _delete_now(self) -> None:
        with self._lock:
            self._delete()

    def _delete(self) -> None:
        if not self._there or self._kept:
            return
        self._close()
        self._there, self._untried_size = False, None
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


def _write_all(fd: int, data: bytes) -> None:
    """Raises OSError."""
    left = memoryview(data)
    while left:
        written = os.write(fd, left)
        if not written:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        left = left[written:]


def cut(path: Path, size: int) -> int:
    """The file, of so many bytes from now on, open for appending. Raises OSError."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | OPEN_FLAGS)
    try:
        os.ftruncate(fd, size)
    except OSError:
        os.close(fd)
        raise
    return fd
