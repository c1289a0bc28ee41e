"""What a pack holds: named matrices and vectors, their shapes, units and sources, and how they are stored.

Specs come from a checkpoint's config or from a stranger's manifest, so each one checks itself when it is made.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias, Union

from tpiedge.errors import UserError
from tpiedge.sanitise import quote

JSON: TypeAlias = Union[bool, int, float, str, "Sequence[JSON]", "Mapping[str, JSON]", None]

_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}", re.ASCII)
_SOURCE = re.compile(r"[\x21-\x7e]{1,256}", re.ASCII)


class Precision(Enum):
    """How weights are stored. The value is the word used in flags, manifests and messages."""

    F32 = "f32"
    BF16 = "bf16"
    Q8 = "q8"
    Q4 = "q4"

    @property
    def bits(self) -> int:
        """Bits of one stored weight, its scale not counted."""
        return {"f32": 32, "bf16": 16, "q8": 8, "q4": 4}[self.value]

    @property
    def quantised(self) -> bool:
        """Whether weights are integers with scales."""
        return self in (Precision.Q8, Precision.Q4)

    @property
    def of_vectors(self) -> "Precision":
        """How norms and biases are stored beside such matrices."""
        return Precision.F32 if self.quantised else self


@dataclass(frozen=True)
class MatrixSpec:
    """A matrix as stored, `rows` x `cols`, cut into units of `rows_per_unit` rows (the last may be short).

    `source` names the checkpoint's tensor, of shape [rows, cols], or [cols, rows] if `transposed`.
    """

    name: str
    source: str
    rows: int
    cols: int
    rows_per_unit: int
    transposed: bool = False

    def __post_init__(self) -> None:
        _check_names(self.name, self.source)
        _check_int(f"{self.name}: rows", self.rows, 1 << 26)
        _check_int(f"{self.name}: cols", self.cols, 1 << 22)
        _check_int(f"{self.name}: rows_per_unit", self.rows_per_unit, 1 << 20)
        if not isinstance(self.transposed, bool):
            raise UserError(f"pack layout, {self.name}: transposed must be true or false; pack again")

    @property
    def source_shape(self) -> tuple[int, int]:
        return (self.cols, self.rows) if self.transposed else (self.rows, self.cols)


@dataclass(frozen=True)
class VectorSpec:
    """A norm's weight or a bias of `length` numbers, from the checkpoint's tensor `source`."""

    name: str
    source: str
    length: int

    def __post_init__(self) -> None:
        _check_names(self.name, self.source)
        _check_int(f"{self.name}: length", self.length, 1 << 26)


@dataclass(frozen=True)
class BlobSpec:
    """What is stored as one file: the matrices and vectors of one layer, of the embedding or of the head."""

    matrices: tuple[MatrixSpec, ...] = ()
    vectors: tuple[VectorSpec, ...] = ()

    def __post_init__(self) -> None:
        names = [matrix.name for matrix in self.matrices] + [vector.name for vector in self.vectors]
        if len(names) > 64:
            raise UserError(f"pack layout: {len(names)} parts in one blob, more than 64; pack again")
        if len(set(names)) != len(names):
            raise UserError(f"pack layout: a name occurs twice in one blob ({', '.join(names)}); pack again")


@dataclass(frozen=True)
class ModelSpec:
    """A whole model. The head has the vector "final_norm" and, unless the model ties it to the embedding, the
    matrix "head". `config` is opaque here and returned by `Pack.config`."""

    embedding: BlobSpec
    layers: tuple[BlobSpec, ...]
    head: BlobSpec
    config: Mapping[str, JSON]

    def __post_init__(self) -> None:
        if not 1 <= len(self.layers) <= 4096:
            raise UserError(f"pack layout: {len(self.layers)} layers, not 1 to 4096; pack again")
        if [matrix.name for matrix in self.embedding.matrices] != ["embedding"]:
            raise UserError(
                "pack layout: the embedding blob must hold the one matrix 'embedding'; pack again"
            )
        if [matrix.name for matrix in self.head.matrices] not in ([], ["head"]):
            raise UserError("pack layout: the head blob may hold the one matrix 'head' only; pack again")

    @property
    def tied(self) -> bool:
        """Whether the head's matrix is the embedding."""
        return not self.head.matrices


def _check_names(name: str, source: str) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UserError(f"pack layout: not a name: {str(name)[:40]!r}; pack again")
    if not isinstance(source, str) or not _SOURCE.fullmatch(source):
        raise UserError(f"pack layout, {name}: not a tensor's name: {str(source)[:40]!r}; pack again")


def _check_int(what: str, value: int, limit: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= limit:
        raise UserError(
            f"pack layout, {what}: {quote(value, 20)} is not a number from 1 to {limit}; pack again"
        )
