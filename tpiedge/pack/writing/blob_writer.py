"""One blob, written tile by tile: a tensor of any size passes through a fixed amount of memory.

Here are matrices in rows; panel_writer.py has those in panels.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tpiedge.pack.dtypes import STORED, Array, convert, numpy_dtype
from tpiedge.pack.layout import BlobLayout, PanelLayout, RowLayout
from tpiedge.pack.sources.source import TensorSource
from tpiedge.pack.specs import BlobSpec, MatrixSpec
from tpiedge.pack.writing.blob_sink import BlobSink
from tpiedge.pack.writing.panel_writer import Quantiser

# About four arrays of a tile live at a time. Strips of a transposed source are larger because each of their
# rows is a read of its own; tiles are smaller because the allocator then reuses their pages.
TILE_BYTES = 16 << 20
STRIP_BYTES = 40 << 20
_TRANSPOSE_COLS, _TRANSPOSE_ROWS = 64, 32


@dataclass(frozen=True)
class Tile:
    """`units` groups of `rows` data rows, from `first_row` on, each stored as `padded_rows` rows."""

    first_row: int
    units: int
    rows: int
    padded_rows: int

    @property
    def row_count(self) -> int:
        return self.units * self.rows


def tiles(matrix: RowLayout, max_rows: int) -> Iterator[Tile]:
    """Cut a matrix into tiles of at most `max_rows` data rows, in storage order."""
    per_unit, whole_units = matrix.rows_per_unit, matrix.rows // matrix.rows_per_unit
    group = max_rows // per_unit
    for unit in range(0, whole_units if group else 0, max(group, 1)):
        yield Tile(unit * per_unit, min(group, whole_units - unit), per_unit, matrix.padded_rows)
    for unit in range(whole_units if group else 0, matrix.units):
        yield from _pieces_of_unit(matrix, unit, max_rows)


def write_blob(
    path: Path,
    spec: BlobSpec,
    layout: BlobLayout,
    source: TensorSource,
    quantiser: Quantiser,
    on_bytes: Callable[[int], None],
) -> bytes:
    """Write the blob to `path`, durably, and return its hashes. `on_bytes` is told of each step."""
    with BlobSink(path, (item.length for item in layout.ranges())) as sink:
        for part in _parts(spec, layout, source, quantiser):
            data = part.reshape(-1).view(np.uint8).data
            sink.write(data)
            on_bytes(len(data))
        return sink.finish()


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
        values = source.read_vector(vector.source)
        stored = convert(values, source.dtype(vector.source), place.precision)
        section[place.offset : place.offset + place.nbytes] = stored.view(np.uint8)
    return section


def _matrix_parts(spec: MatrixSpec, matrix: RowLayout, source: TensorSource) -> Iterator[Array]:
    dtype = source.dtype(spec.source)
    widest = max(numpy_dtype(dtype).itemsize, matrix.itemsize)
    limit = STRIP_BYTES if spec.transposed else TILE_BYTES
    max_rows = max(1, limit // max(matrix.cols * widest, matrix.row_stride))
    for tile in tiles(matrix, max_rows):
        values = _read(spec, source, tile)
        values = convert(values, dtype, matrix.precision)
        yield _pad(values, tile, matrix, numpy_dtype(STORED[matrix.precision]))


def _read(spec: MatrixSpec, source: TensorSource, tile: Tile) -> Array:
    """The tile's rows as stored: [row_count, cols]."""
    if not spec.transposed:
        return source.read_rows(spec.source, tile.first_row, tile.row_count)
    return transpose(source.read_columns(spec.source, tile.first_row, tile.row_count))


def transpose(strip: Array) -> Array:
    """A C-contiguous transpose, by blocks that fit the cache (three times as fast as numpy's own)."""
    rows, cols = strip.shape
    turned = np.empty((cols, rows), strip.dtype)
    for col in range(0, cols, _TRANSPOSE_COLS):
        for row in range(0, rows, _TRANSPOSE_ROWS):
            block = strip[row : row + _TRANSPOSE_ROWS, col : col + _TRANSPOSE_COLS]
            turned[col : col + _TRANSPOSE_COLS, row : row + _TRANSPOSE_ROWS] = block.T
    return turned


def _pad(values: Array, tile: Tile, matrix: RowLayout, dtype: "np.dtype[np.generic]") -> Array:
    """Zeros after each row up to the row stride and after each unit's rows up to `padded_rows`."""
    stride = matrix.row_stride // matrix.itemsize
    if stride == matrix.cols and tile.padded_rows == tile.rows:
        return values
    padded = np.zeros((tile.units, tile.padded_rows, stride), dtype)
    padded[:, : tile.rows, : matrix.cols] = values.reshape(tile.units, tile.rows, matrix.cols)
    return padded


def _pieces_of_unit(matrix: RowLayout, unit: int, max_rows: int) -> Iterator[Tile]:
    first, rows = unit * matrix.rows_per_unit, matrix.unit_rows(unit)
    for start in range(0, rows, max_rows):
        count = min(max_rows, rows - start)
        ends_unit = start + count == rows
        padding = matrix.row_count(unit, unit + 1) - rows if ends_unit else 0
        yield Tile(first + start, 1, count, count + padding)
