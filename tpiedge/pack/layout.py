"""Where each byte of a pack lies: pure arithmetic, no files.

The laws of the layout:

1. Every matrix is stored as rows in unit order. A column-parallel matrix (q, k, v, gate, up, head, embedding)
   has one row per OUTPUT feature; a row-parallel one (o, down; `transposed`) has one row per INPUT feature.
2. A row takes `cols * itemsize` bytes rounded up to ROW_ALIGN; a unit's rows are followed by zero rows
   until the unit is a whole number of ALIGN bytes. So the units [a, b) of a matrix are one contiguous range,
   fit for O_DIRECT, and that range in memory is a plain strided matrix.
3. The vectors (norms, biases) form one section at the start of the blob, each aligned to ROW_ALIGN, the
   section to ALIGN.
4. Everything that is not data is zero.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from tpiedge.errors import UserError
from tpiedge.pack.share import NodeShare, Share, kv_share
from tpiedge.pack.specs import JSON, BlobSpec

__all__ = [
    "ALIGN",
    "ATTENTION_MATRICES",
    "FFN_MATRICES",
    "ROW_ALIGN",
    "BlobLayout",
    "MatrixLayout",
    "Precision",
    "Range",
    "VectorLayout",
    "group_size",
    "share_bytes",
    "share_of_matrix",
    "whole_pages",
]

ALIGN = 4096
ROW_ALIGN = 64

ATTENTION_MATRICES = ("q", "k", "v", "o")
FFN_MATRICES = ("gate", "up", "down")

_MAX_BLOB_BYTES = 1 << 42
_MAX_RANGES = 1 << 20


class Precision(Enum):
    """How weights are stored. The value is the word used in flags, manifests and messages."""

    F32 = "f32"
    BF16 = "bf16"

    @property
    def itemsize(self) -> int:
        """Bytes of one stored weight."""
        return 4 if self is Precision.F32 else 2


@dataclass(frozen=True)
class Range:
    """One hashed range of a blob: unit `unit` of `matrix`, or the vector section (matrix "", unit 0).

    `index` is its place in the blob's table of hashes.
    """

    matrix: str
    unit: int
    offset: int
    length: int
    index: int

    @property
    def label(self) -> str:
        """The range in an error message."""
        return f"unit {self.unit} of {self.matrix}" if self.matrix else "the vector section"


@dataclass(frozen=True)
class MatrixLayout:
    """Where a matrix lies in its blob. Offsets and lengths are bytes from the start of the blob."""

    name: str
    rows: int
    cols: int
    rows_per_unit: int
    transposed: bool
    itemsize: int
    offset: int
    first_range: int

    @cached_property
    def units(self) -> int:
        return -(-self.rows // self.rows_per_unit)

    @cached_property
    def row_stride(self) -> int:
        """Bytes from one row to the next."""
        return _round_up(self.cols * self.itemsize, ROW_ALIGN)

    @cached_property
    def padded_rows(self) -> int:
        """Rows of a whole unit with its padding."""
        return self._padded(self.rows_per_unit)

    @cached_property
    def nbytes(self) -> int:
        return self.row_count(0, self.units) * self.row_stride

    def unit_rows(self, unit: int) -> int:
        """Rows of data in `unit`, without padding."""
        return min(self.rows_per_unit, self.rows - unit * self.rows_per_unit)

    def row_count(self, start: int, stop: int) -> int:
        """Rows of the units [start, stop) in storage and in memory, padding included."""
        self._check_units(start, stop)
        if start == stop:
            return 0
        whole = self.padded_rows * (stop - 1 - start)
        return whole + self._padded(self.unit_rows(stop - 1))

    def span(self, start: int, stop: int) -> tuple[int, int]:
        """(offset, length) of the units [start, stop)."""
        length = self.row_count(start, stop) * self.row_stride
        return self.offset + start * self.padded_rows * self.row_stride, length

    def row_offset(self, row: int) -> int:
        """Offset of the data row `row` (counted without padding)."""
        if not 0 <= row < self.rows:
            raise UserError(f"{self.name} has rows 0 to {self.rows - 1}, not {row}")
        unit, within = divmod(row, self.rows_per_unit)
        return self.offset + (unit * self.padded_rows + within) * self.row_stride

    def ranges(self, start: int, stop: int) -> Iterator[Range]:
        """The hashed ranges of the units [start, stop), in storage order."""
        for unit in range(start, stop):
            offset, length = self.span(unit, unit + 1)
            yield Range(self.name, unit, offset, length, self.first_range + unit)

    def _padded(self, rows: int) -> int:
        return _round_up(rows, ALIGN // math.gcd(self.row_stride, ALIGN))

    def _check_units(self, start: int, stop: int) -> None:
        if not 0 <= start <= stop <= self.units:
            raise UserError(f"{self.name} has units 0 to {self.units}, not [{start}, {stop})")


@dataclass(frozen=True)
class VectorLayout:
    """Where a vector lies in its blob; `length` counts numbers, `offset` bytes."""

    name: str
    length: int
    itemsize: int
    offset: int

    @property
    def nbytes(self) -> int:
        return self.length * self.itemsize


@dataclass(frozen=True)
class BlobLayout:
    """Where everything of one blob lies. Same specs and precision, same layout."""

    precision: Precision
    vectors: tuple[VectorLayout, ...]
    vectors_nbytes: int
    matrices: tuple[MatrixLayout, ...]
    nbytes: int
    range_count: int

    @staticmethod
    def of(spec: BlobSpec, precision: Precision) -> "BlobLayout":
        vectors, offset = [], 0
        for vector in spec.vectors:
            vectors.append(VectorLayout(vector.name, vector.length, precision.itemsize, offset))
            offset = _round_up(offset + vectors[-1].nbytes, ROW_ALIGN)
        section = offset = whole_pages(offset)
        matrices, ranges = [], 1 if section else 0
        for m in spec.matrices:
            matrix = MatrixLayout(
                m.name, m.rows, m.cols, m.rows_per_unit, m.transposed, precision.itemsize, offset, ranges
            )
            matrices.append(matrix)
            offset, ranges = offset + matrix.nbytes, ranges + matrix.units
        if offset > _MAX_BLOB_BYTES:
            raise UserError(f"pack layout: a blob of {offset} bytes, more than {_MAX_BLOB_BYTES}; pack again")
        if ranges > _MAX_RANGES:
            raise UserError(f"pack layout: a blob of {ranges} ranges, more than {_MAX_RANGES}; pack again")
        return BlobLayout(precision, tuple(vectors), section, tuple(matrices), offset, ranges)

    def matrix(self, name: str) -> MatrixLayout:
        """Raises KeyError if the blob has no such matrix."""
        return self._matrix_by_name[name]

    def has_matrix(self, name: str) -> bool:
        return name in self._matrix_by_name

    def vector_ranges(self) -> Iterator[Range]:
        """The one range of the vector section, or none if the blob has no vectors."""
        if self.vectors_nbytes:
            yield Range("", 0, 0, self.vectors_nbytes, 0)

    def ranges(self) -> Iterator[Range]:
        """Every hashed range, in the order of the blob and of its table of hashes."""
        yield from self.vector_ranges()
        for matrix in self.matrices:
            yield from matrix.ranges(0, matrix.units)

    def descriptor(self) -> Mapping[str, JSON]:
        """What the blob's id covers besides its bytes: everything that gives the bytes their meaning."""
        return {
            "precision": self.precision.value,
            "vectors": [[v.name, v.length] for v in self.vectors],
            "matrices": [[m.name, m.rows, m.cols, m.rows_per_unit, m.transposed] for m in self.matrices],
        }

    @cached_property
    def _matrix_by_name(self) -> Mapping[str, MatrixLayout]:
        return {matrix.name: matrix for matrix in self.matrices}


