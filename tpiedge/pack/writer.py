"""Writes a model as a pack, in a fixed amount of memory. The pack appears when it is complete."""

import json
import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import msgspec
import numpy as np

from tpiedge.errors import UserError
from tpiedge.kernels.panels import Array
from tpiedge.pack.dtypes import NUMPY, convert
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
from tpiedge.pack.hashes import RECORD_BYTES, blob_id, record_of
from tpiedge.pack.layout import BlobLayout, RowLayout, Storage, storage_of
from tpiedge.pack.manifest import BLOB_FOLDER, MANIFEST_NAME, BlobIds, Manifest, load_manifest, manifest_text
from tpiedge.pack.panel_writer import QUALITY_NAME, Quality, Quantiser
from tpiedge.pack.source import TensorSource
from tpiedge.pack.specs import BlobKey, BlobSpec, ModelSpec, Precision
from tpiedge.progress import ProgressCallback
from tpiedge.units import counted


@dataclass(frozen=True)
class PackReport:
    path: Path
    #: The bytes of blobs and hashes; equal blobs all count, though only one is stored.
    nbytes: int
    #: Whether the pack was there before.
    reused: bool


def write_pack(
    spec: ModelSpec,
    source: TensorSource,
    precision: Precision | Storage,
    out: Path,
    distinct_layers: int | None = None,
    progress: ProgressCallback = lambda _done, _total: None,
    lock_timeout_s: float = 3600.0,
) -> PackReport:
    """Writes `spec` with the numbers of `source` into `out`. Layer i equals layer i % `distinct_layers` (None: all
    differ). Errors (UserError, ResourceError) leave no files."""
    out = out.absolute()
    storage = storage_of(precision, spec)
    distinct = _check_distinct(spec, storage, distinct_layers)
    blobs = replace(spec, layers=spec.layers[:distinct]).blobs
    _check_sources(blobs.values(), source)
    layouts = {key: storage.layout(key, blob) for key, blob in blobs.items()}
    nbytes = sum(layout.nbytes + layout.range_count * RECORD_BYTES for layout in layouts.values())
    needed = nbytes + (1 << 20)  # manifest and folders
    wanted = Manifest.of(spec, storage, source.fingerprint, distinct, BlobIds("", (), ""))
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
                ids = _write_blobs(partial / BLOB_FOLDER, layouts, source, quantiser, count)
                if source.fingerprint != wanted.source:
                    raise UserError(
                        "the checkpoint was changed while it was packed: pack again when nobody writes to it"
                    )
                if storage.layers.quantised:
                    quality = Quality(tuple(quantiser.quality.values())).to_json()
                    write_synced(partial / QUALITY_NAME, json.dumps(quality, indent=1).encode())
                layers = tuple(ids[layer % distinct] for layer in range(len(spec.layers)))
                stored = BlobIds(ids["embedding"], layers, ids["head"])
                manifest = msgspec.structs.replace(wanted, blobs=stored)
                write_synced(partial / MANIFEST_NAME, manifest_text(manifest))
            return PackReport(out, nbytes, reused=False)


def _write_blobs(
    folder: Path,
    layouts: Mapping[BlobKey, BlobLayout],
    source: TensorSource,
    quantiser: Quantiser,
    count: Callable[[int], None],
) -> Mapping[BlobKey, str]:
    folder.mkdir()
    ids: dict[BlobKey, str] = {}
    for key, layout in layouts.items():
        path = folder / "incoming"
        with BlobSink(path, (item.length for item in layout.ranges())) as sink:
            for part in _parts(layout, source, quantiser):
                data = array_bytes(part)
                sink.write(data)
                count(len(data))
            table = sink.finish()
        ids[key] = blob_id(layout, table)
        path.rename(folder / ids[key])
        write_synced(folder / f"{ids[key]}.hashes", table)
        count(len(table))
    sync_folder(folder)
    return ids


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
    layouts = [storage.layout(key, layer).descriptor() for key, layer in enumerate(spec.layers)]
    for layer, layout in enumerate(layouts):
        if layout != layouts[layer % distinct]:
            raise UserError(
                f"--distinct-layers {distinct}: layer {layer} has another shape than layer "
                f"{layer % distinct}; give a number that repeats only layers of one shape"
            )
    return distinct


def _check_sources(blobs: Iterable[BlobSpec], source: TensorSource) -> None:
    for blob in blobs:
        for name, expected in blob.source_shapes.items():
            shape = source.shape(name)
            if shape != expected:
                raise UserError(f"tensor {name} has the shape {shape}, but config.json asks for {expected}")


_BUFFER_BYTES = 8 << 20


