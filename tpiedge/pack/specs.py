"""Describes a pack: named matrices and vectors, their shapes, units and sources."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple, TypeAlias, Union

import msgspec
from msgspec import UNSET, Meta, UnsetType

from tpiedge.errors import UserError

if TYPE_CHECKING:
    from tpiedge.kernels.panels import PanelFormat

BlobKey: TypeAlias = int | Literal["embedding", "head"]
JSON: TypeAlias = Union[bool, int, float, str, "Sequence[JSON]", "Mapping[str, JSON]", None]

_Name = Annotated[str, Meta(pattern=r"\A[a-z][a-z0-9_]{0,31}\Z")]
_Source = Annotated[str, Meta(pattern=r"\A[\x21-\x7e]{1,256}\Z")]
_Rows = Annotated[int, Meta(ge=1, le=1 << 26)]


class Precision(Enum):
    """The storage of weights, named as in flags, manifests and messages. Nothing is rounded to what follows q4: packs
    only keep it as a source has it."""

    F32 = "f32"
    BF16 = "bf16"
    Q8 = "q8"
    Q4 = "q4"
    Q4_1 = "q4_1"
    Q4_ZERO = "q4_zero"
    Q4_K = "q4_k"
    Q5_0 = "q5_0"
    Q5_1 = "q5_1"
    Q5_K = "q5_k"
    Q6_K = "q6_k"
    IQ4_NL = "iq4_nl"
    MXFP4 = "mxfp4"

    @property
    def bits(self) -> int:
        """Bits of one stored weight without its scale."""
        return self.format.bits if self.quantised else {"f32": 32, "bf16": 16}[self.value]

    @property
    def quantised(self) -> bool:
        return self not in (Precision.F32, Precision.BF16)

    @property
    def format(self) -> "PanelFormat":
        """The layout of quantised weights. Raises KeyError for numbers."""
        from tpiedge.kernels.panels import (
            FORMATS,
        )  # imports numpy, which the command line's help does without

        return FORMATS[self.value]

    @property
    def of_vectors(self) -> "Precision":
        return Precision.F32 if self.quantised else self


CHOICES: Final = (Precision.F32, Precision.BF16, Precision.Q8, Precision.Q4)
"""The precisions to which any weights can be rounded."""


ROUTER: Final = "router"
"""The name of the vector that has a router's matrix, row after row."""
EXPERT_BIASES: Final = ("gate_bias", "up_bias", "down_bias")
"""The names of the vectors that have a bias of each expert, one after the other."""


def sources_of(source: str, count: int) -> tuple[str, ...]:
    """Returns the tensors of `count` experts' matrix, or the one of a matrix that no expert has."""
    return tuple(source.replace("{}", str(expert)) for expert in range(count))


class StackedTensor(NamedTuple):
    """An expert's matrix in a tensor that has those of all, with the source "TENSOR[ITEM]"."""

    tensor: str
    item: str


def stack_source(source: str) -> StackedTensor | None:
    """Parses the source of an item. Returns None for other sources."""
    found = re.fullmatch(r"([^[]+)\[(\d{1,4}|{})\]", source)
    return StackedTensor(*found.groups()) if found else None


def whole_source(source: str) -> tuple[str, range | None]:
    """Returns (the checkpoint's tensor, the rows of it that `source` names, or None for all). The source of a matrix
    that is some rows of a tensor is "NAME#FIRST:LAST"."""
    name, mark, rows = source.partition("#")
    first, colon, last = rows.partition(":")
    if not mark:
        return source, None
    if not (colon and first.isdecimal() and last.isdecimal() and int(first) < int(last)):
        raise UserError(f"pack layout: {source!r:.100} names no rows of a tensor; pack again")
    return name, range(int(first), int(last))


class Columns(NamedTuple):
    """Every `step`-th column of a tensor, from `first` on. The source "TENSOR[EXPERT,:,FIRST::STEP].T" names a matrix
    of an expert, if the tensor has a row for each input, and "TENSOR[:,FIRST::STEP]" the biases of all experts."""

    tensor: str
    item: int | None
    first: int
    step: int

    def shape_of_all(self, own: tuple[int, ...], experts: int) -> tuple[int, ...]:
        """Returns the tensor's shape, for `own` rows and columns of the matrix or the biases."""
        rows, cols = own
        return (rows, self.step * cols) if self.item is None else (experts, cols, self.step * rows)


_COLUMNS: Final = re.compile(r"([^[]+)\[(?:(\d{1,4}),:,(\d)::([1-9])\]\.T|:,(\d)::([1-9])\])")


