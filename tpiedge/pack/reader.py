"""A pack on disk, opened: layouts, ranges of a share, and the check of its bytes."""

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Literal, TypeAlias

from tpiedge.errors import IntegrityError, UserError
from tpiedge.pack.files import open_regular, read_parts
from tpiedge.pack.hashes import HashTable
from tpiedge.pack.layout import BlobLayout, HashedRange, Precision, group_size, share_bytes, share_of_matrix
from tpiedge.pack.manifest import BLOB_FOLDER, Manifest, load_manifest
from tpiedge.pack.share import NodeShare
from tpiedge.pack.specs import JSON, BlobSpec, ModelSpec
from tpiedge.pack.storage import Storage

BlobKey: TypeAlias = int | Literal["embedding", "head"]

_CHUNK = 8 << 20


class Pack:
    """An immutable pack. A blob's key is the layer's number, "embedding" or "head".

    Opening it reads the manifest only and looks at the sizes of the blobs.
    """

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path = path
        self._manifest = manifest
        self._layouts: dict[BlobKey, BlobLayout] = {}

    @staticmethod
    def open(path: Path) -> "Pack":
        """Raises UserError if `path` is not a complete, well-formed pack."""
        pack = Pack(path, load_manifest(path))
        stored: dict[str, BlobLayout] = {}
        for key in pack.keys:
            if stored.setdefault(pack.blob_id(key), pack.layout(key)) != pack.layout(key):
                raise UserError(f"{path} gives one blob two layouts: delete the pack and pack again")
        for key in pack.unique_keys:
            pack._check_size(key)
        return pack

    @property
    def precision(self) -> Precision:
        """The precision of the layers; `layout(key).precision` is that of a blob."""
        return self._manifest.storage.layers

    @property
    def storage(self) -> Storage:
        return self._manifest.storage

    @property
    def spec(self) -> ModelSpec:
        return self._manifest.spec

    @property
    def config(self) -> Mapping[str, JSON]:
        """What the writer was given as ModelSpec.config."""
        return self._manifest.spec.config

    @property
    def num_layers(self) -> int:
        return len(self._manifest.layers)

    @property
    def keys(self) -> tuple[BlobKey, ...]:
        """Every blob's key, in the order of use."""
        return ("embedding", *range(self.num_layers), "head")

    @cached_property
    def unique_keys(self) -> tuple[BlobKey, ...]:
        """One key per blob that is stored: repeated layers count once."""
        first: dict[str, BlobKey] = {}
        for key in self.keys:
            first.setdefault(self.blob_id(key), key)
        return tuple(first.values())

    @property
    def head_matrix(self) -> tuple[BlobKey, str]:
        """The blob and the name of the LM head's matrix: the embedding's where the model ties them."""
        return ("embedding", "embedding") if self.spec.tied else ("head", "head")

    @property
    def nbytes(self) -> int:
        """Bytes of the stored blobs."""
        return sum(self.layout(key).nbytes for key in self.unique_keys)

    def blob_spec(self, key: BlobKey) -> BlobSpec:
        if isinstance(key, int):
            return self.spec.layers[self._layer(key)]
        return self.spec.embedding if key == "embedding" else self.spec.head

    def blob_id(self, key: BlobKey) -> str:
        if isinstance(key, int):
            return self._manifest.layers[self._layer(key)]
        return self._manifest.embedding if key == "embedding" else self._manifest.head

    def blob_path(self, key: BlobKey) -> Path:
        return self.path / BLOB_FOLDER / self.blob_id(key)

    def layout(self, key: BlobKey) -> BlobLayout:
        if key not in self._layouts:
            self._layouts[key] = self.storage.layout(key, self.blob_spec(key))
        return self._layouts[key]

    def hashes(self, key: BlobKey) -> HashTable:
        """Raises IntegrityError if the table on disk is not the one of the blob's id."""
        blob = self.blob_id(key)
        return HashTable.load(self.path / BLOB_FOLDER / f"{blob}.hashes", self.layout(key), blob)

    def group_size(self, layer: int) -> int:
        """Query heads per KV head."""
        return group_size(self.layout(layer))

    def share_ranges(self, layer: int, share: NodeShare) -> Iterator[HashedRange]:
        """What a node of `share` needs of a layer: vectors and its units of each matrix, in storage order."""
        layout = self.layout(layer)
        yield from layout.vector_ranges()
        for matrix in layout.matrices:
            units = share_of_matrix(matrix.name, share, self.group_size(layer))
            yield from matrix.ranges(units.start, units.stop)

    def share_bytes(self, layer: int, share: NodeShare) -> int:
        """Bytes of a layer that a node of `share` holds."""
        return share_bytes(self.layout(layer), share, self.group_size(layer))

    def _layer(self, key: int) -> int:
        if not 0 <= key < self.num_layers:
            raise UserError(f"{self.path} has layers 0 to {self.num_layers - 1}, not {key}")
        return key

    def _check_size(self, key: BlobKey) -> None:
        path, expected = self.blob_path(key), self.layout(key).nbytes
        try:
            state = path.stat()
        except OSError:
            raise UserError(f"the pack lacks {path}: delete the pack and pack again") from None
        if not stat.S_ISREG(state.st_mode):
            raise UserError(f"{path} is not a regular file: delete the pack and pack again")
        if state.st_size != expected:
            raise UserError(
                f"{path} has {state.st_size} bytes instead of {expected}: delete the pack and pack again"
            )


def verify_pack(
    pack: Pack,
    share: NodeShare | None = None,
    *,
    fast: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """Compare every range (or those of the layers for `share`) with its hash: crc32 if `fast`, else sha256.

    Returns the bytes read; `progress` is called with (bytes read, bytes in all). Raises IntegrityError, which
    names the blob, the matrix and the unit, or ReadFault.
    """
    work = [(key, list(_ranges(pack, key, share))) for key in pack.unique_keys]
    total = sum(item.length for _, ranges in work for item in ranges)
    done = 0
    for key, ranges in work:
        for count in _verify_ranges(pack, key, ranges, fast):
            done += count
            if progress:
                progress(done, total)
    return done


def check_range(path: Path, item: HashedRange, hashes: HashTable, data: memoryview) -> None:
    """Raises IntegrityError unless `data`, all of range `item` of the blob at `path`, has its crc32."""
    if not hashes.matches(item.index, [data], fast=True):
        raise IntegrityError(path, item.label)


def _ranges(pack: Pack, key: BlobKey, share: NodeShare | None) -> Iterable[HashedRange]:
    if share is None:
        return pack.layout(key).ranges()
    return pack.share_ranges(key, share) if isinstance(key, int) else ()


def _verify_ranges(pack: Pack, key: BlobKey, ranges: list[HashedRange], fast: bool) -> Iterator[int]:
    if not ranges:
        return
    path, hashes = pack.blob_path(key), pack.hashes(key)
    try:
        fd = open_regular(path)
    except OSError as error:
        raise UserError(f"cannot open {path}: {error.strerror}") from None
    buffer = memoryview(bytearray(min(_CHUNK, max(item.length for item in ranges))))
    try:
        for item in ranges:
            parts = read_parts(fd, path, item.offset, item.length, buffer)
            if not hashes.matches(item.index, parts, fast):
                raise IntegrityError(path, item.label)
            yield item.length
    finally:
        os.close(fd)
