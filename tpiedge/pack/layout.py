"""Computes the layout of a pack's bytes. Pure.

1. A matrix is stored unit after unit. Units are multiples of ALIGN bytes (for O_DIRECT). A column-parallel matrix has a
   row per output feature. A row-parallel matrix (o, down; `transposed`) has a row per input feature.
2. In f32 and bf16, a row takes `cols * itemsize` bytes rounded up to ROW_ALIGN. Rows of zeros fill up a unit.
3. In other precisions, a unit has panels (kernels/panels.py), then zeros.
4. The vectors (norms, biases) form one section at the start of the blob. Each vector is aligned to ROW_ALIGN. The
   section is aligned to ALIGN. All other bytes are zero.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Final

from msgspec.structs import astuple

from tpiedge.errors import UserError
from tpiedge.kernels.panels import PANEL, PanelShape
from tpiedge.pack.share import Axis, NodeShare, Share, units_of
from tpiedge.pack.specs import JSON, BlobSpec, MatrixSpec, ModelSpec, Precision, VectorSpec

ALIGN = 4096
ROW_ALIGN = 64

ATTENTION_MATRICES = ("q", "k", "v", "o")
FFN_MATRICES = ("gate", "up", "down")
#: The matrices that are cut along an axis. All others are whole on every node.
AXES: Final[Mapping[Axis, tuple[str, ...]]] = {"attention": ATTENTION_MATRICES, "ffn": FFN_MATRICES}
_AXIS_OF: Final = {name: axis for axis, names in AXES.items() for name in names}
#: Matrices with a row for each token, of which rank 0 reads some rows.
_TABLES: Final = ("embedding", "inputs_embedding", "head")


@dataclass(frozen=True)
class HashedRange:
    """A unit of a matrix, or the vector section (`matrix` "", `unit` 0). `index` is its place in the table of
    hashes."""

    matrix: str
    unit: int
    offset: int
    length: int
    index: int

    @property
    def label(self) -> str:
        return f"unit {self.unit} of {self.matrix}" if self.matrix else "the vector section"


class MatrixLayout(MatrixSpec, frozen=True, kw_only=True, dict=True):
    """A matrix and its place in its blob, in bytes."""

    precision: Precision
    offset: int
    first_range: int

    @cached_property
    def units(self) -> int:
        return -(-self.rows // self.rows_per_unit)

    @cached_property
    def nbytes(self) -> int:
        return self.span(0, self.units)[1]

    def rows_of(self, units: range) -> range:
        return range(units.start * self.rows_per_unit, min(units.stop * self.rows_per_unit, self.rows))

    def unit_rows(self, unit: int) -> int:
        return min(self.rows_per_unit, self.rows - unit * self.rows_per_unit)

    def span(self, start: int, stop: int) -> tuple[int, int]:
        """Returns (offset, length) of the units [start, stop)."""
        if not 0 <= start <= stop <= self.units:
            raise UserError(f"{self.name} has units 0 to {self.units}, not [{start}, {stop})")
        offset = self.offset + start * self.unit_nbytes(0)
        if start == stop:
            return offset, 0
        return offset, (stop - 1 - start) * self.unit_nbytes(0) + self.unit_nbytes(stop - 1)

    def ranges(self, start: int, stop: int) -> Iterator[HashedRange]:
        for unit in range(start, stop):
            offset, length = self.span(unit, unit + 1)
            yield HashedRange(self.name, unit, offset, length, self.first_range + unit)

    def unit_nbytes(self, unit: int) -> int:
        """Returns the bytes of a unit, with padding. Units are `unit_nbytes(0)` bytes apart."""
        raise NotImplementedError

    def row_place(self, row: int) -> tuple[int, int]:
        """Returns (offset, length) of a row, or of its panel if quantised. Not for transposed panels."""
        raise NotImplementedError

    def _check_row(self, row: int) -> None:
        if not 0 <= row < self.rows:
            raise UserError(f"{self.name} has rows 0 to {self.rows - 1}, not {row}")


class RowLayout(MatrixLayout, frozen=True, kw_only=True, dict=True):
    @cached_property
    def itemsize(self) -> int:
        return self.precision.bits // 8

    @cached_property
    def row_stride(self) -> int:
        return round_up(self.cols * self.itemsize, ROW_ALIGN)

    @cached_property
    def padded_rows(self) -> int:
        return self._padded(self.rows_per_unit)

    def unit_nbytes(self, unit: int) -> int:
        return self._padded(self.unit_rows(unit)) * self.row_stride

    def row_place(self, row: int) -> tuple[int, int]:
        self._check_row(row)
        unit, within = divmod(row, self.rows_per_unit)
        offset = self.offset + (unit * self.padded_rows + within) * self.row_stride
        return offset, self.cols * self.itemsize

    def _padded(self, rows: int) -> int:
        return round_up(rows, ALIGN // math.gcd(self.row_stride, ALIGN))


class PanelLayout(MatrixLayout, frozen=True, kw_only=True, dict=True):
    def shape(self, unit: int) -> PanelShape:
        rows = self.unit_rows(unit)
        outputs, inputs = (self.cols, rows) if self.transposed else (rows, self.cols)
        return PanelShape(self.precision.format, outputs, inputs)

    def unit_nbytes(self, unit: int) -> int:
        return whole_pages(self.shape(unit).nbytes)

    def row_place(self, row: int) -> tuple[int, int]:
        self._check_row(row)
        unit, within = divmod(row, self.rows_per_unit)
        nbytes = self.shape(unit).panel_nbytes
        return self.span(unit, unit + 1)[0] + within // PANEL * nbytes, nbytes


def whole_pages(nbytes: int) -> int:
    return round_up(nbytes, ALIGN)


def round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


class VectorLayout(VectorSpec, frozen=True, kw_only=True):
    """A vector and its place in its blob. `length` counts numbers, `offset` counts bytes."""

    precision: Precision
    offset: int

    @property
    def nbytes(self) -> int:
        return self.length * self.precision.bits // 8


@dataclass(frozen=True)
class BlobLayout:
    precision: Precision
    vectors: tuple[VectorLayout, ...]
    vectors_nbytes: int
    matrices: tuple[MatrixLayout, ...]
    nbytes: int
    range_count: int

    @staticmethod
    def of(
        spec: BlobSpec,
        precision: Precision,
        *,
        vectors_f32: bool = False,
        kept: Mapping[str, Precision] = MappingProxyType({}),
    ) -> "BlobLayout":
        """Lays out `spec`. With `vectors_f32`, vectors are always f32. `kept`: source -> another precision of a
        matrix. Raises UserError."""
        vectors, offset = [], 0
        of_vectors = Precision.F32 if vectors_f32 else precision.of_vectors
        for vector in spec.vectors:
            vectors.append(VectorLayout(*astuple(vector), precision=of_vectors, offset=offset))
            offset = round_up(offset + vectors[-1].nbytes, ROW_ALIGN)
        section = offset = whole_pages(offset)
        matrices: list[MatrixLayout] = []
        ranges = 1 if section else 0
        for matrix in spec.matrices:
            inputs = min(matrix.rows, matrix.rows_per_unit) if matrix.transposed else matrix.cols
            stored = kept.get(matrix.source, precision)
            if stored.quantised and inputs > 1 << 20:  # a panel, as f32, takes 64 MB then
                raise UserError(
                    f"pack layout, {matrix.name}: {inputs} inputs are too many to be quantised; pack with --precision "
                    "bf16"
                )
            kind = PanelLayout if stored.quantised else RowLayout
            placed = kind(*astuple(matrix), precision=stored, offset=offset, first_range=ranges)
            matrices.append(placed)
            offset, ranges = offset + placed.nbytes, ranges + placed.units
        if offset > 1 << 42 or ranges > 1 << 20:
            raise UserError(
                f"pack layout: a blob of {offset} bytes and {ranges} ranges is larger than any; pack again"
            )
        return BlobLayout(precision, tuple(vectors), section, tuple(matrices), offset, ranges)

    def matrix(self, name: str) -> MatrixLayout:
        return self._matrix_by_name[name]

    def vector_ranges(self) -> Iterator[HashedRange]:
        if self.vectors_nbytes:
            yield HashedRange("", 0, 0, self.vectors_nbytes, 0)

    def ranges(self) -> Iterator[HashedRange]:
        yield from self.vector_ranges()
        for matrix in self.matrices:
            yield from matrix.ranges(0, matrix.units)

    def descriptor(self) -> Mapping[str, JSON]:
        """Returns the fields that a blob's id covers."""
        unusual = [v.precision.value for v in self.vectors if v.precision is not self.precision.of_vectors]
        kept: dict[str, JSON] = {
            m.name: m.precision.value for m in self.matrices if m.precision is not self.precision
        }
        return {
            "precision": self.precision.value,
            "vectors": [[v.name, v.length] for v in self.vectors],
            "matrices": [[m.name, m.rows, m.cols, m.rows_per_unit, m.transposed] for m in self.matrices],
            **({"vector_precisions": unusual} if unusual else {}),
            **({"matrix_precisions": kept} if kept else {}),
        }

    def block(self, axis: Axis | None) -> tuple[MatrixLayout, ...]:
        """Returns the matrices that are cut along `axis` (None: whole on every node of the blob)."""
        cut = (matrix for matrix in self.matrices if matrix.name not in _TABLES)
        return tuple(matrix for matrix in cut if _AXIS_OF.get(matrix.name) == axis)

    @property
    def row_parallel(self) -> tuple[MatrixLayout, ...]:
        return tuple(matrix for matrix in self.matrices if matrix.transposed)

    @cached_property
    def _matrix_by_name(self) -> Mapping[str, MatrixLayout]:
        return {matrix.name: matrix for matrix in self.matrices}