class BlobSink(Descriptor):
    """Writes the bytes of one blob in order. `lengths`: the ranges' lengths, multiples of 4096. Methods may raise
    OSErrors of earlier writes."""

    def __init__(self, path: Path, lengths: Iterable[int]) -> None:
        self._lengths = iter(lengths)
        self._unhashed: list[memoryview] = []
        self._table = bytearray()
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        self._direct = self.set_direct(True)
        self._buffers = [memoryview(mmap.mmap(-1, _BUFFER_BYTES)) for _ in range(2)]
        self._filled = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tpiedge-pack")
        self._pending: Future[None] | None = None

    def write(self, data: memoryview) -> None:
        """Writes whole ranges. `data` must not change until `finish`. Raises ValueError for other lengths."""
        done = 0
        while done < len(data):
            length = next(self._lengths, 0)
            if not 0 < length <= len(data) - done:
                raise ValueError("more or fewer bytes than the ranges of the layout have")
            self._unhashed.append(data[done : done + length])
            done += length
        while len(data):
            part = data[: _BUFFER_BYTES - self._filled]
            self._buffers[0][self._filled : self._filled + len(part)] = part
            self._filled += len(part)
            data = data[len(part) :]
            if self._filled == _BUFFER_BYTES:
                self._flush()

    def finish(self) -> bytes:
        if next(self._lengths, 0):
            raise ValueError("fewer bytes than the layout has")
        self._flush()
        self._wait()
        os.fsync(self._fd)
        self.advise("DONTNEED")
        return bytes(self._table)

    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)
        super().close()

    def _flush(self) -> None:
        self._wait()
        data, ranges = self._buffers[0][: self._filled], self._unhashed
        self._pending = self._thread.submit(self._hash_and_write, ranges, data)
        self._buffers.reverse()
        self._filled, self._unhashed = 0, []

    def _wait(self) -> None:
        if self._pending is not None:
            self._pending.result()

    def _hash_and_write(self, ranges: Iterable[memoryview], data: memoryview) -> None:
        for content in ranges:
            self._table += record_of(content)
        while len(data):
            try:
                data = data[os.write(self._fd, data) :]
            except OSError as error:
                if error.errno not in DIRECT_REFUSED or not self._direct:
                    raise
                self._direct = self.set_direct(False)


# About four arrays of a tile live at a time. Each row of a strip of a transposed source is a read of its own, so strips
# are larger; the allocator reuses the pages of smaller tiles.
TILE_BYTES = 16 << 20
STRIP_BYTES = 40 << 20


def _parts(layout: BlobLayout, source: TensorSource, quantiser: Quantiser) -> Iterator[Array]:
    if layout.vectors_nbytes:
        yield _vector_section(layout, source)
    experts = map(layout.experts.of_expert, range(layout.experts.count)) if layout.experts else ()
    for matrix in chain(layout.matrices, *experts):
        if isinstance(matrix, RowLayout):
            yield from _matrix_parts(matrix, source)
    yield from quantiser.parts(layout, source)  # all matrices or none


def _vector_section(layout: BlobLayout, source: TensorSource) -> Array:
    section = np.zeros(layout.vectors_nbytes, np.uint8)
    for vector in layout.vectors:
        values = source.read(vector.source).reshape(-1)
        stored = convert(values, source.dtype(vector.source), vector.precision)
        section[vector.offset : vector.offset + vector.nbytes] = stored.view(np.uint8)
    return section


def _matrix_parts(matrix: RowLayout, source: TensorSource) -> Iterator[Array]:
    dtype = source.dtype(matrix.source)
    read_bytes = matrix.unit_rows(0) * matrix.cols * NUMPY[dtype].itemsize
    limit = STRIP_BYTES if matrix.transposed else TILE_BYTES
    step = max(1, limit // max(read_bytes, matrix.unit_nbytes(0)))
    for first in range(0, matrix.units, step):
        units = range(first, min(first + step, matrix.units))
        if matrix.transposed:
            values = transpose(source.read(matrix.source, cols=matrix.rows_of(units)))
        else:
            values = source.read(matrix.source, matrix.rows_of(units))
        yield _padded(convert(values, dtype, matrix.precision), units, matrix)


def transpose(strip: Array) -> Array:
    """Transposes into a C-contiguous array, faster than numpy."""
    rows, cols = strip.shape
    turned = np.empty((cols, rows), strip.dtype)
    for col in range(0, cols, 64):
        for row in range(0, rows, 32):
            turned[col : col + 64, row : row + 32] = strip[row : row + 32, col : col + 64].T
    return turned


def _padded(values: Array, units: range, matrix: RowLayout) -> Array:
    nbytes = matrix.span(units.start, units.stop)[1]
    shape = nbytes // matrix.row_stride, matrix.row_stride // matrix.itemsize
    if values.shape == shape:
        return values
    stored = np.zeros(shape, values.dtype)
    for number in range(len(units)):
        rows = values[number * matrix.rows_per_unit :][: matrix.rows_per_unit]
        stored[number * matrix.padded_rows :][: len(rows), : matrix.cols] = rows
    return stored
