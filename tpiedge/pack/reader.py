"""Opens a pack on disk, finds a share's ranges, and checks bytes."""

import contextlib
import fcntl
import os
import shutil
import stat
import weakref
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path

from tpiedge.errors import IntegrityError, ProtocolError, UserError
from tpiedge.pack.files import OpenFile, try_flock
from tpiedge.pack.hashes import HashTable
from tpiedge.pack.layout import AXES, BlobLayout, HashedRange, share_of_matrix
from tpiedge.pack.manifest import BLOB_FOLDER, MANIFEST_NAME, load_manifest, manifest_bytes, pack_id
from tpiedge.pack.share import Axis, NodeShare, Share
from tpiedge.pack.specs import JSON, BlobKey, Precision
from tpiedge.wire.fields import ShareRanges


class Pack:
    """A pack on disk, which never changes. A blob's key is the layer's number, "embedding" or "head"."""

    def __init__(self, path: Path) -> None:
        """Reads only the manifest. Raises UserError."""
        manifest = load_manifest(path)
        self.path = path
        self.spec = manifest.spec
        self.config = manifest.spec.config
        self.storage = manifest.storage
        self.num_layers = len(manifest.blobs.layers)
        #: Later layers repeat the ones before.
        self.distinct_layers = manifest.distinct_layers
        self.keys = tuple(self.spec.blobs)
        ids = manifest.blobs.embedding, *manifest.blobs.layers, manifest.blobs.head
        self._ids = dict(zip(self.keys, ids, strict=True))
        self._layouts: dict[BlobKey, BlobLayout] = {}

    @staticmethod
    def open(path: Path) -> "Pack":
        """Opens a pack and checks the sizes of its blobs. Raises UserError."""
        pack = Pack(path)
        stored: dict[str, Mapping[str, JSON]] = {}
        for key in pack.keys:
            described = pack.layout(key).descriptor()
            if stored.setdefault(pack.blob_id(key), described) != described:
                raise UserError(f"{path} gives one blob two layouts: delete the pack and pack again")
        for key in pack.unique_keys:
            blob, expected = pack.blob_path(key), pack.layout(key).nbytes
            try:
                state = blob.stat()
            except OSError:
                raise UserError(f"the pack lacks {blob}: delete the pack and pack again") from None
            if not stat.S_ISREG(state.st_mode):
                raise UserError(f"{blob} is not a regular file: delete the pack and pack again")
            if state.st_size != expected:
                raise UserError(
                    f"{blob} has {state.st_size} bytes instead of {expected}: delete the pack and pack again"
                )
        return pack

    @cached_property
    def id(self) -> str:
        return pack_id(manifest_bytes(self.path))

    @property
    def precision(self) -> Precision:
        return self.storage.layers

    @cached_property
    def unique_keys(self) -> tuple[BlobKey, ...]:
        """One key of each stored blob; repeated layers share a blob."""
        first: dict[str, BlobKey] = {}
        for key in self.keys:
            first.setdefault(self.blob_id(key), key)
        return tuple(first.values())

    @cached_property
    def unique_layers(self) -> tuple[int, ...]:
        return tuple(key for key in self.unique_keys if isinstance(key, int))

    @property
    def head_matrix(self) -> tuple[BlobKey, str]:
        """The key of the LM head's blob, and the name of the matrix."""
        return ("embedding", "embedding") if self.spec.tied else ("head", "head")

    @cached_property
    def whole(self) -> NodeShare:
        """All layers, and all units of each axis that the pack has: as many as in the layer that has fewest of them."""

        def units(axis: Axis) -> Share:
            blocks = (self.layout(layer).block(axis) for layer in range(self.num_layers))
            return Share(min((max(part.units for part in block) for block in blocks if block), default=0))

        axes = {axis: found for axis in AXES if (found := units(axis))}
        return NodeShare(Share(self.num_layers), axes)

    @cached_property
    def q4_nbytes(self) -> int:
        """Bytes of the layers if all of them were in q4."""
        return sum(BlobLayout.of(layer, Precision.Q4).nbytes for layer in self.spec.layers)

    @property
    def nbytes(self) -> int:
        return sum(self.layout(key).nbytes for key in self.unique_keys)

    def blob_id(self, key: BlobKey) -> str:
        if key not in self._ids:
            raise UserError(f"{self.path} has layers 0 to {self.num_layers - 1}, not {key}")
        return self._ids[key]

    def blob_path(self, key: BlobKey) -> Path:
        return self.path / BLOB_FOLDER / self.blob_id(key)

    def layout(self, key: BlobKey) -> BlobLayout:
        if key not in self._layouts:
            self.blob_id(key)  # raises for an unknown key
            self._layouts[key] = self.storage.layout(key, self.spec.blobs[key])
        return self._layouts[key]

    def hashes(self, key: BlobKey) -> HashTable:
        """Reads a blob's table of hashes. Raises UserError, ReadFault, IntegrityError."""
        path = self.blob_path(key).with_suffix(".hashes")
        return HashTable.load(path, self.layout(key), self.blob_id(key))

    def share_of(self, ranges: ShareRanges) -> NodeShare:
        """Reads a share. Raises ProtocolError unless it has all layers, and only units that the pack has."""
        start, stop = ranges.layers
        if (start, stop) != (0, self.num_layers):
            raise ProtocolError(f"the plan has layers [{start}, {stop}), a node has all {self.num_layers}")
        known, given = {str(axis): len(units) for axis, units in self.whole.axes.items()}, dict(ranges.axes)
        for axis, (start, stop) in given.items():
            if stop > (most := known.get(axis, 0)):
                raise ProtocolError(f"the plan has units [{start}, {stop}) of {axis!r:.40}, the model {most}")
        axes = {axis: Share(*given.get(axis, (0, 0))) for axis in self.whole.axes}
        return NodeShare(self.whole.layers, axes)

    def share_ranges(self, layer: int, share: NodeShare) -> list[HashedRange]:
        """Returns the ranges of a layer that a node of `share` needs."""
        layout = self.layout(layer)
        found = [*layout.vector_ranges()]
        for part in layout.parts:
            units = share_of_matrix(part, share, self.whole)
            found.extend(part.ranges(units.start, units.stop))
        return found

    def share_bytes(self, layer: int, share: NodeShare) -> int:
        return sum(item.length for item in self.share_ranges(layer, share))


