"""Measures a disk's speed in a fraction of a second. No torch."""

import mmap
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tpiedge.memory.reader import DirectFile
from tpiedge.units import MIB

_CHUNK = 4 * MIB


@dataclass(frozen=True)
class DiskSpeed:
    """Speed of 4 MiB reads. Unless `is_direct`, some reads may be cached."""

    bytes_per_s: float
    is_direct: bool


def measure_disk(folder: Path, seconds: float = 0.3, nbytes: int = 64 * MIB) -> DiskSpeed:
    """Writes a file in `folder`, then reads it, for `seconds` in all. Raises OSError without space."""
    began = time.perf_counter()
    fd, name = tempfile.mkstemp(prefix=".speed-", dir=folder)
    try:
        try:
            source = DirectFile(Path(name))
        finally:
            os.unlink(name)  # before it is filled, so that it never stays
        data = os.urandom(_CHUNK)  # random: some disks and file systems compress
        # An anonymous map is aligned to pages, as direct reads require.
        with source, mmap.mmap(-1, _CHUNK) as memory, memoryview(memory) as buffer:
            written = done = 0
            while not written or (written < nbytes and time.perf_counter() < began + seconds / 3):
                written += os.write(fd, data)
                os.fsync(fd)
            started = now = time.perf_counter()
            while not done or now < began + seconds:
                done += source.read_into(done % written, buffer)
                now = time.perf_counter()
            return DiskSpeed(done / (now - started), source.is_direct)
    finally:
        os.close(fd)
