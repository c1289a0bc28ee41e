"""Opens files safely, locks them between processes, and writes files and folders durably.

A folder is written as `NAME.partial-RANDOM` under the lock `.NAME.lock`. Then it is renamed. Locks end with their
process.
"""

import contextlib
import errno
import fcntl
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tpiedge.errors import Cancelled, DiskFull, ReadFault, ResourceError, UserError
from tpiedge.units import format_bytes

if TYPE_CHECKING:  # the command line reads locks without numpy
    import numpy as np

    from tpiedge.kernels.panels import Array

DIRECT_REFUSED = (errno.EINVAL, errno.EOPNOTSUPP)
"""The errors of a file system without O_DIRECT."""


class Closable:
    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Descriptor(Closable):
    """Owns the file descriptor `_fd` (negative: none). `close` is idempotent."""

    _fd = -1

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def set_direct(self, on: bool) -> bool:
        """Switches O_DIRECT on or off, if possible. Returns whether it is on."""
        with contextlib.suppress(OSError, AttributeError):  # macOS has no O_DIRECT
            fcntl.fcntl(self._fd, fcntl.F_SETFL, os.O_DIRECT if on else 0)
            return on
        return False

    def advise(self, advice: str, offset: int = 0, nbytes: int = 0) -> None:
        """Tells the system how the file will be used. `advice`: a suffix of POSIX_FADV_."""
        with contextlib.suppress(OSError, AttributeError):  # macOS has no fadvise
            os.posix_fadvise(self._fd, offset, nbytes, getattr(os, f"POSIX_FADV_{advice}"))


class OpenFile(Descriptor):
    """A regular file open for reading in parts. Raises UserError."""

    _CANNOT_OPEN = "cannot open {path}: {cause}"
    _ENDS_BEFORE = "the file ends before; write it anew"

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._fd = open_regular(path)
        except OSError as error:
            raise UserError(self._CANNOT_OPEN.format(path=path, cause=error.strerror)) from None

    def read_into(self, offset: int, into: memoryview) -> int:
        """Reads once. Returns the number of bytes, 0 at the file's end. Raises OSError."""
        return os.preadv(self._fd, [into], offset)

    def read(self, offset: int, into: memoryview) -> None:
        """Fills `into` from `offset`. Raises ReadFault."""
        done = 0
        while done < len(into):
            cause = self._ENDS_BEFORE
            try:
                count = self.read_into(offset + done, into[done:])
            except OSError as error:
                count, cause = 0, error.strerror or str(error)
            if count == 0:
                raise ReadFault(self.path, offset + done, len(into) - done, cause)
            done += count

    def parts(self, offset: int, length: int, buffer: memoryview) -> Iterator[memoryview]:
        """Yields `length` bytes in parts, all in the reused `buffer`. Raises ReadFault."""
        for done in range(0, length, len(buffer)):
            part = buffer[: min(len(buffer), length - done)]
            self.read(offset + done, part)
            yield part

    def array(self, offset: int, shape: tuple[int, ...], dtype: "np.dtype[np.generic]") -> "Array":
        import numpy as np

        values = np.empty(shape, dtype)
        self.read(offset, array_bytes(values))
        return values

    def strided(
        self, offset: int, stride: int, shape: tuple[int, int], dtype: "np.dtype[np.generic]"
    ) -> "Array":
        row_bytes = shape[1] * dtype.itemsize
        if row_bytes == stride:
            return self.array(offset, shape, dtype)
        import numpy as np

        values = np.empty(shape, dtype)
        view = array_bytes(values)
        for row in range(shape[0]):
            self.read(offset + row * stride, view[row * row_bytes : (row + 1) * row_bytes])
        return values


def open_regular(path: Path, flags: int = 0) -> int:
    """Opens a regular file for reading, without waiting. Returns its descriptor. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file")
    return fd


def array_bytes(values: "Array") -> memoryview:
    """Returns a view of a C-contiguous array's bytes."""
    return values.reshape(-1).view("uint8").data


