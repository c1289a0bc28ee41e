"""The disk beneath a comparison: how fast it reads past the page cache, and making the page cache forget."""

import mmap
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from tpiedge.memory.reader import DirectFile, DirectReader, ReadJob
from tpiedge.units import MIB

_CHUNK = 8 * MIB
_IN_FLIGHT = 4


def direct_rate(path: Path, nbytes: int) -> float | None:
    """Bytes per second of reads of 8 MiB with O_DIRECT, four at a time, from the start of `path`.

    None where the file system refuses O_DIRECT.
    """
    chunks = max(1, min(nbytes, path.stat().st_size) // _CHUNK)
    view = memoryview(mmap.mmap(-1, _IN_FLIGHT * _CHUNK))  # page-aligned
    with DirectFile(path) as file, DirectReader(_IN_FLIGHT) as reader:
        if not file.is_direct:
            return None
        started = time.perf_counter()
        jobs = [reader.submit(_job(file, index, view)) for index in range(chunks)]
        done = sum(job.result() for job in jobs)
        return done / (time.perf_counter() - started)


def _job(file: DirectFile, index: int, view: memoryview) -> ReadJob:
    start = index % _IN_FLIGHT * _CHUNK
    return ReadJob(file, index * _CHUNK, view[start : start + _CHUNK], _anything)


def _anything(_data: memoryview) -> None:
    """The bytes do not matter: only when they are there."""


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


def _files(path: Path) -> Iterator[Path]:
    return (file for file in path.rglob("*") if file.is_file()) if path.is_dir() else iter((path,))
