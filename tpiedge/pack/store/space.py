"""How much the shard store takes and may take."""

import os
import shutil
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from tpiedge.errors import DiskFull
from tpiedge.pack.writing.target import explain_write_errors
from tpiedge.units import format_bytes

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


def explain_store_errors(folder: Path, needed: int) -> AbstractContextManager[None]:
    """Turn OSErrors of writing (at most `needed` bytes) into DiskFull, ResourceError (a failing disk) or UserError."""
    return explain_write_errors(folder, needed, _disk_full, f"the shard store {folder}")


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
        try:
            partial.write_text(f"{limit}\n")
            partial.replace(folder / _LIMIT_FILE)
        finally:
            partial.unlink(missing_ok=True)


def _disk_full(folder: Path, needed: int, free: int) -> DiskFull:
    return DiskFull(
        f"the disk of the shard store {folder} is full: {format_bytes(needed)} are needed, {format_bytes(free)} are "
        "free; free some (`tpiedge shards rm` removes packs), or give --cache a folder on another disk"
    )