class FileLock(Descriptor):
    """A lock on the file `path`, which is created if missing. `close` releases the lock. Only one thread may use it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def try_alone(self) -> bool:
        if not self.try_lock(fcntl.LOCK_EX):
            return False
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)
        return True

    def is_held(self) -> bool:
        with self:
            return not self.try_lock(fcntl.LOCK_EX)

    def wait_alone(self, timeout_s: float, what: str, stopped: Callable[[], bool] | None = None) -> None:
        """Waits for an exclusive lock. Raises UserError after `timeout_s`, Cancelled if `stopped()`. The errors contain
        `what`."""
        deadline = time.monotonic() + timeout_s
        while not self.try_alone():
            if stopped is not None and stopped():
                raise Cancelled(f"stopped while waiting for another process: {what}")
            if time.monotonic() >= deadline:
                who = holder_of(self.path)
                raise UserError(f"{what}: process {who} is at it; wait until it is done, or end it")
            time.sleep(0.1)

    def try_lock(self, kind: int) -> bool:
        if self._fd < 0:
            # Follows no link to another program's file, and waits for no pipe.
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            self._fd = os.open(self.path, flags, 0o600)
        held = try_flock(self._fd, kind)
        if held is None:
            raise UserError(
                f"the file system of {self.path.parent} has no locks, which keep two processes apart: "
                "choose a folder on another one"
            )
        # The holder removed the name of the file: others lock a new file.
        if not held or not os.fstat(self._fd).st_nlink:
            self.close()
            return False
        return True


def holder_of(path: Path) -> str:
    """Returns the process id of the lock's last holder, or "unknown"."""
    text = ""
    with contextlib.suppress(OSError):
        text = path.read_text(errors="replace")[:20].strip()
    return text if text.isdigit() else "unknown"


def try_flock(fd: int, kind: int) -> bool | None:
    """Takes a lock without waiting. Returns whether that succeeded, or None if the file system has no locks."""
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in (errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.ENOSYS, errno.EINVAL):
            return None
        raise
    return True


@contextlib.contextmanager
def lock_target(target: Path, timeout_s: float) -> Iterator[None]:
    path = target.parent / f".{target.name}.lock"
    with FileLock(path) as lock:
        lock.wait_alone(timeout_s, f"another process is writing {target}")
        try:
            yield
        finally:
            # Removed while locked: FileLock refuses a file that has no name.
            with contextlib.suppress(OSError):
                path.unlink()


@contextlib.contextmanager
def partial_folder(target: Path) -> Iterator[Path]:
    """Yields a new folder, then renames it to `target`. The caller must hold `target`'s lock."""
    _remove_partials(target)
    partial = target.parent / f"{target.name}.partial-{secrets.token_hex(4)}"
    try:
        partial.mkdir()
        yield partial
        sync_folder(partial)
        partial.rename(target)
        sync_folder(target.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def remove_leftovers(target: Path) -> None:
    """Removes partial folders of killed writers, unless a writer is at work."""
    with contextlib.suppress(UserError, OSError), lock_target(target, timeout_s=0.0):
        _remove_partials(target)


def _remove_partials(target: Path) -> None:
    # A user's own `NAME.partial-results` stays.
    made_here = re.compile(re.escape(target.name) + r"\.partial-[0-9a-f]{8}")
    for entry in target.parent.iterdir():
        if made_here.fullmatch(entry.name):
            shutil.rmtree(entry, ignore_errors=True)


def check_free_space(folder: Path, needed: int, name: str = "", remedy: str = "") -> None:
    """Raises DiskFull unless `needed` bytes are free. The message contains `name` and `remedy`."""
    if shutil.disk_usage(folder).free < needed:
        raise _disk_full(folder, needed, name, remedy)


@contextlib.contextmanager
def explain_write_errors(folder: Path, needed: int, name: str = "", remedy: str = "") -> Iterator[None]:
    """Turns an OSError of writing into DiskFull, ResourceError (disk failure) or UserError. Messages contain `name` and
    `remedy`."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull.of_inodes(folder) or _disk_full(folder, needed, name, remedy) from None
        if error.errno == errno.EIO:
            raise ResourceError(
                f"the disk of {folder} failed while it was written ({error.strerror}): check it, or choose a folder on "
                "another disk"
            ) from None
        raise UserError(f"cannot write to {name or folder}: {error.strerror or error}") from None


def _disk_full(folder: Path, needed: int, name: str, remedy: str) -> DiskFull:
    free = format_bytes(shutil.disk_usage(folder).free)
    return DiskFull(
        f"the disk of {name or folder} is full: {format_bytes(needed)} are needed in all, {free} are free; "
        f"{remedy or 'free some or choose a folder on another disk'}"
    )


def write_synced(path: Path, data: bytes) -> None:
    """Writes a file durably. The caller must also sync its folder."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields the path of a new file, which then durably replaces `path`."""
    partial = path.parent / f".{path.name}.{os.getpid()}"
    partial.unlink(missing_ok=True)
    try:
        yield partial
        partial.replace(path)
        sync_folder(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Makes the folder's entries survive a power cut."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system without fsync of folders
            raise
    finally:
        os.close(fd)
