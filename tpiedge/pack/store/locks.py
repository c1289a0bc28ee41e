"""Locks between processes, which die with their holder; the file says who that is."""

import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

from tpiedge.errors import Cancelled, UserError
from tpiedge.pack.descriptor import Descriptor

_LOCKLESS = frozenset({errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.ENOSYS, errno.EINVAL})
_POLL_S = 0.1


class FileLock(Descriptor):
    """The lock of the file `path`, which is made if need be. Release it with `close`; not for use by two threads."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def try_shared(self) -> bool:
        """Hold it together with others."""
        return self._try(fcntl.LOCK_SH)

    def try_alone(self) -> bool:
        """Hold it alone, and write down that it is this process."""
        if not self._try(fcntl.LOCK_EX):
            return False
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)
        return True

    def is_held(self) -> bool:
        """Whether anybody holds it, together or alone."""
        with self:
            return not self._try(fcntl.LOCK_EX)

    def wait_alone(self, timeout_s: float, what: str, stopped: Callable[[], bool] | None = None) -> None:
        """Hold it alone; UserError says who has kept it for `timeout_s`. `stopped` is asked now and then."""
        deadline = time.monotonic() + timeout_s
        while not self.try_alone():
            if stopped is not None and stopped():
                raise Cancelled(f"stopped while waiting for another process: {what}")
            if time.monotonic() >= deadline:
                who = holder_of(self.path)
                raise UserError(f"{what}: process {who} is at it; wait until it is done, or end it")
            time.sleep(_POLL_S)

    def _try(self, kind: int) -> bool:
        if self._fd < 0:
            self._fd = open_lock(self.path)
        held = try_flock(self._fd, kind)
        if held is None:
            raise UserError(
                f"the file system of {self.path.parent} has no locks, which keep two processes apart: "
                "choose a folder on another one"
            )
        if not held:
            self.close()
        return held


def open_lock(path: Path) -> int:
    """Opens the file of a lock, which is made if need be, and never another file to which a link leads. Raises
    OSError, and UserError for what is no file."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    except OSError as error:
        if error.errno == errno.ELOOP or path.is_symlink():
            raise UserError(f"{path} is a link, where tpiedge keeps a lock: delete it") from None
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise UserError(f"{path} is not a file, where tpiedge keeps a lock: move it away")
    return fd


def try_flock(fd: int, kind: int) -> bool | None:
    """Takes the lock (fcntl.LOCK_SH or LOCK_EX) of `fd` without waiting: False where another process has it, None where
    the file system has no locks. Raises OSError for anything else."""
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _LOCKLESS:
            raise
        return None
    return True


def holder_of(path: Path) -> str:
    """The process that last held the lock alone, as text; "unknown" where the file does not say."""
    try:
        text = path.read_text(errors="replace")[:20].strip()
    except OSError:
        return "unknown"
    return text if text.isdigit() else "unknown"
