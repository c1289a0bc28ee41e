"""How much the shard store takes and may take."""

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tpiedge.errors import DiskFull, UserError
from tpiedge.pack.target import disk_failed
from tpiedge.units import format_bytes

__all__ = [
    "PackUsage",
    "StoreUsage",
    "allocated_bytes",
    "check_room",
    "explain_store_errors",
    "read_limit",
    "write_limit",
]

_FULL = (errno.ENOSPC, errno.EDQUOT)
_LIMIT_FILE = "limit"


@dataclass(frozen=True)
class PackUsage:
    """A pack in the store: bytes on disk, bytes of the whole pack's layers, and when it was last used (epoch s)."""

    id: str
    layers: int
    precision: str
    held_bytes: int
    full_bytes: int
    used_at: float
    in_use: bool


@dataclass(frozen=True)
class StoreUsage:
    """`held_bytes` counts a blob once that several packs share, and linked originals not at all."""

    packs: tuple[PackUsage, ...]
    held_bytes: int
    limit_bytes: int | None


def allocated_bytes(path: Path) -> int:
    """Bytes of the file's own blocks on disk, holes left out; 0 for a link to another's file."""
    try:
        state = path.lstat()
    except OSError:
        return 0
    return 0 if path.is_symlink() or state.st_nlink > 1 else state.st_blocks * 512


def check_room(folder: Path, needed: int, used: int, limit: int | None) -> None:
    """Raises DiskFull unless `needed` more bytes fit on the disk and within `limit` of the store."""
    if limit is not None and used + needed > limit:
        raise DiskFull(
            f"{format_bytes(needed)} more do not fit into the shard store {folder}: {format_bytes(used)} of "
            f"{format_bytes(limit)} are taken; free some with `tpiedge shards rm`, or raise `tpiedge shards limit`"
        )
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise _disk_full(folder, needed, free)


@contextlib.contextmanager
def explain_store_errors(folder: Path, needed: int) -> Iterator[None]:
    """Turn OSErrors of writing (at most `needed` bytes) into DiskFull, ResourceError (a failing disk) or UserError."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise _disk_full(folder, needed, shutil.disk_usage(folder).free) from None
        if error.errno == errno.EIO:
            raise disk_failed(folder, error) from None
        raise UserError(f"cannot write to the shard store {folder}: {error.strerror or error}") from None


def read_limit(folder: Path) -> int | None:
    """The limit that `write_limit` left, or None."""
    try:
        text = (folder / _LIMIT_FILE).read_text()[:32].strip()
    except OSError:
        return None
    return int(text) if text.isascii() and text.isdigit() else None


def write_limit(folder: Path, limit: int | None) -> None:
    """Keep `limit` for every later run."""
    with explain_store_errors(folder, 4096):
        if limit is None:
            (folder / _LIMIT_FILE).unlink(missing_ok=True)
            return
        folder.mkdir(parents=True, exist_ok=True)
        partial = folder / f".{_LIMIT_FILE}.{os.getpid()}"
        partial.write_text(f"{limit}\n")
        partial.replace(folder / _LIMIT_FILE)


def _disk_full(folder: Path, needed: int, free: int) -> DiskFull:
    return DiskFull(
        f"the disk of the shard store {folder} is full: {format_bytes(needed)} are needed, {format_bytes(free)} are "
        "free; free some (`tpiedge shards rm` removes packs), or give --cache a folder on another disk"
    )
