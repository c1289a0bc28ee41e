"""A quantised matrix in main memory, in the form of a pack."""

from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from tpiedge.kernels.panels import PanelFormat, PanelShape


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


Weight: TypeAlias = Tensor | PanelMatrix
