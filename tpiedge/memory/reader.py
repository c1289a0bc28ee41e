"""Reads from disk straight into the arena: several in flight, checked on the way in, never stale.

A file is read with O_DIRECT, which leaves the page cache alone and takes a sixth of the CPU time; where the
file system refuses it, through the page cache, whose pages are given back at once.
"""

import errno
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from tpiedge.errors import InternalError, ReadFault, UserError
from tpiedge.pack.files import DIRECT_REFUSED, open_regular
from tpiedge.pack.layout import ALIGN

_MAX_READ_BYTES = 8 << 20


@dataclass(frozen=True)
class ReadJob:
    """Fill `into` from `offset` of `file`, then run `check` on it in the same thread (it raises to refuse).

    Offset, length and address are multiples of ALIGN. `timed` is told, in the same thread, when both began and ended.
    """

    file: "DirectFile"
    offset: int
    into: memoryview
    check: Callable[[memoryview], None]
    timed: Callable[[float, float], None] | None = None


class DirectFile:
    """A file open for aligned reads, by any thread, until `close`. UserError if it cannot be opened."""

    def __init__(self, path: Path, *, direct: bool = True) -> None:
        self.path = path
        self._stack = ExitStack()
        self._buffered: int | None = None
        self._direct: int | None = None
        try:
            self._direct = self._open_direct() if direct else None
            if self._direct is None:
                self._buffered = self._open(0)
        except OSError as error:
            raise UserError(f"cannot open {path}: {error.strerror}; is the pack complete?") from None

    @property
    def is_direct(self) -> bool:
        """Whether reads bypass the page cache."""
        return self._direct is not None

    def read_into(self, offset: int, into: memoryview) -> int:
        """One read of at most `into`; returns the bytes read, 0 at the end of the file. Raises OSError."""
        direct = self._direct  # once: another thread may fall back between a check and a use
        if direct is not None:
            try:
                return os.preadv(direct, [into], offset)
            except OSError as error:
                if error.errno not in DIRECT_REFUSED:
                    raise
                self._fall_back()
        return self._read_buffered(offset, into)

    def close(self) -> None:
        self._stack.close()
        self._direct = self._buffered = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read_buffered(self, offset: int, into: memoryview) -> int:
        if self._buffered is None:
            raise OSError(errno.EBADF, "the file is closed")
        count = os.preadv(self._buffered, [into], offset)
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._buffered, offset, count, os.POSIX_FADV_DONTNEED)
        return count

    def _fall_back(self) -> None:
        # Some file systems accept the flag when opening and refuse the read. Two threads may come here at
        # once: each opens a descriptor, both are closed by `close`, either serves.
        self._buffered = self._open(0)
        self._direct = None

    def _open_direct(self) -> int | None:
        flag = getattr(os, "O_DIRECT", 0)
        if not flag:
            return None
        try:
            return self._open(flag)
        except OSError as error:
            if error.errno in DIRECT_REFUSED:
                return None
            raise

    def _open(self, flags: int) -> int:
        fd = open_regular(self.path, flags)
        self._stack.callback(os.close, fd)
        return fd


class DirectReader:
    """`threads` reading threads. Counts the bytes they read; `close` ends them."""

    def __init__(self, threads: int = 4, max_read_bytes: int = _MAX_READ_BYTES) -> None:
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

    def run(self, jobs: Iterable[ReadJob], on_bytes: Callable[[int], None] | None = None) -> int:
        """Do all jobs and return the bytes read. The first failure drops the rest and is raised.

        `on_bytes` is told of each job's bytes, in order, in the calling thread.
        """
        pending: list[Future[int]] = []
        total = 0
        try:
            pending.extend(self.submit(job) for job in jobs)
            for future in pending:
                count = future.result()
                total += count
                if on_bytes:
                    on_bytes(count)
        except BaseException:
            _drop(pending)
            raise
        return total

    def close(self) -> None:
        """Drop what has not started, wait for what has, end the threads."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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


def _drop(pending: Sequence["Future[int]"]) -> None:
    """Cancel what has not started and wait for what has: nothing is written into the memory afterwards."""
    for future in pending:
        future.cancel()
    for future in pending:
        if not future.cancelled():
            future.exception()
