"""A quantised matrix in main memory, in the form of a pack."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from tpiedge.kernels.panels import PANEL, Array, Codes, PanelFormat, PanelShape


@dataclass(frozen=True)
class PanelMatrix:
    """Units of a matrix, laid out as in panels.py."""

    #: Contiguous uint8.
    data_B: Tensor
    format: PanelFormat
    #: Outputs, or inputs if `transposed`.
    rows: int
    cols: int
    #: The last unit may have fewer.
    rows_per_unit: int
    #: From one unit to the next.
    unit_nbytes: int
    transposed: bool

    def __post_init__(self) -> None:
        if min(self.rows, self.cols) < 0 or self.rows_per_unit < 1:
            raise ValueError(
                f"{self.rows} x {self.cols} weights in {self.format.name} in units of {self.rows_per_unit}"
            )
        if self.data_B.dtype is not torch.uint8 or self.data_B.dim() != 1 or not self.data_B.is_contiguous():
            raise ValueError(f"a quantised matrix of {list(self.data_B.shape)} {self.data_B.dtype}")
        if self.data_B.numel() < self.nbytes or (
            self.units > 1 and self.unit_shape(0).nbytes > self.unit_nbytes
        ):
            raise ValueError(
                f"{self.rows} x {self.cols} weights in {self.format.name} need {self.nbytes} bytes"
            )

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows, self.cols

    @property
    def units(self) -> int:
        return -(-self.rows // self.rows_per_unit)

    @property
    def nbytes(self) -> int:
        """The bytes from the first unit's first byte to the last unit's last byte."""
        last = self.units - 1
        return last * self.unit_nbytes + self.unit_shape(last).nbytes if self.units else 0

    def unit_shape(self, unit: int) -> PanelShape:
        rows = min(self.rows_per_unit, self.rows - unit * self.rows_per_unit)
        return (
            PanelShape(self.format, self.cols, rows)
            if self.transposed
            else PanelShape(self.format, rows, self.cols)
        )

    def tiles(self) -> Iterator[tuple[slice, Tensor]]:
        """Yields outputs and their weights, dequantised exactly: f32 [outputs, cols], or [rows, outputs] if
        `transposed`. A tile takes at most 1 MiB, or is one panel."""
        whole = self.rows // self.rows_per_unit
        if self.transposed:  # inputs go through all units; the last one may be shorter
            parts = [one for one in (range(whole), range(whole, self.units)) if one]
            yield from self._tiles(parts, self.cols, self.rows) if parts else ()
            return
        for unit in range(self.units):
            begin = unit * self.rows_per_unit
            for found, tile in self._tiles([range(unit, unit + 1)], self.unit_shape(unit).outputs, self.cols):
                yield slice(begin + found.start, begin + found.stop), tile

    def _tiles(self, parts: Sequence[range], outputs: int, inputs: int) -> Iterator[tuple[slice, Tensor]]:
        """Yields the outputs of units, whose inputs follow one another. The units of a part are of one shape."""
        step = PANEL * max(1, (1 << 18) // (PANEL * max(1, inputs)))
        for first in range(0, outputs, step):
            tile = np.concatenate([self._values(units, first, step) for units in parts], axis=1)
            yield (
                slice(first, first + len(tile)),
                torch.from_numpy(tile.T.copy() if self.transposed else tile),
            )

    def _values(self, units: range, first: int, count: int) -> Array:
        """Returns outputs [first, first + count) of units of equal shape as f32 [outputs, inputs of all units]."""
        shape, panels = self.unit_shape(units.start), slice(first // PANEL, (first + count) // PANEL)
        bytes_B = self.data_B.numpy()[units.start * self.unit_nbytes :]
        units_UB = np.lib.stride_tricks.as_strided(bytes_B, (len(units), shape.nbytes), (self.unit_nbytes, 1))
        stored = units_UB.reshape(len(units), shape.panels, -1)[:, panels]
        codes = Codes.of_panels(stored.reshape(-1, shape.panel_nbytes), shape)
        values = codes.values().reshape(len(units), -1, shape.inputs).swapaxes(0, 1)
        return np.ascontiguousarray(values[: shape.outputs - first]).reshape(-1, len(units) * shape.inputs)


Weight: TypeAlias = Tensor | PanelMatrix
