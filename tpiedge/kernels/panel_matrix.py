"""A quantised matrix in main memory, in the form of a pack."""

from collections.abc import Iterator
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
        last = self.units - 1
        needed = max(0, last) * self.unit_nbytes + (self.unit_shape(last).nbytes if self.units else 0)
        if self.data_B.numel() < needed or (self.units > 1 and self.unit_shape(0).nbytes > self.unit_nbytes):
            raise ValueError(f"{self.rows} x {self.cols} weights in {self.format.name} need {needed} bytes")

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows, self.cols

    @property
    def units(self) -> int:
        return -(-self.rows // self.rows_per_unit)

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
        every = range(self.units)
        for units in [every] if self.transposed else [every[unit : unit + 1] for unit in every]:
            outputs = self.cols if self.transposed else self.unit_shape(units[0]).outputs
            inputs, before = (self.rows, 0) if self.transposed else (self.cols, units[0] * self.rows_per_unit)
            step = PANEL * max(1, (1 << 18) // (PANEL * max(1, inputs)))
            for first in range(0, outputs, step) if units else ():
                tile = np.concatenate([self._values(unit, first, step) for unit in units], axis=1)
                found = slice(before + first, before + first + len(tile))
                yield found, torch.from_numpy(tile.T.copy() if self.transposed else tile)

    def _values(self, unit: int, first: int, count: int) -> Array:
        """Returns outputs [first, first + count) of a unit as f32 [outputs, inputs]."""
        shape, data = self.unit_shape(unit), self.data_B.numpy()[unit * self.unit_nbytes :]
        panels = data[: shape.nbytes].reshape(shape.panels, -1)[first // PANEL : (first + count) // PANEL]
        return Codes.of_panels(panels, shape)[: shape.outputs - first].values()


Weight: TypeAlias = Tensor | PanelMatrix
