"""One pack of the shard store, in use by this process."""

import contextlib
import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from tpiedge.errors import ProtocolError, ReadFault, ResourceError, UserError
from tpiedge.pack.files import open_regular, read_parts
from tpiedge.pack.hashes import RECORD_BYTES, HashTable, blob_id
from tpiedge.pack.layout import HashedRange
from tpiedge.pack.reader import Pack
from tpiedge.pack.share import NodeShare
from tpiedge.pack.store.filling import RangeWriter
from tpiedge.pack.store.holding import presence_of
from tpiedge.pack.store.locks import FileLock
from tpiedge.pack.store.presence import Presence
from tpiedge.pack.store.space import explain_store_errors
from tpiedge.pack.writing.target import sync_folder

_FETCHING = "fetching"
_CHUNK = 4 << 20


@dataclass(frozen=True)
class LayerRanges:
    """Some ranges of a layer's blob, in storage order. Repeated layers share a blob: the first of them is named."""

    layer: int
    ranges: tuple[HashedRange, ...]

    @property
    def nbytes(self) -> int:
        return sum(item.length for item in self.ranges)


class ShardCopy:
    """A partly filled pack that is not evicted before `close`. Made by `ShardStore.open`.

    `pack` is what nodes open (`pack.path`); ranges that are not there read as zeros and fail their checksums.
    """

    def __init__(self, pack: Pack, identity: str, in_use: FileLock) -> None:
        self.pack = pack
        self.id = identity
        self._in_use = in_use

    @property
    def path(self) -> Path:
        return self.pack.path

    def fetch_lock(self) -> FileLock:
        """The lock that a fetching worker holds alone, so that two workers do not fetch the same."""
        return FileLock(self.path / _FETCHING)

    def missing_tables(self, share: NodeShare) -> list[int]:
        """Layers without their table of hashes, where `share` needs something of a layer."""
        return [
            layer for layer in self._layers() if self._wanted(layer, share) and not self._has_table(layer)
        ]

    def table_bytes(self, layer: int) -> int:
        return self.pack.layout(layer).range_count * RECORD_BYTES

    def adopt_table(self, layer: int, data: bytes) -> None:
        """Keep a table of hashes that a stranger sent. ProtocolError unless the blob's id vouches for it."""
        blob = self.pack.blob_id(layer)
        if len(data) != self.table_bytes(layer) or blob_id(self.pack.layout(layer), data) != blob:
            raise ProtocolError(
                f"the table of hashes of layer {layer} is not the one of its blob {blob[:12]}"
            )
        path = self.pack.blob_path(layer)
        with explain_store_errors(path.parent, len(data)):
            _replace_durably(path.parent / f"{blob}.hashes", data)

    def missing(self, share: NodeShare) -> list[LayerRanges]:
        """What a node of `share` needs of the layers and is not here. Layers only: no embedding, no head."""
        found = []
        for layer in self._layers():
            wanted = self._wanted(layer, share)
            held = set(self.presence(layer).present(wanted)) if self._has_table(layer) else set()
            absent = tuple(item for item in wanted if item not in held)
            if absent:
                found.append(LayerRanges(layer, absent))
        return found

    def writer(self, part: LayerRanges) -> RangeWriter:
        """A writer for the bytes of `part`. Raises DiskFull, UserError, IntegrityError (no table of hashes)."""
        path = self.pack.blob_path(part.layer)
        with explain_store_errors(path.parent, self.pack.layout(part.layer).nbytes):
            _own(path)
        return RangeWriter(path, part.ranges, self.pack.hashes(part.layer), self.presence(part.layer))

    def write(self, layer: int, item: HashedRange, data: memoryview) -> bool:
        """Store one whole range durably. False, and nothing is marked, where it has not the bytes of its hash."""
        with self.writer(LayerRanges(layer, (item,))) as writer:
            writer.write(data)
            if not writer.complete:
                raise ValueError(f"{len(data)} bytes for {item.label} of {item.length}")
            writer.commit(writer.take())
            return not writer.damaged

    def mark(self, layer: int, items: Iterable[HashedRange]) -> None:
        """Say that ranges are there; their bytes must be durable and verified."""
        with explain_store_errors(self.path, 4096):
            self.presence(layer).mark(items)

    def forget(self, parts: Sequence[LayerRanges]) -> None:
        """Records that these ranges are missing."""
        with explain_store_errors(self.path, 4096):
            for part in parts:
                self.presence(part.layer).clear(part.ranges)

    def verify(self, share: NodeShare, *, fast: bool = False) -> list[LayerRanges]:
        """Ranges of `share` that should be here and do not have their hash (crc32 if `fast`, else sha256)."""
        found = []
        for layer in self._layers():
            held = self.presence(layer).present(self._wanted(layer, share))
            bad = self._bad(layer, held, fast) if held else []
            if bad:
                found.append(LayerRanges(layer, tuple(bad)))
        return found

    def import_from(self, other: Pack) -> int:
        """Link the blobs that the whole pack `other` on this computer has too; returns their number.

        Nothing is read: a range is checked when it is loaded. Other packs than this one's may be given.
        """
        count = 0
        theirs = {other.blob_id(layer): layer for layer in range(other.num_layers)}
        for layer in self._layers():
            blob = self.pack.blob_id(layer)
            if blob in theirs and not self._is_complete(layer):
                count += self._link(layer, other, theirs[blob])
        return count

    def overlaps(self, other: Pack) -> bool:
        """Whether `other` has the weights of any layer of this pack."""
        theirs = {other.blob_id(layer) for layer in range(other.num_layers)}
        return any(self.pack.blob_id(layer) in theirs for layer in self._layers())

    @property
    def held_bytes(self) -> int:
        """How much of the layers is here."""
        return sum(
            item.length
            for layer in self._layers()
            for item in self.presence(layer).present(self.pack.layout(layer).ranges())
        )

    def presence(self, layer: int) -> Presence:
        """The bits of the layer's blob."""
        return presence_of(self.pack, layer)

    def close(self) -> None:
        """Others may evict it."""
        self._in_use.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _layers(self) -> list[int]:
        return [key for key in self.pack.unique_keys if isinstance(key, int)]

    def _wanted(self, layer: int, share: NodeShare) -> list[HashedRange]:
        return list(self.pack.share_ranges(layer, share))

    def _table(self, layer: int) -> HashTable | None:
        try:
            return self.pack.hashes(layer)
        except (ResourceError, UserError):
            return None

    def _has_table(self, layer: int) -> bool:
        return self._table(layer) is not None

    def _is_complete(self, layer: int) -> bool:
        layout = self.pack.layout(layer)
        return len(self.presence(layer).present(layout.ranges())) == layout.range_count

    def _bad(self, layer: int, held: Sequence[HashedRange], fast: bool) -> list[HashedRange]:
        hashes = self._table(layer)
        if hashes is None:
            return list(held)
        path = self.pack.blob_path(layer)
        try:
            fd = open_regular(path)
        except OSError:
            return list(held)
        try:
            return _bad_ranges(fd, path, held, hashes, fast)
        finally:
            os.close(fd)

    def _link(self, layer: int, other: Pack, theirs: int) -> bool:
        source = other.blob_path(theirs).resolve()
        table = (source.parent / f"{source.name}.hashes").read_bytes()
        if blob_id(self.pack.layout(layer), table) != self.pack.blob_id(layer):
            return False
        if not source.is_file() or source.stat().st_size != self.pack.layout(layer).nbytes:
            return False
        self.adopt_table(layer, table)
        path = self.pack.blob_path(layer)
        with explain_store_errors(path.parent, 4096):
            self.presence(layer).remove()
            _link_or_refer(source, path)
            self.presence(layer).mark(self.pack.layout(layer).ranges())
        return True


