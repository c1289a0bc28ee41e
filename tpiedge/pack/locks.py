"""Locks between processes, which die with their holder: of files made for that, and of packs in use."""

import contextlib
import errno
import fcntl
import os
import shutil
import time
import weakref
from collections.abc import Callable
from pathlib import Path

from tpiedge.errors import Cancelled, UserError
from tpiedge.pack.files import Descriptor
from tpiedge.pack.manifest import MANIFEST_NAME


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
            time.sleep(0.1)

    def _try(self, kind: int) -> bool:
        if self._fd < 0:
            self._fd = open_lock(self.path)
        held = _try_flock(self._fd, kind)
        if held is None:
            raise UserError(
                f"the file system of {self.path.parent} has no locks, which keep two processes apart: "
                "choose a folder on another one"
            )
        # A file without a name was removed by its holder: others lock a new one.
        if not held or not os.fstat(self._fd).st_nlink:
            self.close()
            return False
        return True


class PackHold:
    """Keeps `remove_packs` away from the pack at `path` until `close`, or until nothing refers to this object.

    Raises UserError where the pack is being deleted. On a file system without locks packs are used and deleted all the
    same.
    """

    def __init__(self, path: Path) -> None:
        fd = os.open(path / MANIFEST_NAME, os.O_RDONLY | os.O_CLOEXEC)
        self._release = weakref.finalize(self, os.close, fd)
        # A manifest without a name was deleted after it was opened and before it was locked.
        if _try_flock(fd, fcntl.LOCK_SH) is False or not os.fstat(fd).st_nlink:
            self.close()
            raise UserError(
                f"the pack {path} is being deleted by another tpiedge: wait for that, then try again"
            )

    def close(self) -> None:
        self._release()


def remove_packs(paths: list[Path]) -> None:
    """Delete all of the packs, or none: raises UserError if a process uses one."""
    with contextlib.ExitStack() as stack:
        for path in paths:
            fd = os.open(path / MANIFEST_NAME, os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, fd)
            if _try_flock(fd, fcntl.LOCK_EX) is False:
                raise UserError(f"a running tpiedge uses the pack {path}: end it first")
        for path in paths:
            (path / MANIFEST_NAME).unlink()  # first: without it the rest is no pack any more
            shutil.rmtree(path)


def open_lock(path: Path) -> int:
    """Opens the file of a lock, which is made if need be, and never another file to which a link leads. Raises
    OSError."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)


def holder_of(path: Path) -> str:
    """The process that last held the lock alone, as text; "unknown" where the file does not say."""
    try:
        text = path.read_text(errors="replace")[:20].strip()
    except OSError:
        return "unknown"
    return text if text.isdigit() else "unknown"


def _try_flock(fd: int, kind: int) -> bool | None:
    """Takes the lock without waiting: False where another process has it, None where the file system has no locks."""
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in (errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.ENOSYS, errno.EINVAL):
            return None
        raise
    return True
