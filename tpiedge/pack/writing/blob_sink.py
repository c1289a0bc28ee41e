"""A blob's file while it is written: hashed and written in a second thread, past the page cache.

O_DIRECT writes measured 3 to 8 times as fast as writing and syncing through the page cache, and leave the
cache to others; where the file system refuses them, plain writes do.
"""

import contextlib
import fcntl
import mmap
import os
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from tpiedge.pack.descriptor import Descriptor
from tpiedge.pack.files import DIRECT_REFUSED
from tpiedge.pack.hashes import RangeHasher

_BUFFER_BYTES = 8 << 20


class BlobSink(Descriptor):
    """Takes the bytes of one blob in order. Raises OSError from any method, some writes after the failed one.

    `lengths` are those of the blob's ranges, multiples of 4096 all of them.
    """

    def __init__(self, path: Path, lengths: Iterable[int]) -> None:
        self._path = path
        self._hasher = RangeHasher(lengths)
        self._fd = _create(path)
        self._buffers = [memoryview(mmap.mmap(-1, _BUFFER_BYTES)) for _ in range(2)]
        self._filled = 0
        self._pending: Future[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tpiedge-pack")

    def write(self, data: memoryview) -> None:
        """The next bytes. The caller may reuse `data` at once."""
        while len(data):
            part = data[: _BUFFER_BYTES - self._filled]
            self._buffers[0][self._filled : self._filled + len(part)] = part
            self._filled += len(part)
            data = data[len(part) :]
            if self._filled == _BUFFER_BYTES:
                self._flush()

    def finish(self) -> bytes:
        """Make everything durable and return the table of hashes."""
        self._flush()
        self._wait()
        os.fsync(self._fd)
        with contextlib.suppress(OSError, AttributeError):  # macOS has no fadvise
            os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)
        return self._hasher.table()

    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)
        super().close()

    def _flush(self) -> None:
        """Hand the filled buffer to the thread and go on with the other, which it has done with."""
        self._wait()
        self._pending = self._thread.submit(self._hash_and_write, self._buffers[0][: self._filled])
        self._buffers.reverse()
        self._filled = 0

    def _wait(self) -> None:
        if self._pending:
            self._pending.result()
            self._pending = None

    def _hash_and_write(self, data: memoryview) -> None:
        self._hasher.update(data)
        while len(data):
            data = data[self._write_some(data) :]

    def _write_some(self, data: memoryview) -> int:
        try:
            return os.write(self._fd, data)
        except OSError as error:
            if error.errno not in DIRECT_REFUSED or not _clear_direct(self._fd):
                raise
            return os.write(self._fd, data)


def _create(path: Path) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    direct = getattr(os, "O_DIRECT", 0)
    try:
        return os.open(path, flags | direct, 0o644)
    except OSError as error:
        if not direct or error.errno not in DIRECT_REFUSED:
            raise
        return os.open(path, flags, 0o644)


def _clear_direct(fd: int) -> bool:
    """Go on through the page cache. False if the file does so already."""
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    direct = getattr(os, "O_DIRECT", 0)
    if not flags & direct:
        return False
    fcntl.fcntl(fd, fcntl.F_SETFL, flags & ~direct)
    return True
