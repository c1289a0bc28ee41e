"""Reads from disk straight into the arena: several in flight, checked on the way in, never stale.

A file is read with O_DIRECT, which leaves the page cache alone and takes a sixth of the CPU time; where the
file system refuses it, through the page cache, whose pages are given back at once.
"""

import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tpiedge.errors import IntegrityError, InternalError, ReadFault, UserError
from tpiedge.pack.files import DIRECT_REFUSED, Descriptor, open_regular
from tpiedge.pack.hashes import HashTable
from tpiedge.pack.layout import ALIGN, HashedRange

_READ_BYTES = 8 << 20


class DirectFile(Descriptor):
    """A file open for aligned reads, by any thread, until `close`. UserError if it cannot be opened.

    `is_direct` says whether reads bypass the page cache.
    """

    def __init__(self, path: Path, *, direct: bool = True) -> None:
        self.path = path
        for flags in (os.O_DIRECT, 0) if direct and hasattr(os, "O_DIRECT") else (0,):
            self.is_direct = bool(flags)
            try:
                self._fd = open_regular(path, flags)
                return
            except OSError as error:
                if not flags or error.errno not in DIRECT_REFUSED:
                    raise UserError(f"cannot open {path}: {error.strerror}; is the pack complete?") from None

    def read_into(self, offset: int, into: memoryview) -> int:
        """One read of at most `into`; returns the bytes read, 0 at the end of the file. Raises OSError."""
        direct = self.is_direct  # before: another thread may fall back meanwhile
        try:
            count = os.preadv(self._fd, [into], offset)
        except OSError as error:
            if error.errno not in DIRECT_REFUSED or not direct:
                raise
            # Some file systems accept the flag when opening and refuse the read.
            fcntl.fcntl(self._fd, fcntl.F_SETFL, 0)
            self.is_direct = False
            count = os.preadv(self._fd, [into], offset)
        if not self.is_direct and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._fd, offset, count, os.POSIX_FADV_DONTNEED)
        return count


@dataclass(frozen=True)
class ReadJob:
    """Fill `into` from `offset` of `file`, then run `check` on it in the same thread (it raises to refuse).

    Offset, length and address are multiples of ALIGN. `timed` is told, in the same thread, when both began and ended.
    """

    file: DirectFile
    offset: int
    into: memoryview
    check: Callable[[memoryview], None]
    timed: Callable[[float, float], None] | None = None


@dataclass(frozen=True)
class RangeCheck:
    """Adjacent ranges of one blob that are read together; called with their bytes, it raises IntegrityError if one of
    them is damaged. `offset` counts in the blob."""

    path: Path
    ranges: Sequence[HashedRange]
    hashes: HashTable

    @property
    def offset(self) -> int:
        return self.ranges[0].offset

    @property
    def length(self) -> int:
        return self.ranges[-1].offset + self.ranges[-1].length - self.offset

    def __call__(self, data: memoryview) -> None:
        start = self.offset
        for item in self.ranges:
            at = item.offset - start
            if not self.hashes.matches(item.index, [data[at : at + item.length]], fast=True):
                raise IntegrityError(self.path, item.label)


def range_checks(path: Path, ranges: Iterable[HashedRange], hashes: HashTable) -> Iterator[RangeCheck]:
    """The adjacent `ranges` of the blob at `path` in groups of some megabytes, whole ranges only."""
    group: list[HashedRange] = []
    size = 0
    for item in ranges:
        if group and size + item.length > _READ_BYTES:
            yield RangeCheck(path, tuple(group), hashes)
            group, size = [], 0
        group.append(item)
        size += item.length
    if group:
        yield RangeCheck(path, tuple(group), hashes)


def read_jobs(file: DirectFile, checks: Iterable[RangeCheck], into: memoryview) -> Iterator[ReadJob]:
    """Jobs that fill `into` with what the adjacent `checks` cover, one each."""
    filled = 0
    for check in checks:
        length = check.length
        yield ReadJob(file, check.offset, into[filled : filled + length], check)
        filled += length


class DirectReader:
    """`threads` reading threads. Counts the bytes they read; `close` ends them."""

    def __init__(self, threads: int = 4, max_read_bytes: int = _READ_BYTES) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="tpiedge-read")
        self._max_read_bytes = max_read_bytes
        self._lock = threading.Lock()
        self._bytes_read = 0

    @property
    def bytes_read(self) -> int:
        with self._lock:
            return self._bytes_read

    def submit(self, job: ReadJob) -> "Future[int]":
        """Start a job. Its result is the bytes read; it raises ReadFault or what the job's check raises."""
        return self._pool.submit(self._run, job)

    def run(self, jobs: Iterable[ReadJob]) -> int:
        """Do all jobs and return the bytes read. The first failure drops the rest and is raised, once nothing is
        written into memory any more."""
        pending = [self.submit(job) for job in jobs]
        try:
            return sum(future.result() for future in pending)
        except BaseException:
            for future in pending:
                future.cancel()
            for future in pending:
                if not future.cancelled():
                    future.exception()
            raise

    def close(self) -> None:
        """Drop what has not started, wait for what has, end the threads."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, job: ReadJob) -> int:
        started = time.perf_counter()
        self._fill(job)
        job.check(job.into)
        if job.timed is not None:
            job.timed(started, time.perf_counter())
        return len(job.into)

    def _fill(self, job: ReadJob) -> None:
        done, length = 0, len(job.into)
        if job.offset % ALIGN or length % ALIGN:
            raise InternalError(f"read of {length} bytes at {job.offset} of {job.file.path} is not aligned")
        while done < length:
            offset, part = job.offset + done, job.into[done : done + self._max_read_bytes]
            try:
                count = job.file.read_into(offset, part)
            except OSError as error:
                raise ReadFault(job.file.path, offset, len(part), error.strerror or str(error)) from None
            if count == 0:
                cause = "the file ends before: delete the pack and pack again"
                raise ReadFault(job.file.path, offset, len(part), cause)
            done += count
            with self._lock:
                self._bytes_read += count