def share_of_matrix(matrix: MatrixLayout, share: NodeShare, whole: NodeShare) -> Share:
    """Returns a node's units of a layer's matrix. `whole` has all units of each axis. Raises UserError."""
    axis = _AXIS_OF.get(matrix.name)
    if axis is None:
        return Share(matrix.units)
    return units_of(share.along(axis), len(whole.along(axis)), matrix.units)


@dataclass(frozen=True)
class Storage:
    """The precision of each kind of blob, and of the layers' matrices that have another. Raises UserError."""

    layers: Precision
    embedding: Precision
    head: Precision
    #: Whether the quantiser searches for scales.
    search: bool = True
    #: Whether vectors are f32 beside bf16 matrices.
    vectors_f32: bool = False
    #: The tensor of a layer's matrix, or of a table beside the embedding -> its precision, if it is not the usual one.
    kept: Mapping[str, Precision] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.layers.quantised and (
            {self.layers, self.embedding, self.head} != {self.layers} or not self.search
        ):
            raise UserError(
                f"layers in {self.layers.value} go with an embedding and a head of the same: another precision of "
                "theirs, or how scales are chosen, needs --precision q8 or q4"
            )
        # Equal content has one name.
        if self.vectors_f32 and Precision.BF16 not in (self.layers, self.embedding, self.head):
            raise UserError("vectors are f32 anyway where no matrix is bf16: pack again")
        for source, stored in self.kept.items():
            if not (self.layers.quantised and stored.quantised):
                raise UserError(f"{source} in {stored.value} in layers of {self.layers.value}: pack again")

    @staticmethod
    def of(
        layers: Precision,
        *,
        tied: bool,
        embedding: Precision | None = None,
        head: Precision | None = None,
        search: bool = True,
    ) -> "Storage":
        """Fills in the precisions that are None. If `tied` is true, the head and the embedding are one matrix."""
        usual = Precision.Q8 if layers.quantised else layers
        if tied:
            if None not in (embedding, head) and embedding is not head:
                raise UserError("the model's head is its embedding: give them one precision")
            embedding = head = embedding or head or usual
        embedding = embedding or (Precision.BF16 if layers.quantised else layers)
        head = head or usual
        if layers.quantised and Precision.Q4 not in (layers, embedding, head):
            search = True  # the default: eight bits leave nothing to search for
        return Storage(layers, embedding, head, search)

    @staticmethod
    def keeping(
        spec: ModelSpec,
        own: Mapping[str, Precision],
        embedding: Precision | None = None,
        head: Precision | None = None,
    ) -> "Storage":
        """Stores each of the layers' matrices in its own precision. `own`: source -> precision."""
        weights: Counter[Precision] = Counter()
        for matrix in (matrix for layer in spec.layers for matrix in layer.matrices):
            weights[own[matrix.source]] += matrix.rows * matrix.cols
        usual = weights.most_common(1)[0][0]
        kept = {source: stored for source, stored in own.items() if stored is not usual}
        return replace(Storage.of(usual, tied=spec.tied, embedding=embedding, head=head), kept=kept)

    def of_blob(self, key: int | str) -> Precision:
        return {"embedding": self.embedding, "head": self.head}.get(str(key), self.layers)

    def of_matrix(self, key: int | str, matrix: MatrixSpec) -> Precision:
        usual = self.of_blob(key)
        if key == "embedding" and self.layers.quantised and matrix.name not in _TABLES:
            return Precision.Q8  # products of tokens have the same bits in any batch
        return usual if key == "head" else self.kept.get(matrix.source, usual)

    def layout(self, key: int | str, spec: BlobSpec) -> BlobLayout:
        kept = {one.source: self.of_matrix(key, one) for one in spec.matrices}
        return BlobLayout.of(spec, self.of_blob(key), vectors_f32=self.vectors_f32, kept=kept)

    def label(self, *, tied: bool) -> str:
        """Returns a part of a pack's folder name, like "q4", "q4-head-bf16" or "kept-q4_k"."""
        usual = Storage.of(self.layers, tied=tied)
        parts = [f"kept-{self.layers.value}" if self.kept else self.layers.value]
        if self.embedding is not usual.embedding:
            parts.append(f"embedding-{self.embedding.value}")
        if self.head is not usual.head:
            parts.append(f"head-{self.head.value}")
        if self.vectors_f32:
            parts.append("vectors-f32")
        return "-".join(parts if self.search else [*parts, "plain"])


def storage_of(precision: "Precision | Storage", spec: ModelSpec) -> Storage:
    """Returns `precision` if it is a Storage, else the default Storage with layers in this precision."""
    return precision if isinstance(precision, Storage) else Storage.of(precision, tied=spec.tied)
