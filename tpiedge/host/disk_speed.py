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

_CHUNK = 4 * MIB


@dataclass(frozen=True)
class DiskSpeed:
    """The speed of reads of whole megabytes. Not `is_direct`: the page cache may have answered some of them."""

    bytes_per_s: float
    is_direct: bool


def measure_disk(folder: Path, seconds: float = 0.3, nbytes: int = 64 * MIB) -> DiskSpeed:
    """Write for a third of `seconds`, at most `nbytes`, then read it back for the rest, 4 MiB at a time. Only a single
    chunk that takes longer exceeds `seconds`. Raises OSError if `folder` takes not even one chunk."""
    deadline = time.perf_counter() + seconds
    with _scratch_file(folder) as (fd, source), _page_aligned(_CHUNK) as buffer:
        written = _write(fd, nbytes, time.perf_counter() + seconds / 3)
        return _read_back(source, written, buffer, deadline)


@contextlib.contextmanager
def _scratch_file(folder: Path) -> Iterator[tuple[int, DirectFile]]:
    """A descriptor to write to, and the same file to read. Its name is gone before it is filled: no trace stays."""
    fd, name = tempfile.mkstemp(prefix=".speed-", dir=folder)
    try:
        try:
            source = DirectFile(Path(name))
        finally:
            os.unlink(name)
        with source:
            yield fd, source
    finally:
        os.close(fd)


def _write(fd: int, nbytes: int, deadline: float) -> int:
    """Bytes written and synced: chunks until `nbytes` or `deadline`, at least one."""
    data = os.urandom(_CHUNK)  # some disks and file systems compress
    written = 0
    while written < max(nbytes, _CHUNK) and (not written or time.perf_counter() < deadline):
        written += os.write(fd, data)
        os.fsync(fd)
    return written


def _read_back(file: DirectFile, nbytes: int, buffer: memoryview, deadline: float) -> DiskSpeed:
    """Reads from the start again where the file ends before the time does; the first chunk counts however long it
    takes.
    """
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
