"""Computes the layout of a pack's bytes. Pure.

1. A matrix is stored unit after unit. Units are multiples of ALIGN bytes (for O_DIRECT). A column-parallel matrix has a
   row per output feature. A row-parallel matrix (o, down; `transposed`) has a row per input feature.
2. In f32 and bf16, a row takes `cols * itemsize` bytes rounded up to ROW_ALIGN. Zeros fill units.
3. In other precisions, a unit has panels (kernels/panels.py).
4. Vectors (norms, biases, a router) form one section at the start, each aligned to ROW_ALIGN.
5. Experts follow. In f32 and bf16, an expert has matrix after matrix. In other precisions, a unit has panels of every
   matrix, at the same places in all units.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, pairwise
from types import MappingProxyType
from typing import ClassVar, Final, TypeAlias

from msgspec import structs
from msgspec.structs import astuple

from tpiedge.errors import UserError
from tpiedge.kernels.panels import PANEL, PanelShape
from tpiedge.pack.share import Axis, NodeShare, Share, units_of
from tpiedge.pack.specs import JSON, BlobSpec, ExpertsSpec, MatrixSpec, ModelSpec, Precision, VectorSpec

ALIGN = 4096
ROW_ALIGN = 64

ATTENTION_MATRICES = ("q", "k", "v", "o")
FFN_MATRICES = ("gate", "up", "down")
EXPERTS: Final = "experts"
#: What is cut along an axis. All other matrices are whole on every node.
AXES: Final[Mapping[Axis, tuple[str, ...]]] = {
    "attention": ATTENTION_MATRICES,
    "ffn": FFN_MATRICES,
    "experts": (EXPERTS,),
}
_AXIS_OF: Final = {name: axis for axis, names in AXES.items() for name in names}
#: Matrices with a row for each token, of which rank 0 reads some rows.
_TABLES: Final = ("embedding", "inputs_embedding", "head")


@dataclass(frozen=True)
class HashedRange:
    """A unit of a matrix or of an expert, or the vector section (`matrix` "", `unit` 0). `index` is its place in the
    table of hashes."""

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

    def held_nbytes(self, units: Share) -> int:
        return self.span(units.start, units.stop)[1]

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


class _InterleavedLayout(PanelLayout, frozen=True, kw_only=True, dict=True):
    """A matrix of an expert, with panels of other matrices between its units."""

    stride: int

    def unit_nbytes(self, unit: int) -> int:
        del unit
        return self.stride


class _UnitsLayout(MatrixLayout, frozen=True, kw_only=True, dict=True):
    """The units of an expert whose matrices interleave, each from its place in a unit on."""

    parts: tuple[PanelLayout, ...]
    places: tuple[int, ...]

    def unit_nbytes(self, unit: int) -> int:
        return whole_pages(self.places[-1] + self.parts[-1].shape(unit).nbytes)


@dataclass(frozen=True)
class ExpertsLayout:
    """The matrices of a layer's experts. A node has the same units of every expert."""

    count: int
    chosen: int
    #: The matrices of the first expert. Their sources say "{}" for its number.
    matrices: tuple[MatrixLayout, ...]
    #: What of the first expert is adjacent: all units, or those of a matrix.
    runs: tuple[MatrixLayout, ...]
    name: ClassVar[str] = EXPERTS

    @staticmethod
    def of(
        spec: ExpertsSpec, precisions: Sequence[Precision], offset: int, first_range: int
    ) -> "ExpertsLayout":
        kind = PanelLayout if precisions[0].quantised else RowLayout
        matrices: list[MatrixLayout] = []
        for matrix, precision in zip(spec.matrices, precisions, strict=True):
            placed = kind(*astuple(matrix), precision=precision, offset=offset, first_range=first_range)
            matrices.append(placed)
            if not precision.quantised:
                offset, first_range = offset + placed.nbytes, first_range + placed.units
        if not precisions[0].quantised:
            return ExpertsLayout(spec.count, spec.chosen, tuple(matrices), tuple(matrices))
        panels = tuple(one for one in matrices if isinstance(one, PanelLayout))
        places = (0, *accumulate(one.shape(0).nbytes for one in panels[:-1]))
        run = _UnitsLayout(
            *astuple(spec.matrices[0]),
            precision=precisions[0],
            offset=offset,
            first_range=first_range,
            parts=panels,
            places=places,
        )
        stride = run.unit_nbytes(0)
        interleaved = (
            _InterleavedLayout(
                *astuple(matrix),
                precision=one.precision,
                offset=offset + place,
                first_range=first_range,
                stride=stride,
            )
            for matrix, one, place in zip(spec.matrices, panels, places, strict=True)
        )
        return ExpertsLayout(spec.count, spec.chosen, tuple(interleaved), (run,))

    @cached_property
    def units(self) -> int:
        return self.matrices[0].units

    @property
    def range_count(self) -> int:
        return self.count * sum(run.units for run in self.runs)

    @cached_property
    def nbytes(self) -> int:
        return self.held_nbytes(Share(self.units))

    def held_nbytes(self, units: Share) -> int:
        return self.count * self.expert_nbytes(units)

    def expert_nbytes(self, units: Share) -> int:
        """Returns the bytes of some units of one expert, on disk and in a node's memory."""
        return sum(run.held_nbytes(units) for run in self.runs)

    def places(self, units: Share) -> Sequence[slice]:
        """Returns the place of each matrix among the bytes of some units of an expert. Panels of others may lie
        between."""
        if isinstance(self.runs[0], _UnitsLayout):
            return [slice(place, None) for place in self.runs[0].places]
        stops = (0, *accumulate(run.held_nbytes(units) for run in self.runs))
        return [slice(*ends) for ends in pairwise(stops)]

    def ranges(self, start: int, stop: int) -> Iterator[HashedRange]:
        whole, ranges = self.expert_nbytes(Share(self.units)), self.range_count // self.count
        of_first = [item for run in self.runs for item in run.ranges(start, stop)]
        for expert in range(self.count):
            for item in of_first:
                offset, index = item.offset + expert * whole, item.index + expert * ranges
                yield HashedRange(f"expert {expert}", item.unit, offset, item.length, index)

    def of_expert(self, expert: int) -> tuple[MatrixLayout, ...]:
        """Returns the matrices of an expert with their sources."""
        offset, ranges = expert * self.expert_nbytes(Share(self.units)), self.range_count // self.count
        return tuple(
            structs.replace(
                one,
                source=one.source.replace("{}", str(expert)),
                offset=one.offset + offset,
                first_range=one.first_range + expert * ranges,
            )
            for one in self.matrices
        )


