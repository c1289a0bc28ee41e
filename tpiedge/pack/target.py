"""The folder that a writer fills: no reader ever sees it half-written.

A target is written as `NAME.partial-RANDOM` beside it, under the lock `.NAME.lock`, and renamed when
complete. The lock dies with its process, so the process that holds it may remove every partial folder of that name.
"""

import contextlib
import errno
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from tpiedge.errors import DiskFull, ResourceError, UserError
from tpiedge.pack.locks import FileLock
from tpiedge.units import format_bytes


@contextlib.contextmanager
def lock_target(target: Path, timeout_s: float) -> Iterator[None]:
    """Hold the only right to write `target`. Raises UserError if another process keeps it for `timeout_s`."""
    path = target.parent / f".{target.name}.lock"
    with FileLock(path) as lock:
        lock.wait_alone(timeout_s, f"another process is writing {target}")
        try:
            yield
        finally:
            # Removed while held: FileLock takes no file that has lost its name.
            with contextlib.suppress(OSError):
                path.unlink()


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
        shutil.rmtree(partial, ignore_errors=True)


def remove_leftovers(target: Path) -> None:
    """Remove what a killed writer of `target` has left, unless another one is at work."""
    with contextlib.suppress(UserError, OSError), lock_target(target, timeout_s=0.0):
        _remove_partials(target)


def check_free_space(folder: Path, needed: int, name: str = "", remedy: str = "") -> None:
    """Raises DiskFull unless `folder`'s disk has room for `needed` bytes. `name` and `remedy` as below."""
    if shutil.disk_usage(folder).free < needed:
        raise _disk_full(folder, needed, name, remedy)


@contextlib.contextmanager
def explain_write_errors(folder: Path, needed: int, name: str = "", remedy: str = "") -> Iterator[None]:
    """Turn the OSErrors of writing `needed` bytes into `folder` into DiskFull, ResourceError (the disk failed) or
    UserError. `name` is what messages call the folder, `remedy` how its user makes room."""
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


def write_synced(path: Path, data: bytes) -> None:
    """Writes a file that survives a power cut, once its folder is synced."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A name for a new file, which takes the place of `path` at the end of the block, durably."""
    partial = path.parent / f".{path.name}.{os.getpid()}"
    partial.unlink(missing_ok=True)
    try:
        yield partial
        partial.replace(path)
        sync_folder(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Make the folder's entries survive a power cut."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _disk_full(folder: Path, needed: int, name: str, remedy: str) -> DiskFull:
    free = format_bytes(shutil.disk_usage(folder).free)
    return DiskFull(
        f"the disk of {name or folder} is full: {format_bytes(needed)} are needed in all, {free} are free; "
        f"{remedy or 'free some or choose a folder on another disk'}"
    )


def _remove_partials(target: Path) -> None:
    # Exactly the names that are made here: a user's own `NAME.partial-results` is not ours to remove.
    made_here = re.compile(re.escape(target.name) + r"\.partial-[0-9a-f]{8}")
    for entry in target.parent.iterdir():
        if made_here.fullmatch(entry.name):
            shutil.rmtree(entry, ignore_errors=True)
