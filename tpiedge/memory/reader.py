"""Reads pieces from disk into the arena and checks the pieces, as jobs of a DiskQueue. O_DIRECT bypasses the page cache
and saves CPU time. Without O_DIRECT, pages are dropped from the cache at once."""

import functools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path

from tpiedge.errors import IntegrityError, InternalError
from tpiedge.memory.disk import DiskQueue
from tpiedge.memory.disk_order import DiskUse
from tpiedge.pack.files import DIRECT_REFUSED, Closable, OpenFile
from tpiedge.pack.hashes import HashTable
from tpiedge.pack.layout import ALIGN, HashedRange

_READ_BYTES = 8 << 20
Timed = Callable[[float, float, int], None]
"""Takes a read's start and end, by `time.perf_counter`, and its bytes."""


class DirectFile(OpenFile):
    """A pack's file. Any thread may read aligned parts. `is_direct` means that reads bypass the page cache."""

    _CANNOT_OPEN = "cannot open {path}: {cause}; is the pack complete?"
    _ENDS_BEFORE = "the file ends before: delete the pack and pack again"

    def __init__(self, path: Path, *, direct: bool = True) -> None:
        super().__init__(path)
        self.is_direct = direct and self.set_direct(True)

    def read_into(self, offset: int, into: memoryview) -> int:
        direct = self.is_direct  # read first: another thread may fall back meanwhile
        try:
            count = super().read_into(offset, into)
        except OSError as error:
            if error.errno not in DIRECT_REFUSED or not direct:
                raise
            # Some file systems accept the flag and refuse the read.
            self.is_direct = self.set_direct(False)
            count = super().read_into(offset, into)
        if not self.is_direct:
            self.advise("DONTNEED", offset, count)
        return count


def grouped(ranges: Iterable[HashedRange]) -> Iterator[Sequence[HashedRange]]:
    """Yields a blob's `ranges` in groups of adjacent ones, of about 8 MiB."""
    group: list[HashedRange] = []
    size = 0
    for item in ranges:
        if group and (size + item.length > _READ_BYTES or item.offset != group[0].offset + size):
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
    """Reads files in the threads of `disk` (default: a queue of its own) until `close`, which closes `disk`."""

    def __init__(self, disk: DiskQueue | None = None) -> None:
        self._disk = disk or DiskQueue()

    @property
    def used(self) -> DiskUse:
        return self._disk.used("weights")

    @property
    def bytes_read(self) -> int:
        return self.used.nbytes

    def submit(
        self,
        file: DirectFile,
        offset: int,
        into: memoryview,
        check: Callable[[memoryview], None] = lambda _: None,
        timed: Timed | None = None,
    ) -> "Future[int]":
        """Starts a read that fills `into`, then calls `check` and `timed`. Offset, length and address must be multiples
        of ALIGN. The future may raise ReadFault."""
        if offset % ALIGN or len(into) % ALIGN:  # the system's EINVAL would read as a refusal of O_DIRECT
            raise InternalError(f"read of {len(into)} bytes at {offset} of {file.path} is not aligned")

        def run() -> int:
            started = time.perf_counter()
            file.read(offset, into)
            check(into)
            if timed is not None:
                timed(started, time.perf_counter(), len(into))
            return len(into)

        return self._disk.submit("weights", len(into), run)

    def read_ranges(
        self,
        file: DirectFile,
        groups: Iterable[Sequence[HashedRange]],
        hashes: HashTable,
        into: memoryview,
        timed: Timed | None = None,
    ) -> "Iterator[Future[int]]":
        """Starts reads that fill `into`. Yields each group's future, which may raise IntegrityError."""
        filled = 0
        for ranges in groups:
            offset, end = ranges[0].offset, ranges[-1].offset + ranges[-1].length
            part = into[filled : filled + end - offset]
            check = functools.partial(_check, file.path, ranges, hashes)
            yield self.submit(file, offset, part, check, timed)
            filled += len(part)

    def close(self) -> None:
        self._disk.close()
