"""Bytes that arrive for missing ranges: compared with their hashes, written, and marked once they are durable."""

import contextlib
import hashlib
import os
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from tpiedge.pack.descriptor import Descriptor
from tpiedge.pack.hashes import HashTable
from tpiedge.pack.layout import HashedRange
from tpiedge.pack.store.presence import Presence
from tpiedge.pack.store.space import explain_store_errors


class RangeWriter(Descriptor):
    """Takes the bytes of `ranges` of one blob, one range after the other, cut anywhere.

    `damaged` collects the ranges whose bytes were not those of their hash. `write` and `take` are for one thread,
    `commit` and `close` for another if wanted, one of them at a time.
    """

    def __init__(
        self, path: Path, ranges: Sequence[HashedRange], hashes: HashTable, presence: Presence
    ) -> None:
        self.damaged: list[HashedRange] = []
        self._path = path
        self._hashes = hashes
        self._presence = presence
        self._left = deque(ranges)
        self._needed = sum(item.length for item in ranges)
        self._sha = hashlib.sha256()
        self._filled = 0
        self._verified: list[HashedRange] = []
        with explain_store_errors(path.parent, self._needed):
            self._fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)

    @property
    def complete(self) -> bool:
        """Whether all ranges have passed."""
        return not self._left

    def write(self, data: memoryview) -> None:
        """The next bytes. Raises DiskFull, UserError; ValueError for more than the ranges take."""
        while len(data):
            if not self._left:
                raise ValueError("more bytes than the ranges have")
            item = self._left[0]
            part = data[: item.length - self._filled]
            self._put(item, part)
            data = data[len(part) :]

    def take(self) -> list[HashedRange]:
        """Verified ranges to be committed."""
        taken, self._verified = self._verified, []
        return taken

    def commit(self, verified: Sequence[HashedRange]) -> None:
        """Make durable what `take` gave, and then mark it as present. Raises DiskFull, UserError."""
        if not verified:
            return
        with explain_store_errors(self._path.parent, self._needed):
            os.fsync(self._fd)
            self._presence.mark(verified)
        with contextlib.suppress(OSError, AttributeError):  # macOS has no fadvise
            os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def _put(self, item: HashedRange, part: memoryview) -> None:
        self._sha.update(part)
        last = self._filled + len(part) == item.length
        good = not last or self._sha.digest() == self._hashes.sha256(item.index)
        if good:
            with explain_store_errors(self._path.parent, self._needed):
                _write_fully(self._fd, item.offset + self._filled, part)
        self._filled += len(part)
        if last:
            (self._verified if good else self.damaged).append(item)
            self._left.popleft()
            self._sha, self._filled = hashlib.sha256(), 0


def _write_fully(fd: int, offset: int, data: memoryview) -> None:
    while len(data):
        count = os.pwrite(fd, data, offset)
        data, offset = data[count:], offset + count