def share_of_matrix(name: str, share: NodeShare, group_size: int) -> Share:
    """The units of a layer's matrix `name` for a node of `share`; `group_size` query heads per KV head."""
    if name in ("q", "o"):
        return share.attention
    if name in ("k", "v"):
        return kv_share(share.attention, group_size)
    if name in FFN_MATRICES:
        return share.ffn
    raise UserError(
        f"matrix {name!r} is not one of a layer's: {', '.join(ATTENTION_MATRICES + FFN_MATRICES)}"
    )


def share_bytes(layout: BlobLayout, share: NodeShare, group_size: int) -> int:
    """Bytes of a layer that a node of `share` holds: its units of every matrix, and the vector section."""
    total = layout.vectors_nbytes
    for matrix in layout.matrices:
        units = share_of_matrix(matrix.name, share, group_size)
        total += matrix.span(units.start, units.stop)[1]
    return total


def group_size(layout: BlobLayout) -> int:
    """Query heads per KV head of a layer. Raises UserError unless the heads divide evenly."""
    if not (layout.has_matrix("q") and layout.has_matrix("k")):
        raise UserError("pack layout: a layer lacks its matrices q and k; pack again")
    queries, keys = layout.matrix("q").units, layout.matrix("k").units
    if queries % keys:
        raise UserError(f"pack layout: {queries} query heads for {keys} KV heads; pack again")
    return queries // keys


def whole_pages(nbytes: int) -> int:
    """Rounded up to whole pages of ALIGN bytes."""
    return _round_up(nbytes, ALIGN)


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
