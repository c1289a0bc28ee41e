"""Uses a pack of the shard store, and writes the pack's missing ranges.

A file beside each blob has a bit per range. A bit is set after the range's bytes are verified and durable. It is
cleared, durably, before the bytes change. So even after a power cut, a set bit means verified bytes. Changes need a
lock.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeAlias

from tpiedge.errors import ProtocolError, ResourceError, UserError
from tpiedge.pack.files import (
    Closable,
    Descriptor,
    FileLock,
    explain_write_errors,
    open_regular,
    replacing,
    sync_folder,
    write_synced,
)
from tpiedge.pack.hashes import RECORD_BYTES, HashTable, blob_id
from tpiedge.pack.layout import HashedRange
from tpiedge.pack.reader import Pack, checked_ranges
from tpiedge.pack.share import NodeShare

ROOM_REMEDY = "free some (`tpiedge shards rm` removes packs), or give --cache a folder on another disk"


class Presence:
    """The bits of one blob's ranges. Without a usable file, all bits are clear."""

    def __init__(self, path: Path, count: int) -> None:
        self.path = path
        self._size = -(-count // 8)

    def present(self, ranges: Iterable[HashedRange]) -> list[HashedRange]:
        data = b""
        with contextlib.suppress(OSError), open(open_regular(self.path), "rb") as file:
            data = file.read(self._size + 1)
        bits = self._checked(data)
        return [item for item in ranges if bits[item.index >> 3] >> (item.index & 7) & 1]

    def remove(self) -> None:
        """Clears all bits, durably. Raises OSError."""
        self.path.unlink(missing_ok=True)
        sync_folder(self.path.parent)

    def mark(self, ranges: Iterable[HashedRange], *, present: bool) -> None:
        """Sets the bits of `ranges` if `present`, else clears them. Their bytes must be durable. Raises OSError."""
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


def explain_store_errors(folder: Path, needed: int = 4096) -> AbstractContextManager[None]:
    """Turns OSErrors of writing into DiskFull, ResourceError or UserError."""
    return explain_write_errors(folder, needed, f"the shard store {folder}", ROOM_REMEDY)


class RangeWriter(Descriptor):
    """Writes `ranges` of one blob, in order. `damaged` has the ranges whose hash was wrong. Calls may come from any
    thread, one at a time."""

    def __init__(
        self, path: Path, ranges: Sequence[HashedRange], hashes: HashTable, presence: Presence
    ) -> None:
        self.damaged: list[HashedRange] = []
        self._folder = path.parent
        self._hashes = hashes
        self._presence = presence
        self._left = deque(ranges)
        self._needed = sum(item.length for item in ranges)
        self._sha = hashlib.sha256()
        self._filled = 0
        self._verified: list[HashedRange] = []
        with explain_store_errors(self._folder, self._needed):
            self._fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)

    @property
    def complete(self) -> bool:
        return not self._left

    def write(self, data: memoryview) -> None:
        """Writes the next bytes. Raises DiskFull, UserError; ValueError for too many bytes."""
        while len(data):
            if not self._left:
                raise ValueError("more bytes than the ranges have")
            item = self._left[0]
            part = data[: item.length - self._filled]
            data = data[len(part) :]
            self._sha.update(part)
            offset = item.offset + self._filled
            self._filled += len(part)
            last = self._filled == item.length
            good = not last or self._sha.digest() == self._hashes.record(item.index)[0]
            with explain_store_errors(self._folder, self._needed):
                while good and len(part):
                    count = os.pwrite(self._fd, part, offset)
                    part, offset = part[count:], offset + count
            if last:
                (self._verified if good else self.damaged).append(item)
                self._left.popleft()
                self._sha, self._filled = hashlib.sha256(), 0

    def pop_verified(self) -> list[HashedRange]:
        taken, self._verified = self._verified, []
        return taken

    def commit(self, verified: Sequence[HashedRange]) -> None:
        """Makes ranges from `pop_verified` durable, then marks them. Raises DiskFull, UserError."""
        if not verified:
            return
        with explain_store_errors(self._folder, self._needed):
            os.fsync(self._fd)
            self._presence.mark(verified, present=True)
        self.advise("DONTNEED")


LayerRanges: TypeAlias = Mapping[int, Sequence[HashedRange]]
"""Ranges by layer, in storage order; the first of repeated layers stands for all."""


def ranges_nbytes(parts: LayerRanges) -> int:
    return sum(item.length for ranges in parts.values() for item in ranges)


