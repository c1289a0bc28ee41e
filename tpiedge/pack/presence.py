"""Which ranges of a blob are on this disk and were verified: one bit per range, in a file beside the blob.

A bit is set only after the bytes of its range are durable, and cleared before they may change; setting and clearing
are durable themselves. So whatever the moment of a crash or of a power cut, a set bit means verified bytes. Several
processes may work on one file: every change is a read and a write under the file's lock.
"""

import fcntl
import os
from collections.abc import Iterable
from pathlib import Path

from tpiedge.pack.files import open_regular
from tpiedge.pack.layout import HashedRange
from tpiedge.pack.reader import Pack
from tpiedge.pack.target import sync_folder


class Presence:
    """The bits of the `count` ranges of one blob. A missing, short or long file means that none is there."""

    def __init__(self, path: Path, count: int) -> None:
        self.path = path
        self._size = -(-count // 8)

    @staticmethod
    def of(pack: Pack, layer: int) -> "Presence":
        """The bits of the layer's blob."""
        path = pack.blob_path(layer)
        return Presence(path.parent / f"{path.name}.present", pack.layout(layer).range_count)

    def present(self, ranges: Iterable[HashedRange]) -> list[HashedRange]:
        """Those of `ranges` whose bit is set now."""
        bits = self._read()
        return [item for item in ranges if bits[item.index >> 3] >> (item.index & 7) & 1]

    def mark(self, ranges: Iterable[HashedRange]) -> None:
        """Set bits. The bytes of `ranges` must be durable. Raises OSError."""
        self._change(ranges, present=True)

    def clear(self, ranges: Iterable[HashedRange]) -> None:
        """Clear bits; when this returns the bytes of `ranges` may change. Raises OSError."""
        self._change(ranges, present=False)

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

    def _change(self, ranges: Iterable[HashedRange], *, present: bool) -> None:
        new = not self.path.exists()
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with open(fd, "r+b", buffering=0) as file:
            fcntl.flock(fd, fcntl.LOCK_EX)
            bits = self._checked(file.read(self._size + 1))
            for item in ranges:
                bit = 1 << (item.index & 7)
                bits[item.index >> 3] = bits[item.index >> 3] & ~bit | bit * present
            if os.pwrite(fd, bits, 0) != len(bits):
                raise OSError(f"short write to {self.path}")
            file.truncate(len(bits))
            os.fsync(fd)
        if new:
            sync_folder(self.path.parent)

    def _checked(self, data: bytes) -> bytearray:
        return bytearray(data) if len(data) == self._size else bytearray(self._size)
