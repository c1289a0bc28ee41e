"""Write a model as a pack: streamed, hashed as it is written, visible only when it is complete."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tpiedge.errors import UserError
from tpiedge.pack.hashes import RECORD_BYTES, blob_id
from tpiedge.pack.layout import BlobLayout, Precision
from tpiedge.pack.manifest import BLOB_FOLDER, MANIFEST_NAME, Manifest, load_manifest, manifest_text
from tpiedge.pack.sources.source import TensorSource
from tpiedge.pack.specs import BlobSpec, ModelSpec
from tpiedge.pack.storage import Storage, storage_of
from tpiedge.pack.writing.blob_writer import write_blob
from tpiedge.pack.writing.panel_writer import Quantiser
from tpiedge.pack.writing.quality import QUALITY_NAME, quality_text
from tpiedge.pack.writing.target import (
    check_free_space,
    explain_write_errors,
    lock_target,
    partial_folder,
    sync_folder,
)
from tpiedge.progress import ProgressCallback
from tpiedge.units import counted

_SLACK_BYTES = 1 << 20  # manifest and folders


@dataclass(frozen=True)
class PackReport:
    """What `write_pack` did: `nbytes` of blobs at `path`, `reused` if they were there already."""

    path: Path
    nbytes: int
    reused: bool


def pack_bytes(spec: ModelSpec, precision: Precision | Storage, distinct_layers: int | None = None) -> int:
    """Bytes of all blobs and their hashes on disk (at most: identical blobs are stored once)."""
    storage = storage_of(precision, spec)
    blobs = _blobs(spec, distinct_layers).items()
    layouts = [storage.layout(key, blob) for key, blob in blobs]
    return sum(layout.nbytes + layout.range_count * RECORD_BYTES for layout in layouts)


def write_pack(
    spec: ModelSpec,
    source: TensorSource,
    precision: Precision | Storage,
    out: Path,
    distinct_layers: int | None = None,
    progress: ProgressCallback | None = None,
    lock_timeout_s: float = 3600.0,
) -> PackReport:
    """Write `spec` with the numbers of `source` into the folder `out`, in less than 256 MB of memory.

    `precision` is that of the layers, with what is usual beside it (`Storage.of`), or says all.
    With `distinct_layers` K, layer i gets the numbers of layer i % K. `progress` is called with (bytes
    written, bytes in all). Where `out` already holds the same pack, nothing is written; another writer of
    `out` is waited for. On any error nothing is left of it, also where the source changed meanwhile. Raises UserError,
    ResourceError.
    """
    out = out.absolute()
    storage = storage_of(precision, spec)
    distinct = _check_distinct(spec, storage, distinct_layers)
    _check_sources(spec, source, distinct)
    needed = pack_bytes(spec, storage, distinct) + _SLACK_BYTES
    wanted = Manifest(spec, storage, source.fingerprint, distinct, "", (), "")
    with explain_write_errors(out.parent, needed):
        out.parent.mkdir(parents=True, exist_ok=True)
        with lock_target(out, lock_timeout_s):
            if _already_there(out, wanted):
                return PackReport(out, needed - _SLACK_BYTES, reused=True)
            with partial_folder(out) as partial, Quantiser(storage.search) as quantiser:
                check_free_space(out.parent, needed)
                written = _Writer(partial, source, quantiser, progress or _silent, needed - _SLACK_BYTES)
                manifest = written.model(wanted)
                _check_unchanged(source, wanted.source)
                if storage.layers.quantised:
                    _write_synced(partial / QUALITY_NAME, quality_text(quantiser.quality))
                _write_synced(partial / MANIFEST_NAME, manifest_text(manifest))
            return PackReport(out, written.done, reused=False)


class _Writer:
    """Writes blobs into a partial folder and counts the bytes."""

    def __init__(
        self, folder: Path, source: TensorSource, quantiser: Quantiser, progress: ProgressCallback, total: int
    ) -> None:
        self._blobs = folder / BLOB_FOLDER
        self._source = source
        self._quantiser = quantiser
        self._progress = progress
        self._total = total
        self.done = 0

    def model(self, wanted: Manifest) -> Manifest:
        """Write every blob and return the manifest with their ids."""
        self._blobs.mkdir()
        distinct = wanted.distinct_layers
        blobs = _blobs(wanted.spec, distinct).items()
        ids = {key: self._blob(wanted.storage.layout(key, blob), blob) for key, blob in blobs}
        sync_folder(self._blobs)
        layers = tuple(ids[layer % distinct] for layer in range(len(wanted.spec.layers)))
        return Manifest(
            wanted.spec, wanted.storage, wanted.source, distinct, ids["embedding"], layers, ids["head"]
        )

    def _blob(self, layout: BlobLayout, spec: BlobSpec) -> str:
        path = self._blobs / "incoming"
        table = write_blob(path, spec, layout, self._source, self._quantiser, self._count)
        name = blob_id(layout, table)
        path.rename(self._blobs / name)
        _write_synced(self._blobs / f"{name}.hashes", table)
        self._count(len(table))
        return name

    def _count(self, nbytes: int) -> None:
        self.done += nbytes
        self._progress(self.done, self._total)


def _write_synced(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _blobs(spec: ModelSpec, distinct_layers: int | None) -> Mapping[str | int, BlobSpec]:
    """The blobs to write, by key."""
    layers = spec.layers[:distinct_layers]
    return {"embedding": spec.embedding, **dict(enumerate(layers)), "head": spec.head}


def _already_there(out: Path, wanted: Manifest) -> bool:
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return False
    if load_manifest(out).same_request(wanted):
        return True
    raise UserError(f"{out} holds a pack of something else: delete it or choose another folder")


def _check_distinct(spec: ModelSpec, storage: Storage, distinct_layers: int | None) -> int:
    count = len(spec.layers)
    distinct = count if distinct_layers is None else distinct_layers
    if not 1 <= distinct <= count:
        raise UserError(
            f"--distinct-layers {distinct}: the model has {counted(count, 'layer')}; give a number from 1 to {count}"
        )
    layouts = [storage.layout(key, layer) for key, layer in enumerate(spec.layers)]
    for layer, layout in enumerate(layouts):
        if layout != layouts[layer % distinct]:
            raise UserError(
                f"--distinct-layers {distinct}: layer {layer} has another shape than layer "
                f"{layer % distinct}; give a number that repeats only layers of one shape"
            )
    return distinct


def _check_sources(spec: ModelSpec, source: TensorSource, distinct: int) -> None:
    for blob in _blobs(spec, distinct).values():
        for matrix in blob.matrices:
            _check_shape(source, matrix.source, matrix.source_shape)
        for vector in blob.vectors:
            _check_shape(source, vector.source, (vector.length,))


def _check_shape(source: TensorSource, name: str, expected: tuple[int, ...]) -> None:
    shape = source.shape(name)
    if shape != expected:
        raise UserError(f"tensor {name} has the shape {shape}, but config.json asks for {expected}")


def _check_unchanged(source: TensorSource, fingerprint: str) -> None:
    if source.fingerprint != fingerprint:
        raise UserError("the checkpoint was changed while it was packed: pack again when nobody writes to it")


def _silent(done: int, total: int) -> None:
    del done, total