class ShardCopy(Closable):
    """A partly filled pack of the store. The store does not evict it before `close`. Missing ranges have arbitrary
    bytes."""

    def __init__(self, pack: Pack, identity: str, in_use: FileLock) -> None:
        self.pack = pack
        self.path = pack.path
        self.id = identity
        self._in_use = in_use

    def missing_tables(self, share: NodeShare) -> list[int]:
        """Returns the layers of `share` that lack their table of hashes."""
        wanted = (layer for layer in self.pack.unique_layers if self.pack.share_ranges(layer, share))
        return [layer for layer in wanted if not self._has_table(layer)]

    def table_bytes(self, layer: int) -> int:
        return self.pack.layout(layer).range_count * RECORD_BYTES

    def adopt_table(self, layer: int, data: bytes) -> None:
        """Stores a received table of hashes. Raises ProtocolError for a false table."""
        blob = self.pack.blob_id(layer)
        if len(data) != self.table_bytes(layer) or blob_id(self.pack.layout(layer), data) != blob:
            raise ProtocolError(
                f"the table of hashes of layer {layer} is not the one of its blob {blob[:12]}"
            )
        path = self.pack.blob_path(layer).with_suffix(".hashes")
        with explain_store_errors(path.parent, len(data)), replacing(path) as new:
            write_synced(new, data)

    def missing(self, share: NodeShare) -> LayerRanges:
        found = {}
        for layer in self.pack.unique_layers:
            wanted = self.pack.share_ranges(layer, share)
            held = set(self.presence(layer).present(wanted)) if self._has_table(layer) else set()
            found[layer] = [item for item in wanted if item not in held]
        return {layer: ranges for layer, ranges in found.items() if ranges}

    def writer(self, layer: int, ranges: Sequence[HashedRange]) -> RangeWriter:
        """Opens a writer for these ranges. Raises DiskFull, UserError, IntegrityError."""
        path = self.pack.blob_path(layer)
        with explain_store_errors(path.parent, self.pack.layout(layer).nbytes):
            if path.is_symlink() or path.stat().st_nlink > 1:  # another program's file
                with replacing(path) as new:
                    shutil.copyfile(path, new)
                    with open(new, "rb") as file:
                        os.fsync(file.fileno())
        return RangeWriter(path, ranges, self.pack.hashes(layer), self.presence(layer))

    def mark_missing(self, parts: LayerRanges) -> None:
        with explain_store_errors(self.path):
            for layer, ranges in parts.items():
                self.presence(layer).mark(ranges, present=False)

    def verify(self, share: NodeShare, *, fast: bool = False) -> LayerRanges:
        """Returns the damaged ranges among the present ones of `share`. Checks crc32 if `fast`, else sha256."""
        found = {}
        for layer in self.pack.unique_layers:
            held = self.presence(layer).present(self.pack.share_ranges(layer, share))
            try:
                good = {item for item, right in checked_ranges(self.pack, layer, held, fast) if right}
            except (ResourceError, UserError):
                good = set()
            found[layer] = [item for item in held if item not in good]
        return {layer: ranges for layer, ranges in found.items() if ranges}

    def shared_with(self, other: Pack) -> Mapping[int, Path]:
        """Returns layer -> file in `other`, for the layers whose blobs `other` has, too."""
        theirs = {other.blob_id(layer): other.blob_path(layer) for layer in other.unique_layers}
        ours = {layer: self.pack.blob_id(layer) for layer in self.pack.unique_layers}
        return {layer: theirs[blob] for layer, blob in ours.items() if blob in theirs}

    def import_from(self, other: Pack) -> int:
        """Replaces incomplete blobs by links to files of `other`, a complete pack. Returns how many."""
        held, count = self.held(), 0
        for layer, path in self.shared_with(other).items():
            if len(held[layer]) < self.pack.layout(layer).range_count:
                count += self._link(layer, path.resolve())
        return count

    def held(self) -> LayerRanges:
        layers = self.pack.unique_layers
        return {layer: self.presence(layer).present(self.pack.layout(layer).ranges()) for layer in layers}

    def presence(self, layer: int) -> Presence:
        path = self.pack.blob_path(layer).with_suffix(".present")
        return Presence(path, self.pack.layout(layer).range_count)

    def close(self) -> None:
        self._in_use.close()

    def _has_table(self, layer: int) -> bool:
        with contextlib.suppress(ResourceError, UserError):
            self.pack.hashes(layer)
            return True
        return False

    def _link(self, layer: int, source: Path) -> bool:
        if source.stat().st_size != self.pack.layout(layer).nbytes:
            return False
        try:
            self.adopt_table(layer, source.with_name(source.name + ".hashes").read_bytes())
        except ProtocolError:
            return False
        path = self.pack.blob_path(layer)
        with explain_store_errors(path.parent):
            self.presence(layer).remove()
            with replacing(path) as new:
                try:
                    os.link(source, new)
                except OSError:  # another disk, or a file system without hard links
                    new.symlink_to(source)
            self.presence(layer).mark(self.pack.layout(layer).ranges(), present=True)
        return True
