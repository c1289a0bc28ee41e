"""The folder that a writer fills: no reader ever sees it half-written.

A target is written as `NAME.partial-RANDOM` beside it, under the lock `.NAME.lock`, and renamed when
complete. The lock dies with its process, so the process that holds it may remove every partial folder of that name.
"""

import contextlib
import errno
import fcntl
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tpiedge.errors import DiskFull, ResourceError, UserError
from tpiedge.pack.store.locks import open_lock
from tpiedge.units import format_bytes

_FULL = (errno.ENOSPC, errno.EDQUOT)
_POLL_S = 0.1


@contextlib.contextmanager
def lock_target(target: Path, timeout_s: float) -> Iterator[None]:
    """Hold the only right to write `target`. Raises UserError if another process keeps it for `timeout_s`."""
    path = target.parent / f".{target.name}.lock"
    fd = _locked(path, target, time.monotonic() + timeout_s)
    try:
        yield
    finally:
        # Removed while held: who waits for it finds another file under the name and tries again.
        with contextlib.suppress(OSError):
            path.unlink()
        os.close(fd)


@contextlib.contextmanager
def partial_folder(target: Path) -> Iterator[Path]:
    """A new folder that becomes `target` at the end of the block, or vanishes if the block fails.

    Needs the lock of `target`. Partial folders that dead processes left are removed first.
    """
    _remove_partials(target)
    partial = target.parent / f"{target.name}.partial-{secrets.token_hex(4)}"
    try:
        partial.mkdir()
        yield partial
        sync_folder(partial)
        partial.rename(target)
        sync_folder(target.parent)
    finally:
        if partial.exists():
            shutil.rmtree(partial, ignore_errors=True)


def remove_leftovers(target: Path) -> None:
    """Remove what a killed writer of `target` has left, unless another one is at work."""
    with contextlib.suppress(UserError, OSError), lock_target(target, timeout_s=0.0):
        _remove_partials(target)


def check_free_space(folder: Path, needed: int) -> None:
    """Raises DiskFull unless `folder`'s disk has room for `needed` bytes."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise _disk_full(folder, needed, free)


def _disk_full(folder: Path, needed: int, free: int) -> DiskFull:
    """What to raise where `folder` has no room for `needed` bytes."""
    return DiskFull(
        f"the disk of {folder} is full: {format_bytes(needed)} are needed in all, "
        f"{format_bytes(free)} are free; free some or choose a folder on another disk"
    )


@contextlib.contextmanager
def explain_write_errors(
    folder: Path, needed: int, full: Callable[[Path, int, int], DiskFull] = _disk_full, name: str = ""
) -> Iterator[None]:
    """Turn the OSErrors of writing `needed` bytes into `folder` into DiskFull, ResourceError (the disk failed) or
    UserError. `full` words the first; `name` is what the last calls the folder."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            inodes = DiskFull.of_inodes(folder)
            raise inodes or full(folder, needed, shutil.disk_usage(folder).free) from None
        if error.errno == errno.EIO:
            raise _disk_failed(folder, error) from None
        raise UserError(f"cannot write to {name or folder}: {error.strerror or error}") from None


def _disk_failed(folder: Path, error: OSError) -> ResourceError:
    """What to raise where writing into `folder` met an error of the device."""
    return ResourceError(
        f"the disk of {folder} failed while it was written ({error.strerror}): check it, or choose a folder on another "
        "disk"
    )


def sync_folder(folder: Path) -> None:
    """Make the folder's entries survive a power cut."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _remove_partials(target: Path) -> None:
    # Exactly the names that are made here: a user's own `NAME.partial-results` is not ours to remove.
    made_here = re.compile(re.escape(target.name) + r"\.partial-[0-9a-f]{8}")
    for entry in target.parent.iterdir():
        if made_here.fullmatch(entry.name):
            shutil.rmtree(entry, ignore_errors=True)


def _locked(path: Path, target: Path, deadline: float) -> int:
    while True:
        fd = open_lock(path)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(fd, path):
                kept, fd = fd, -1
                return kept
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise UserError(f"another process is writing {target}: wait until it is done") from None
            time.sleep(_POLL_S)
        finally:
            if fd >= 0:
                os.close(fd)


def _is_at(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False
