"""A pack back as a safetensors checkpoint: the original names and shapes, the stored bits.

Matrices in q8 and q4 come back in f32, which holds exactly what the pack means; what quantising took is lost.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tpiedge.errors import UserError
from tpiedge.kernels.panels import PANEL, PanelShape
from tpiedge.kernels.quantise import dequantise_unit
from tpiedge.pack.dtypes import STORED, Array, SourceDtype, numpy_dtype
from tpiedge.pack.files import array_bytes, open_regular, read_exactly, read_strided
from tpiedge.pack.layout import PanelLayout, Precision, RowLayout
from tpiedge.pack.reader import BlobKey, Pack, verify_pack
from tpiedge.pack.sources.safetensors_file import (
    INDEX_NAME,
    TensorEntry,
    check_written,
    header,
    index,
    shard_names,
    split_shards,
)
from tpiedge.pack.writing.blob_writer import STRIP_BYTES, TILE_BYTES, tiles, transpose
from tpiedge.pack.writing.target import (
    check_free_space,
    explain_write_errors,
    lock_target,
    partial_folder,
)

_SHARD_BYTES = 4_000_000_000
_SLACK_BYTES = 1 << 20
_PART_BYTES = 4 << 20  # of a quantised matrix; about five arrays of a part live at a time


@dataclass(frozen=True)
class _Tensor(TensorEntry):
    """`part` names it inside its blob."""

    key: BlobKey
    part: str


def export_safetensors(
    pack: Pack, out: Path, config_json: bytes | None = None, shard_bytes: int = _SHARD_BYTES
) -> list[Path]:
    """Write the pack's tensors into the new folder `out` and return the files of tensors.

    One file model.safetensors, or shards of at most `shard_bytes` (one tensor at least) with an index.
    `config_json`, if given, becomes config.json. The pack is checked first.
    Raises UserError, DiskFull, ReadFault, IntegrityError; nothing is left then.
    """
    out = out.absolute()
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} exists already: choose a new folder")
    shards = split_shards(_tensors(pack), shard_bytes)
    needed = sum(tensor.nbytes for shard in shards for tensor in shard) + _SLACK_BYTES
    with explain_write_errors(out.parent, needed), lock_target(out, timeout_s=1.0):
        check_free_space(out.parent, needed)
        verify_pack(pack, fast=True)
        with partial_folder(out) as folder:
            by_name = dict(zip(shard_names(len(shards)), shards, strict=True))
            for name, shard in by_name.items():
                _write_shard(pack, folder / name, shard)
                check_written(folder / name, shard)
            if len(shards) > 1:
                (folder / INDEX_NAME).write_text(json.dumps(index(by_name), indent=2))
            if config_json is not None:
                (folder / "config.json").write_bytes(config_json)
        return [out / name for name in by_name]


def _tensors(pack: Pack) -> list[_Tensor]:
    """Every tensor once, in the order of use."""
    tensors: dict[str, _Tensor] = {}
    for key in pack.keys:
        spec, layout = pack.blob_spec(key), pack.layout(key)
        dtype = _exported(layout.precision)
        for m in spec.matrices:
            nbytes = m.rows * m.cols * numpy_dtype(dtype).itemsize
            tensors.setdefault(m.source, _Tensor(m.source, dtype, m.source_shape, nbytes, key, m.name))
        for v, place in zip(spec.vectors, layout.vectors, strict=True):
            stored = STORED[place.precision]
            tensors.setdefault(v.source, _Tensor(v.source, stored, (v.length,), place.nbytes, key, v.name))
    return list(tensors.values())


def _exported(precision: Precision) -> SourceDtype:
    return STORED.get(precision, "F32")


def _write_shard(pack: Pack, path: Path, tensors: list[_Tensor]) -> None:
    with path.open("wb") as file:
        file.write(header(tensors))
        for tensor in tensors:
            for part in _stored_parts(pack, tensor):
                file.write(array_bytes(part))
        file.flush()
        os.fsync(file.fileno())


def _stored_parts(pack: Pack, tensor: _Tensor) -> Iterator[Array]:
    """The tensor's numbers in the order of its original shape."""
    path = pack.blob_path(tensor.key)
    try:
        fd = open_regular(path)
    except OSError as error:
        raise UserError(f"cannot open {path}: {error.strerror}") from None
    try:
        if len(tensor.shape) == 1:
            yield _vector(pack, tensor, fd, path)
            return
        match pack.layout(tensor.key).matrix(tensor.part):
            case RowLayout() as matrix:
                yield from _matrix_parts(matrix, fd, path)
            case PanelLayout() as matrix:
                yield from dequantised_rows(matrix, fd, path)
    finally:
        os.close(fd)