def columns_source(source: str) -> Columns | None:
    """Parses the source of some columns of a tensor. Returns None for other sources."""
    found = _COLUMNS.fullmatch(source)
    if found is None:
        return None
    tensor, item, *numbers = found.groups()
    first, step = map(int, filter(None, numbers))
    return Columns(tensor, None if item is None else int(item), first, step)


class MatrixSpec(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A stored matrix, cut into units."""

    name: _Name
    #: The checkpoint's tensor, of shape [rows, cols], or [cols, rows] if `transposed`.
    source: _Source
    rows: _Rows
    cols: Annotated[int, Meta(ge=1, le=1 << 22)]
    #: The last unit may have fewer.
    rows_per_unit: Annotated[int, Meta(ge=1, le=1 << 20)]
    transposed: bool = False

    @property
    def source_shape(self) -> tuple[int, int]:
        return (self.cols, self.rows) if self.transposed else (self.rows, self.cols)


class ExpertsSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Matrices that each of `count` experts has. A token uses `chosen` experts. "{}" in a source stands for an expert's
    number."""

    count: Annotated[int, Meta(ge=1, le=1024)]
    chosen: Annotated[int, Meta(ge=1, le=1024)]
    matrices: Annotated[tuple[MatrixSpec, ...], Meta(min_length=1, max_length=8)]


class VectorSpec(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    name: _Name
    source: _Source
    length: _Rows


@dataclass(frozen=True)
class BlobSpec:
    """The matrices and vectors of one blob: a layer, the embedding or the head. A layer with experts has the vector
    ROUTER, and perhaps EXPERT_BIASES."""

    matrices: tuple[MatrixSpec, ...] = ()
    vectors: tuple[VectorSpec, ...] = ()
    experts: ExpertsSpec | UnsetType = UNSET

    def __post_init__(self) -> None:
        names = [matrix.name for matrix in self.matrices] + [vector.name for vector in self.vectors]
        if len(names) > 64:
            raise UserError(f"pack layout: {len(names)} parts in one blob, more than 64; pack again")
        if len(set(names)) != len(names):
            raise UserError(f"pack layout: a name occurs twice in one blob ({', '.join(names)}); pack again")
        if self.experts and len({(one.rows, one.rows_per_unit) for one in self.experts.matrices}) > 1:
            raise UserError("pack layout: the matrices of an expert have unlike units; pack again")

    @property
    def counted_matrices(self) -> tuple[tuple[MatrixSpec, int], ...]:
        """All matrices, those of all experts as one. Each has the number of experts, or 1."""
        of_experts = [(one, self.experts.count) for one in self.experts.matrices] if self.experts else []
        return (*((one, 1) for one in self.matrices), *of_experts)

    @property
    def source_shapes(self) -> dict[str, tuple[int, ...]]:
        matrices = {
            source: matrix.source_shape
            for matrix, count in self.counted_matrices
            for source in sources_of(matrix.source, count)
        }
        return matrices | {vector.source: self.shape_of(vector) for vector in self.vectors}

    def shape_of(self, vector: VectorSpec) -> tuple[int, ...]:
        """Returns the shape of a vector's tensor. A router and biases of experts have a row for each expert."""
        if self.experts and vector.name in (ROUTER, *EXPERT_BIASES):
            return self.experts.count, vector.length // self.experts.count
        return (vector.length,)


@dataclass(frozen=True)
class ModelSpec:
    """A whole model. The head has the vector "final_norm" and, unless tied, the matrix "head"."""

    embedding: BlobSpec
    layers: tuple[BlobSpec, ...]
    head: BlobSpec
    config: Mapping[str, Any]

    def __post_init__(self) -> None:
        if not 1 <= len(self.layers) <= 4096:
            raise UserError(f"pack layout: {len(self.layers)} layers, not 1 to 4096; pack again")
        if [matrix.name for matrix in self.embedding.matrices][:1] != ["embedding"]:
            raise UserError(
                "pack layout: the embedding blob must begin with the matrix 'embedding'; pack again"
            )
        if [matrix.name for matrix in self.head.matrices] not in ([], ["head"]):
            raise UserError("pack layout: the head blob may hold the one matrix 'head' only; pack again")

    @cached_property
    def blobs(self) -> Mapping[BlobKey, BlobSpec]:
        return {"embedding": self.embedding, **dict(enumerate(self.layers)), "head": self.head}

    @property
    def source_shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: shape for blob in self.blobs.values() for name, shape in blob.source_shapes.items()}

    @property
    def tied(self) -> bool:
        return not self.head.matrices
