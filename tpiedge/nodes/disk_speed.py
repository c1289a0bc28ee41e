"""How fast a folder's disk is read, measured in a fraction of a second. No torch."""

import contextlib
import mmap
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tpiedge.memory.reader import DirectFile
from tpiedge.units import MIB

__all__ = ["DiskSpeed", "measure_disk"]

_CHUNK = 4 * MIB


@dataclass(frozen=True)
class DiskSpeed:
    """Of sequential reads of 4 MiB, one at a time. Not `is_direct`: the page cache may have answered."""

    bytes_per_s: float
    is_direct: bool


def measure_disk(folder: Path, seconds: float = 0.3, nbytes: int = 64 * MIB) -> DiskSpeed | None:
    """Write for a third of `seconds`, at most `nbytes`, then read it back for the rest. None if `folder` takes not even
    one chunk. Only a single chunk that takes longer exceeds `seconds`; nothing stays on the disk."""
    deadline = time.perf_counter() + seconds
    with contextlib.suppress(OSError), tempfile.NamedTemporaryFile(dir=folder, prefix=".speed-") as file:
        written = _write(file.fileno(), nbytes, time.perf_counter() + seconds / 3)
        with DirectFile(Path(file.name)) as source, _page_aligned(_CHUNK) as buffer:
            return _read_back(source, written, buffer, deadline)
    return None


def _write(fd: int, nbytes: int, deadline: float) -> int:
    """Bytes written and synced: chunks until `nbytes` or `deadline`, at least one."""
    data = os.urandom(_CHUNK)  # some disks and file systems compress
    written = 0
    while written < max(nbytes, _CHUNK) and (not written or time.perf_counter() < deadline):
        written += os.write(fd, data)
        os.fsync(fd)
    return written


def _read_back(file: DirectFile, nbytes: int, buffer: memoryview, deadline: float) -> DiskSpeed:
    """From the start again where the file is short of the time; the first chunk counts however long it takes."""
    done = 0
    started = now = time.perf_counter()
    while not done or now < deadline:
        done += file.read_into(done % nbytes, buffer)
        now = time.perf_counter()
    return DiskSpeed(done / (now - started), file.is_direct)


@contextlib.contextmanager
def _page_aligned(nbytes: int) -> Iterator[memoryview]:
    with mmap.mmap(-1, nbytes) as memory, memoryview(memory) as view:
        yield view