def verify_pack(pack: Pack, *, fast: bool = False) -> None:
    """Checks the hash of every range: crc32 if `fast`, else sha256. Raises IntegrityError, ReadFault, UserError."""
    for key in pack.unique_keys:
        for item, good in checked_ranges(pack, key, list(pack.layout(key).ranges()), fast):
            if not good:
                raise IntegrityError(pack.blob_path(key), item.label)


def checked_ranges(
    pack: Pack, key: BlobKey, ranges: Sequence[HashedRange], fast: bool
) -> Iterator[tuple[HashedRange, bool]]:
    """Yields (range, whether its hash is right). Raises ReadFault, UserError, IntegrityError."""
    if not ranges:
        return
    hashes = pack.hashes(key)
    buffer = memoryview(bytearray(min(8 << 20, max(item.length for item in ranges))))
    with OpenFile(pack.blob_path(key)) as file:
        for item in ranges:
            yield item, hashes.matches(item.index, file.parts(item.offset, item.length, buffer), fast)


class PackHold:
    """Protects the pack at `path` from `remove_packs` until `close`, if the file system has locks. Raises UserError."""

    def __init__(self, path: Path) -> None:
        fd = os.open(path / MANIFEST_NAME, os.O_RDONLY | os.O_CLOEXEC)
        self._release = weakref.finalize(self, os.close, fd)
        # A manifest without a name was deleted before it was locked.
        if try_flock(fd, fcntl.LOCK_SH) is False or not os.fstat(fd).st_nlink:
            self.close()
            raise UserError(
                f"the pack {path} is being deleted by another tpiedge: wait for that, then try again"
            )

    def close(self) -> None:
        self._release()


def remove_packs(paths: list[Path]) -> None:
    """Deletes the packs. If one is in use, deletes none and raises UserError."""
    with contextlib.ExitStack() as stack:
        for path in paths:
            fd = os.open(path / MANIFEST_NAME, os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, fd)
            if try_flock(fd, fcntl.LOCK_EX) is False:
                raise UserError(f"a running tpiedge uses the pack {path}: end it first")
        for path in paths:
            (path / MANIFEST_NAME).unlink()  # first: without it the rest is no longer a pack
            shutil.rmtree(path)
