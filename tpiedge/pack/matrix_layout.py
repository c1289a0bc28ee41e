"""Where the rows or panels of one matrix lie (laws 1 to 3 of layout.py)."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from tpiedge.errors import UserError
from tpiedge.kernels.panels import PANEL, PanelShape
from tpiedge.pack.precision import Precision
from tpiedge.pack.specs import MatrixSpec

ALIGN = 4096
ROW_ALIGN = 64

_MAX_PANEL_INPUTS = 1 << 20  # a panel, as f32, takes 64 MB then


@dataclass(frozen=True)
class HashedRange:
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
class MatrixLayout(ABC):
    """Where a matrix lies in its blob. Offsets and lengths are bytes from the start of the blob."""

    name: str
    rows: int
    cols: int
    rows_per_unit: int
    transposed: bool
    precision: Precision
    offset: int
    first_range: int

    @staticmethod
    def of(spec: MatrixSpec, precision: Precision, offset: int, first_range: int) -> "MatrixLayout":
        """The layout of the matrix whose bytes begin at `offset`.

        Raises UserError where it is too wide to be quantised.
        """
        kind = PanelLayout if precision.quantised else RowLayout
        inputs = min(spec.rows, spec.rows_per_unit) if spec.transposed else spec.cols
        if precision.quantised and inputs > _MAX_PANEL_INPUTS:
            raise UserError(
                f"pack layout, {spec.name}: {inputs} inputs, more than the {_MAX_PANEL_INPUTS} that can be quantised; "
                "pack with --precision bf16"
            )
        return kind(
            spec.name,
            spec.rows,
            spec.cols,
            spec.rows_per_unit,
            spec.transposed,
            precision,
            offset,
            first_range,
        )

    @cached_property
    def units(self) -> int:
        return -(-self.rows // self.rows_per_unit)

    @cached_property
    def nbytes(self) -> int:
        return self.span(0, self.units)[1]

    def unit_rows(self, unit: int) -> int:
        """Rows of data in `unit`, without padding."""
        return min(self.rows_per_unit, self.rows - unit * self.rows_per_unit)

    def span(self, start: int, stop: int) -> tuple[int, int]:
        """(offset, length) of the units [start, stop)."""
        self._check_units(start, stop)
        offset = self.offset + start * self.unit_nbytes(0)
        if start == stop:
            return offset, 0
        return offset, (stop - 1 - start) * self.unit_nbytes(0) + self.unit_nbytes(stop - 1)

    def ranges(self, start: int, stop: int) -> Iterator[HashedRange]:
        """The hashed ranges of the units [start, stop), in storage order."""
        for unit in range(start, stop):
            offset, length = self.span(unit, unit + 1)
            yield HashedRange(self.name, unit, offset, length, self.first_range + unit)

    @abstractmethod
    def unit_nbytes(self, unit: int) -> int:
        """Bytes of a unit with its padding: whole pages.

        The first unit's are also the distance from one unit to the next.
        """

    def _check_units(self, start: int, stop: int) -> None:
        if not 0 <= start <= stop <= self.units:
            raise UserError(f"{self.name} has units 0 to {self.units}, not [{start}, {stop})")

    def _check_row(self, row: int) -> None:
        if not 0 <= row < self.rows:
            raise UserError(f"{self.name} has rows 0 to {self.rows - 1}, not {row}")


@dataclass(frozen=True)
class RowLayout(MatrixLayout):
    """f32 or bf16: rows at a stride."""

    @cached_property
    def itemsize(self) -> int:
        """Bytes of one stored weight."""
        return self.precision.bits // 8

    @cached_property
    def row_stride(self) -> int:
        """Bytes from one row to the next."""
        return round_up(self.cols * self.itemsize, ROW_ALIGN)

    @cached_property
    def padded_rows(self) -> int:
        """Rows of a whole unit with its padding."""
        return self._padded(self.rows_per_unit)

    def unit_nbytes(self, unit: int) -> int:
        return self._padded(self.unit_rows(unit)) * self.row_stride

    def row_count(self, start: int, stop: int) -> int:
        """Rows of the units [start, stop) in storage and in memory, padding included."""
        return self.span(start, stop)[1] // self.row_stride

    def row_offset(self, row: int) -> int:
        """Offset of the data row `row` (counted without padding)."""
        self._check_row(row)
        unit, within = divmod(row, self.rows_per_unit)
        return self.offset + (unit * self.padded_rows + within) * self.row_stride

    def _padded(self, rows: int) -> int:
        return round_up(rows, ALIGN // math.gcd(self.row_stride, ALIGN))


@dataclass(frozen=True)
class PanelLayout(MatrixLayout):
    """q8 or q4: units of panels."""

    def shape(self, unit: int) -> PanelShape:
        """The shape of the panels of one unit, in numbers."""
        rows = self.unit_rows(unit)
        outputs, inputs = (self.cols, rows) if self.transposed else (rows, self.cols)
        return PanelShape(self.precision.bits, outputs, inputs)

    def unit_nbytes(self, unit: int) -> int:
        return whole_pages(self.shape(unit).nbytes)

    def panel_offset(self, row: int) -> int:
        """Offset of the panel with the data row `row`. Not for transposed matrices: their rows are inputs."""
        self._check_row(row)
        unit, within = divmod(row, self.rows_per_unit)
        return self.span(unit, unit + 1)[0] + within // PANEL * self.shape(unit).panel_nbytes


def whole_pages(nbytes: int) -> int:
    """Rounded up to whole pages of ALIGN bytes."""
    return round_up(nbytes, ALIGN)


def round_up(value: int, multiple: int) -> int:
    """The least multiple that is not below `value`."""
    return -(-value // multiple) * multiple
