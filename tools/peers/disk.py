"""The disk beneath a comparison: how fast it reads past the page cache, and making the page cache forget."""

import mmap
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from tpiedge.host.device import available_memory_bytes
from tpiedge.memory.disk import DiskQueue
from tpiedge.memory.reader import DirectFile, DirectReader
from tpiedge.units import MIB

_CHUNK = 8 * MIB
_IN_FLIGHT = 4


def direct_rate(path: Path, nbytes: int) -> float | None:
    """Bytes per second of reads of 8 MiB with O_DIRECT, four at a time, from the start of `path`.

    None where the file system refuses O_DIRECT.
    """
    chunks = max(1, min(nbytes, path.stat().st_size) // _CHUNK)
    view = memoryview(mmap.mmap(-1, _IN_FLIGHT * _CHUNK))  # page-aligned
    with DirectFile(path) as file, DirectReader(DiskQueue(_IN_FLIGHT)) as reader:
        if not file.is_direct:
            return None
        started = time.perf_counter()
        starts = [index % _IN_FLIGHT * _CHUNK for index in range(chunks)]
        jobs = [
            reader.submit(file, index * _CHUNK, view[start : start + _CHUNK])
            for index, start in enumerate(starts)
        ]
        done = sum(job.result() for job in jobs)
        return done / (time.perf_counter() - started)


def forget(paths: Iterable[Path]) -> None:
    """Drop the files, and those in the folders, from the page cache, except for what is mapped by a process.

    Pages that are there already are charged to no group: a limit would not count them.
    """
    for path in paths:
        for file in _files(path):
            fd = os.open(file, os.O_RDONLY)
            try:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)


def remember(path: Path) -> None:
    """Read the file into the page cache."""
    with open(path, "rb", buffering=0) as file:
        buffer = bytearray(_CHUNK)
        while file.readinto(buffer):
            pass


def fit_together(*paths: Path) -> bool:
    """Whether all files, and those in the folders, fit into free memory at once, with a fifth of them to spare."""
    nbytes = sum(file.stat().st_size for path in paths for file in _files(path))
    return 1.2 * nbytes < available_memory_bytes()


def _files(path: Path) -> Iterator[Path]:
    return (file for file in path.rglob("*") if file.is_file()) if path.is_dir() else iter((path,))