def _own(path: Path) -> None:
    """Where `path` links to a file that another program owns, replaces the link by a copy: only our own files are
    changed.
    """
    if not path.is_symlink() and path.stat().st_nlink == 1:
        return
    partial = path.parent / f".{path.name}.{os.getpid()}"
    try:
        shutil.copyfile(path, partial)
        _sync_file(partial)
        partial.replace(path)
        sync_folder(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def _link_or_refer(source: Path, path: Path) -> None:
    partial = path.parent / f".{path.name}.{os.getpid()}"
    partial.unlink(missing_ok=True)
    try:
        os.link(source, partial)
    except OSError:  # another disk, or a file system without hard links
        partial.symlink_to(source)
    partial.replace(path)
    sync_folder(path.parent)


def _replace_durably(path: Path, data: bytes) -> None:
    partial = path.parent / f".{path.name}.{os.getpid()}"
    try:
        partial.write_bytes(data)
        _sync_file(partial)
        partial.replace(path)
        sync_folder(path.parent)
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def _sync_file(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _bad_ranges(
    fd: int, path: Path, ranges: Sequence[HashedRange], hashes: HashTable, fast: bool
) -> list[HashedRange]:
    """Those of `ranges` that cannot be read or do not have their hash: crc32 if `fast`, else sha256."""
    buffer = memoryview(bytearray(min(_CHUNK, max((item.length for item in ranges), default=0))))
    return [item for item in ranges if not _matches(fd, path, item, hashes, buffer, fast)]


def _matches(
    fd: int, path: Path, item: HashedRange, hashes: HashTable, buffer: memoryview, fast: bool
) -> bool:
    try:
        return hashes.matches(item.index, read_parts(fd, path, item.offset, item.length, buffer), fast)
    except ReadFault:
        return False
