"""Where each byte of a pack lies: pure arithmetic, no files. Matrices by themselves are in matrix_layout.py.

The laws of the layout:

1. Every matrix is stored in unit order, a unit in a whole number of ALIGN bytes. So the units [a, b) of a matrix are
   one contiguous range, fit for O_DIRECT. A unit is some rows; a column-parallel matrix (q, k, v, gate, up, head,
   embedding) has one row per OUTPUT feature; a row-parallel one (o, down; `transposed`) has one row per INPUT feature.
2. f32 and bf16: a row takes `cols * itemsize` bytes rounded up to ROW_ALIGN; a unit's rows are followed by zero rows
   until it is whole. So some units in memory are a plain strided matrix.
3. q8 and q4: a unit is panels, as in kernels/panels.py, followed by zeros until it is whole.
4. The vectors (norms, biases; f32 where the matrices are quantised, or where the pack says so) form one section at the
   start of the blob, each aligned to ROW_ALIGN, the section to ALIGN.
5. Everything that is not data is zero.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from tpiedge.errors import UserError
from tpiedge.pack.matrix_layout import (
    ALIGN,
    ROW_ALIGN,
    HashedRange,
    MatrixLayout,
    PanelLayout,
    RowLayout,
    round_up,
    whole_pages,
)
from tpiedge.pack.precision import Precision
from tpiedge.pack.share import NodeShare, Share, kv_share
from tpiedge.pack.specs import JSON, BlobSpec

__all__ = [
    "ALIGN",
    "ATTENTION_MATRICES",
    "FFN_MATRICES",
    "ROW_ALIGN",
    "BlobLayout",
    "HashedRange",
    "MatrixLayout",
    "PanelLayout",
    "Precision",
    "RowLayout",
    "VectorLayout",
    "group_size",
    "share_bytes",
    "share_of_matrix",
    "whole_pages",
]

ATTENTION_MATRICES = ("q", "k", "v", "o")
FFN_MATRICES = ("gate", "up", "down")

_MAX_BLOB_BYTES = 1 << 42
_MAX_RANGES = 1 << 20


@dataclass(frozen=True)
class VectorLayout:
    """Where a vector lies in its blob; `length` counts numbers, `offset` bytes."""

    name: str
    length: int
    precision: Precision
    offset: int

    @property
    def nbytes(self) -> int:
        return self.length * self.precision.bits // 8


@dataclass(frozen=True)
class BlobLayout:
    """Where everything of one blob lies. Same specs and precisions, same layout."""

    precision: Precision
    vectors: tuple[VectorLayout, ...]
    vectors_nbytes: int
    matrices: tuple[MatrixLayout, ...]
    nbytes: int
    range_count: int

    @staticmethod
    def of(spec: BlobSpec, precision: Precision, *, vectors_f32: bool = False) -> "BlobLayout":
        """`vectors_f32`: the vectors in f32, whatever the matrices are in."""
        vectors, offset = [], 0
        of_vectors = Precision.F32 if vectors_f32 else precision.of_vectors
        for vector in spec.vectors:
            vectors.append(VectorLayout(vector.name, vector.length, of_vectors, offset))
            offset = round_up(offset + vectors[-1].nbytes, ROW_ALIGN)
        section = offset = whole_pages(offset)
        matrices, ranges = [], 1 if section else 0
        for spec_of_matrix in spec.matrices:
            matrix = MatrixLayout.of(spec_of_matrix, precision, offset, ranges)
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

    def vector_ranges(self) -> Iterator[HashedRange]:
        """The one range of the vector section, or none if the blob has no vectors."""
        if self.vectors_nbytes:
            yield HashedRange("", 0, 0, self.vectors_nbytes, 0)

    def ranges(self) -> Iterator[HashedRange]:
        """Every hashed range, in the order of the blob and of its table of hashes."""
        yield from self.vector_ranges()
        for matrix in self.matrices:
            yield from matrix.ranges(0, matrix.units)

    def descriptor(self) -> Mapping[str, JSON]:
        """What the blob's id covers besides its bytes: everything that gives the bytes their meaning."""
        unusual = [v.precision.value for v in self.vectors if v.precision is not self.precision.of_vectors]
        return {
            "precision": self.precision.value,
            "vectors": [[v.name, v.length] for v in self.vectors],
            "matrices": [[m.name, m.rows, m.cols, m.rows_per_unit, m.transposed] for m in self.matrices],
            **({"vector_precisions": unusual} if unusual else {}),
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
