"""Writes a model as a pack: streamed, hashed as it is written, visible only when it is complete.

Blobs are written tile by tile in a fixed amount of memory; panel_writer.py writes quantised matrices. A second thread
hashes and writes with O_DIRECT, which measured 3 to 8 times as fast as writing and syncing through the page cache.
"""

import contextlib
import fcntl
import json
import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tpiedge.errors import UserError
from tpiedge.kernels.panels import Array
from tpiedge.pack.dtypes import convert, numpy_dtype
from tpiedge.pack.files import (
    DIRECT_REFUSED,
    Descriptor,
    array_bytes,
    check_free_space,
    explain_write_errors,
    lock_target,
    partial_folder,
    sync_folder,
    write_synced,
)
from tpiedge.pack.hashes import RECORD_BYTES, RangeHasher, blob_id
from tpiedge.pack.layout import BlobLayout, PanelLayout, RowLayout, Storage, storage_of
from tpiedge.pack.manifest import BLOB_FOLDER, MANIFEST_NAME, Manifest, load_manifest, manifest_text
from tpiedge.pack.panel_writer import QUALITY_NAME, Quality, Quantiser
from tpiedge.pack.source import TensorSource
from tpiedge.pack.specs import BlobSpec, MatrixSpec, ModelSpec, Precision
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
    """Writes `spec` with the numbers of `source` into the folder `out`, in less than 256 MB of memory. A Precision
    stands for `Storage.of`. With `distinct_layers` K, layer i gets the numbers of layer i % K. `progress` is called
    with (bytes written, bytes in all). Writes nothing if `out` already holds the same pack, waits for another writer
    of `out`, and leaves nothing on any error, also if the source changed meanwhile. Raises UserError, ResourceError.
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
    folder.mkdir()
    ids: dict[str | int, str] = {}
    for key, spec in _blobs(wanted.spec, wanted.distinct_layers).items():
        layout, path = wanted.storage.layout(key, spec), folder / "incoming"
        with BlobSink(path, (item.length for item in layout.ranges())) as sink:
            for part in _parts(spec, layout, source, quantiser):
                data = array_bytes(part)
                sink.write(data)
                count(len(data))
            table = sink.finish()
        ids[key] = blob_id(layout, table)
        path.rename(folder / ids[key])
        write_synced(folder / f"{ids[key]}.hashes", table)
        count(len(table))
    sync_folder(folder)
    layers = tuple(ids[layer % wanted.distinct_layers] for layer in range(len(wanted.spec.layers)))
    return replace(wanted, embedding=ids["embedding"], layers=layers, head=ids["head"])


def _blobs(spec: ModelSpec, distinct_layers: int | None) -> Mapping[str | int, BlobSpec]:
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
        for name, expected in blob.source_shapes.items():
            shape = source.shape(name)
            if shape != expected:
                raise UserError(f"tensor {name} has the shape {shape}, but config.json asks for {expected}")


_BUFFER_BYTES = 8 << 20
_DIRECT = getattr(os, "O_DIRECT", 0)  # not on macOS


class BlobSink(Descriptor):
    """Takes the bytes of one blob in order. Raises OSError from any method, some writes after the failed one.
    `lengths` are those of the blob's ranges, all multiples of 4096."""

    def __init__(self, path: Path, lengths: Iterable[int]) -> None:
        self._hasher = RangeHasher(lengths)
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        with contextlib.suppress(OSError):
            fcntl.fcntl(self._fd, fcntl.F_SETFL, _DIRECT)
        self._buffers = [memoryview(mmap.mmap(-1, _BUFFER_BYTES)) for _ in range(2)]
        self._filled = 0
        self._pending: Future[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tpiedge-pack")

    def write(self, data: memoryview) -> None:
        """Takes the next bytes. The caller may reuse `data` at once."""
        while len(data):
            part = data[: _BUFFER_BYTES - self._filled]
            self._buffers[0][self._filled : self._filled + len(part)] = part
            self._filled += len(part)
            data = data[len(part) :]
            if self._filled == _BUFFER_BYTES:
                self._flush()

    def finish(self) -> bytes:
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
            try:
                data = data[os.write(self._fd, data) :]
            except OSError as error:
                if error.errno not in DIRECT_REFUSED or not fcntl.fcntl(self._fd, fcntl.F_GETFL) & _DIRECT:
                    raise
                fcntl.fcntl(self._fd, fcntl.F_SETFL, 0)


# About four arrays of a tile live at a time. Strips of a transposed source are larger because each of their
# rows is a read of its own; tiles are smaller because the allocator then reuses their pages.
TILE_BYTES = 16 << 20
STRIP_BYTES = 40 << 20


def row_places(matrix: RowLayout, rows: range) -> Array:
    """The places of data rows in storage, in rows with padding from the start of the matrix."""
    unit, within = np.divmod(np.arange(rows.start, rows.stop), matrix.rows_per_unit)
    places: Array = unit * matrix.padded_rows + within
    return places


def _parts(spec: BlobSpec, layout: BlobLayout, source: TensorSource, quantiser: Quantiser) -> Iterator[Array]:
    if layout.vectors_nbytes:
        yield _vector_section(spec, layout, source)
    panels: list[tuple[MatrixSpec, PanelLayout]] = []
    for matrix_spec, matrix in zip(spec.matrices, layout.matrices, strict=True):
        match matrix:
            case PanelLayout():
                panels.append((matrix_spec, matrix))
            case RowLayout():
                yield from _matrix_parts(matrix_spec, matrix, source)
    if panels:  # all of them: a blob has one precision
        yield from quantiser.parts(panels, source)


def _vector_section(spec: BlobSpec, layout: BlobLayout, source: TensorSource) -> Array:
    section = np.zeros(layout.vectors_nbytes, np.uint8)
    for vector, place in zip(spec.vectors, layout.vectors, strict=True):
        values = source.read(vector.source)[0]
        stored = convert(values, source.dtype(vector.source), place.precision)
        section[place.offset : place.offset + place.nbytes] = stored.view(np.uint8)
    return section


def _matrix_parts(spec: MatrixSpec, matrix: RowLayout, source: TensorSource) -> Iterator[Array]:
    dtype = source.dtype(spec.source)
    widest = max(numpy_dtype(dtype).itemsize, matrix.itemsize)
    limit = STRIP_BYTES if spec.transposed else TILE_BYTES
    max_rows = max(1, limit // max(matrix.cols * widest, matrix.row_stride))
    for first in range(0, matrix.rows, max_rows):
        count = min(max_rows, matrix.rows - first)
        if spec.transposed:
            values = transpose(source.read(spec.source, cols=range(first, first + count)))
        else:
            values = source.read(spec.source, range(first, first + count))
        yield _padded(convert(values, dtype, matrix.precision), first, matrix)


def transpose(strip: Array) -> Array:
    """A C-contiguous transpose, by blocks that fit the cache (three times as fast as numpy's own)."""
    rows, cols = strip.shape
    turned = np.empty((cols, rows), strip.dtype)
    for col in range(0, cols, 64):
        for row in range(0, rows, 32):
            turned[col : col + 64, row : row + 32] = strip[row : row + 32, col : col + 64].T
    return turned


def _padded(values: Array, first: int, matrix: RowLayout) -> Array:
    """Appends zeros to each row up to the row stride, and to each unit that ends here up to whole pages."""
    places = row_places(matrix, range(first, first + len(values) + 1))
    if first + len(values) == matrix.rows:
        places[-1] = matrix.nbytes // matrix.row_stride
    places -= places[0]
    stored = np.zeros((places[-1], matrix.row_stride // matrix.itemsize), values.dtype)
    if stored.shape == values.shape:
        return values
    stored[places[:-1], : matrix.cols] = values
    return stored
