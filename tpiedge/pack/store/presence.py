"""Which ranges of a blob are on this disk and were verified: one bit per range, in a file beside the blob.

A bit is set only after the bytes of its range are durable, and cleared before they may change; setting and clearing
are durable themselves. So whatever the moment of a crash or of a power cut, a set bit means verified bytes. Several
processes may work on one file: every change is a read and a write under the file's lock.
"""

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tpiedge.pack.files import open_regular
from tpiedge.pack.layout import HashedRange
from tpiedge.pack.writing.target import sync_folder


class Presence:
    """The bits of the `count` ranges of one blob. A missing, short or long file means that none is there."""

    def __init__(self, path: Path, count: int) -> None:
        self.path = path
        self._size = -(-count // 8)

    def present(self, ranges: Iterable[HashedRange]) -> list[HashedRange]:
        """Those of `ranges` whose bit is set now."""
        bits = self._read()
        return [item for item in ranges if bits[item.index >> 3] >> (item.index & 7) & 1]

    @property
    def bits(self) -> int:
        """Bit i says of the range of index i that it is there now."""
        return int.from_bytes(self._read(), "little")

    def mark(self, ranges: Iterable[HashedRange]) -> None:
        """Set bits. The bytes of `ranges` must be durable. Raises OSError."""
        with self._changed() as bits:
            for item in ranges:
                bits[item.index >> 3] |= 1 << (item.index & 7)

    def clear(self, ranges: Iterable[HashedRange]) -> None:
        """Clear bits; when this returns the bytes of `ranges` may change. Raises OSError."""
        with self._changed() as bits:
            for item in ranges:
                bits[item.index >> 3] &= ~(1 << (item.index & 7))

    def remove(self) -> None:
        """Forget everything, durably. Raises OSError."""
        self.path.unlink(missing_ok=True)
        sync_folder(self.path.parent)

    def _read(self) -> bytearray:
        try:
            with open(open_regular(self.path), "rb") as file:
                return self._checked(file.read(self._size + 1))
        except OSError:
            return bytearray(self._size)

    @contextmanager
    def _changed(self) -> Iterator[bytearray]:
        new = not self.path.exists()
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            bits = self._checked(os.pread(fd, self._size + 1, 0))
            yield bits
            if os.pwrite(fd, bits, 0) != len(bits):
                raise OSError(f"short write to {self.path}")
            os.ftruncate(fd, len(bits))
            os.fsync(fd)
        finally:
            os.close(fd)
        if new:
            sync_folder(self.path.parent)

    def _checked(self, data: bytes) -> bytearray:
        return bytearray(data) if len(data) == self._size else bytearray(self._size)