def _vector(pack: Pack, tensor: _Tensor, fd: int, path: Path) -> Array:
    place = next(v for v in pack.layout(tensor.key).vectors if v.name == tensor.part)
    values = np.empty(place.nbytes, np.uint8)
    read_exactly(fd, path, place.offset, values.data)
    return values


def _matrix_parts(matrix: RowLayout, fd: int, path: Path) -> Iterator[Array]:
    dtype = numpy_dtype(STORED[matrix.precision])
    if matrix.transposed:
        step = max(1, STRIP_BYTES // (matrix.rows * matrix.itemsize))
        for first in range(0, matrix.cols, step):
            count = min(step, matrix.cols - first)
            yield transpose(_read_columns(matrix, fd, path, dtype, first, count))
        return
    step = max(1, TILE_BYTES // matrix.row_stride)
    for tile in tiles(matrix, step):
        rows = _read_rows(matrix, fd, path, dtype, tile.first_row, tile.units * tile.padded_rows)
        groups = rows.reshape(tile.units, tile.padded_rows, -1)
        yield np.ascontiguousarray(groups[:, : tile.rows, : matrix.cols])


def _read_rows(
    matrix: RowLayout, fd: int, path: Path, dtype: "np.dtype[np.generic]", first: int, count: int
) -> Array:
    """`count` stored rows, padding and all, from the data row `first` on."""
    rows = np.empty((count, matrix.row_stride // matrix.itemsize), dtype)
    read_exactly(fd, path, matrix.row_offset(first), array_bytes(rows))
    return rows


def _read_columns(
    matrix: RowLayout, fd: int, path: Path, dtype: "np.dtype[np.generic]", first: int, count: int
) -> Array:
    """Columns [first, first + count) of all data rows."""
    strip = np.empty((matrix.rows, count), dtype)
    for unit in range(matrix.units):
        row = unit * matrix.rows_per_unit
        offset = matrix.row_offset(row) + first * matrix.itemsize
        read_strided(fd, path, offset, matrix.row_stride, strip[row : row + matrix.unit_rows(unit)])
    return strip


def dequantised_rows(matrix: PanelLayout, fd: int, path: Path) -> Iterator[Array]:
    """The matrix in f32 as the checkpoint had it, a row per output, some rows at a time. Raises ReadFault."""
    row_bytes = 4 * (matrix.rows if matrix.transposed else matrix.cols)
    panels = max(1, _PART_BYTES // (PANEL * row_bytes))
    if matrix.transposed:
        for first in range(0, matrix.shape(0).panels, panels):
            units = [_panels(matrix, unit, first, panels, fd, path) for unit in range(matrix.units)]
            yield np.concatenate(units, axis=1)
        return
    for unit in range(matrix.units):
        for first in range(0, matrix.shape(unit).panels, panels):
            yield _panels(matrix, unit, first, panels, fd, path)


def _panels(matrix: PanelLayout, unit: int, first: int, count: int, fd: int, path: Path) -> Array:
    """[outputs, inputs] of up to `count` panels of a unit."""
    whole = matrix.shape(unit)
    outputs = min(count * PANEL, whole.outputs - first * PANEL)
    shape = PanelShape(whole.bits, outputs, whole.inputs)
    data = np.empty(shape.nbytes, np.uint8)
    read_exactly(fd, path, matrix.span(unit, unit + 1)[0] + first * whole.panel_nbytes, data.data)
    return dequantise_unit(data, shape)
