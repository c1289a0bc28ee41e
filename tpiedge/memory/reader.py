"""Reads from disk straight into the arena and checks, in several threads. O_DIRECT leaves the page cache alone and
takes a sixth of the CPU time. Without it the pages are given back at once."""

import fcntl
import functools
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from tpiedge.errors import IntegrityError, InternalError, ReadFault, UserError
from tpiedge.pack.files import DIRECT_REFUSED, Closable, Descriptor, open_regular
from tpiedge.pack.hashes import HashTable
from tpiedge.pack.layout import ALIGN, HashedRange

_READ_BYTES = 8 << 20
BytesCheck = Callable[[memoryview], None]
Timed = Callable[[float, float, int], None]
"""Takes begin, end and bytes of a read."""


class DirectFile(Descriptor):
    """A file open for aligned reads by any thread, past the page cache if `is_direct`. Raises UserError if it cannot be
    opened."""

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
        """Reads at most `into` once; returns the bytes read, 0 at the end of the file. Raises OSError."""
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


def grouped(ranges: Iterable[HashedRange]) -> Iterator[Sequence[HashedRange]]:
    """Yields the adjacent `ranges` of a blob in groups of some megabytes, whole ranges only."""
    group: list[HashedRange] = []
    size = 0
    for item in ranges:
        if group and size + item.length > _READ_BYTES:
            yield group
            group, size = [], 0
        group.append(item)
        size += item.length
    if group:
        yield group


def _check(path: Path, ranges: Sequence[HashedRange], hashes: HashTable, data: memoryview) -> None:
    for item in ranges:
        at = item.offset - ranges[0].offset
        if not hashes.matches(item.index, [data[at : at + item.length]], fast=True):
            raise IntegrityError(path, item.label)


class DirectReader(Closable):
    """`threads` reading threads, which `close` ends."""

    def __init__(self, threads: int = 4) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="tpiedge-read")
        self._lock = threading.Lock()
        self.bytes_read = 0

    def submit(
        self,
        file: DirectFile,
        offset: int,
        into: memoryview,
        check: BytesCheck = lambda _: None,
        timed: Timed | None = None,
    ) -> "Future[int]":
        """Fills `into` from `offset`, then runs `check`, then `timed`. Offset, length and address are multiples of
        ALIGN. The result is the bytes read, or ReadFault, or what `check` raises."""
        return self._pool.submit(self._run, file, offset, into, check, timed)

    def read_ranges(
        self,
        file: DirectFile,
        groups: Iterable[Sequence[HashedRange]],
        hashes: HashTable,
        into: memoryview,
        timed: Timed | None = None,
    ) -> "Iterator[Future[int]]":
        """Fills `into`, with one read per group of adjacent ranges. A damaged range raises IntegrityError."""
        filled = 0
        for ranges in groups:
            offset, end = ranges[0].offset, ranges[-1].offset + ranges[-1].length
            part = into[filled : filled + end - offset]
            check = functools.partial(_check, file.path, ranges, hashes)
            yield self.submit(file, offset, part, check, timed)
            filled += len(part)

    def close(self) -> None:
        """Drops jobs that have not started and waits for the others."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _run(
        self, file: DirectFile, offset: int, into: memoryview, check: BytesCheck, timed: Timed | None
    ) -> int:
        started = time.perf_counter()
        self._fill(file, offset, into)
        check(into)
        if timed is not None:
            timed(started, time.perf_counter(), len(into))
        return len(into)

    def _fill(self, file: DirectFile, start: int, into: memoryview) -> None:
        done, length = 0, len(into)
        if start % ALIGN or length % ALIGN:
            raise InternalError(f"read of {length} bytes at {start} of {file.path} is not aligned")
        while done < length:
            offset, part = start + done, into[done : done + _READ_BYTES]
            try:
                count = file.read_into(offset, part)
            except OSError as error:
                raise ReadFault(file.path, offset, len(part), error.strerror or str(error)) from None
            if count == 0:
                cause = "the file ends before: delete the pack and pack again"
                raise ReadFault(file.path, offset, len(part), cause)
            done += count
            with self._lock:
                self.bytes_read += count
