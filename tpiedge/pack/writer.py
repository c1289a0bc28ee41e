"""Write a model as a pack: streamed, hashed as it is written, visible only when it is complete."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tpiedge.errors import UserError
from tpiedge.pack.blob_writer import write_blob
from tpiedge.pack.hashes import RECORD_BYTES, blob_id
from tpiedge.pack.manifest import BLOB_FOLDER, MANIFEST_NAME, Manifest, load_manifest, manifest_text
from tpiedge.pack.panel_writer import Quantiser
from tpiedge.pack.quality import QUALITY_NAME, Quality
from tpiedge.pack.source import TensorSource
from tpiedge.pack.specs import BlobSpec, ModelSpec, Precision
from tpiedge.pack.storage import Storage, storage_of
from tpiedge.pack.target import (
    check_free_space,
    explain_write_errors,
    lock_target,
    partial_folder,
    sync_folder,
    write_synced,
)
from tpiedge.progress import ProgressCallback
from tpiedge.units import counted


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
    progress: ProgressCallback = lambda _done, _total: None,
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
    nbytes = pack_bytes(spec, storage, distinct)
    needed = nbytes + (1 << 20)  # manifest and folders
    wanted = Manifest(spec, storage, source.fingerprint, distinct, "", (), "")
    done = 0

    def count(more: int) -> None:
        nonlocal done
        done += more
        progress(done, nbytes)

    with explain_write_errors(out.parent, needed):
        out.parent.mkdir(parents=True, exist_ok=True)
        with lock_target(out, lock_timeout_s):
            if _already_there(out, wanted):
                return PackReport(out, nbytes, reused=True)
            with partial_folder(out) as partial, Quantiser(storage.search) as quantiser:
                check_free_space(out.parent, needed)
                manifest = _write_blobs(partial / BLOB_FOLDER, wanted, source, quantiser, count)
                if source.fingerprint != wanted.source:
                    raise UserError(
                        "the checkpoint was changed while it was packed: pack again when nobody writes to it"
                    )
                if storage.layers.quantised:
                    write_synced(
                        partial / QUALITY_NAME,
                        json.dumps(Quality(tuple(quantiser.quality)).to_json(), indent=1).encode(),
                    )
                write_synced(partial / MANIFEST_NAME, manifest_text(manifest))
            return PackReport(out, done, reused=False)


def _write_blobs(
    folder: Path, wanted: Manifest, source: TensorSource, quantiser: Quantiser, count: Callable[[int], None]
) -> Manifest:
    """Write every blob into `folder` and return the manifest with their ids. `count` is told of the bytes."""
    folder.mkdir()
    ids: dict[str | int, str] = {}
    for key, spec in _blobs(wanted.spec, wanted.distinct_layers).items():
        layout, path = wanted.storage.layout(key, spec), folder / "incoming"
        table = write_blob(path, spec, layout, source, quantiser, count)
        ids[key] = blob_id(layout, table)
        path.rename(folder / ids[key])
        write_synced(folder / f"{ids[key]}.hashes", table)
        count(len(table))
    sync_folder(folder)
    layers = tuple(ids[layer % wanted.distinct_layers] for layer in range(len(wanted.spec.layers)))
    return replace(wanted, embedding=ids["embedding"], layers=layers, head=ids["head"])


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
        shapes: dict[str, tuple[int, ...]] = {matrix.source: matrix.source_shape for matrix in blob.matrices}
        shapes |= {vector.source: (vector.length,) for vector in blob.vectors}
        for name, expected in shapes.items():
            shape = source.shape(name)
            if shape != expected:
                raise UserError(f"tensor {name} has the shape {shape}, but config.json asks for {expected}")