StoredPart: TypeAlias = MatrixLayout | ExpertsLayout


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
    experts: ExpertsLayout | None = None

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
        for matrix, _ in spec.counted_matrices:
            inputs = min(matrix.rows, matrix.rows_per_unit) if matrix.transposed else matrix.cols
            stored = kept.get(matrix.source, precision)
            if stored.quantised and inputs > 1 << 20:  # a panel, as f32, takes 64 MB then
                raise UserError(
                    f"pack layout, {matrix.name}: {inputs} inputs are too many to be quantised; pack with --precision "
                    "bf16"
                )
        for matrix in spec.matrices:
            stored = kept.get(matrix.source, precision)
            kind = PanelLayout if stored.quantised else RowLayout
            placed = kind(*astuple(matrix), precision=stored, offset=offset, first_range=ranges)
            matrices.append(placed)
            offset, ranges = offset + placed.nbytes, ranges + placed.units
        experts = None
        if spec.experts:
            own = [kept.get(matrix.source, precision) for matrix in spec.experts.matrices]
            experts = ExpertsLayout.of(spec.experts, own, offset, ranges)
            offset, ranges = offset + experts.nbytes, ranges + experts.range_count
        if offset > 1 << 42 or ranges > 1 << 20:
            raise UserError(
                f"pack layout: a blob of {offset} bytes and {ranges} ranges is larger than any; pack again"
            )
        return BlobLayout(precision, tuple(vectors), section, tuple(matrices), offset, ranges, experts)

    def matrix(self, name: str) -> MatrixLayout:
        return self._matrix_by_name[name]

    def vector_ranges(self) -> Iterator[HashedRange]:
        if self.vectors_nbytes:
            yield HashedRange("", 0, 0, self.vectors_nbytes, 0)

    def ranges(self) -> Iterator[HashedRange]:
        yield from self.vector_ranges()
        for part in self.parts:
            yield from part.ranges(0, part.units)

    def descriptor(self) -> Mapping[str, JSON]:
        """Returns the fields that a blob's id covers."""
        unusual = [v.precision.value for v in self.vectors if v.precision is not self.precision.of_vectors]
        of_experts = self.experts.matrices if self.experts else ()
        named = {
            **{m.name: m for m in self.matrices},
            **{f"{EXPERTS}.{m.name}": m for m in of_experts},
        }
        kept: dict[str, JSON] = {
            name: m.precision.value for name, m in named.items() if m.precision is not self.precision
        }
        described: list[JSON] = [
            [name, m.rows, m.cols, m.rows_per_unit, m.transposed] for name, m in named.items()
        ]
        return {
            "precision": self.precision.value,
            "vectors": [[v.name, v.length] for v in self.vectors],
            "matrices": described,
            **({"experts": self.experts.count} if self.experts else {}),
            **({"vector_precisions": unusual} if unusual else {}),
            **({"matrix_precisions": kept} if kept else {}),
        }

    @property
    def parts(self) -> tuple[StoredPart, ...]:
        """The matrices and experts, stored in this order after the vectors."""
        return (*self.matrices, *([self.experts] if self.experts else []))

    def part(self, name: str) -> StoredPart:
        return self.experts if self.experts and name == EXPERTS else self.matrix(name)

    def block(self, axis: Axis) -> tuple[StoredPart, ...]:
        """Returns what is cut along `axis`."""
        return tuple(part for part in self.parts if _AXIS_OF.get(part.name) == axis)

    @property
    def whole(self) -> tuple[MatrixLayout, ...]:
        """The matrices that are whole on every node of the blob."""
        return tuple(one for one in self.matrices if one.name not in _TABLES and one.name not in _AXIS_OF)

    @property
    def row_parallel(self) -> tuple[StoredPart, ...]:
        """The matrices and experts whose outputs nodes sum: of attention, then the FFN, then inputs."""
        found: list[StoredPart] = [matrix for matrix in self.matrices if matrix.transposed]
        if self.experts:
            found.insert(1, self.experts)
        return tuple(found)

    @cached_property
    def _matrix_by_name(self) -> Mapping[str, MatrixLayout]:
        return {matrix.name: matrix for matrix in self.matrices}


def share_of_matrix(matrix: StoredPart, share: NodeShare, whole: NodeShare) -> Share:
    """Returns a node's units of a layer's matrix or experts. `whole` has all units of each axis. Raises UserError."""
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
        for matrix, count in (one for layer in spec.layers for one in layer.counted_matrices):
            weights[own[matrix.source]] += count * matrix.rows * matrix.cols
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
        kept = {one.source: self.of_matrix(key, one) for one, _ in spec.counted_matrices}
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
