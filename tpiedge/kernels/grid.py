"""Sums quantised row-parallel products as integers, so that the order of summation changes nothing.

Every unit (an attention head, or 128 columns of the FFN) gives a part of the sum. A step is 2**exponent. Every part is
rounded to whole steps. The steps of all units and nodes are added as integers. Their sum is rounded to f32 once. Sums
are int32 if they surely fit, else int64. An int64 sum is NOT_A_NUMBER if one of its parts is NaN or beyond 2**46 steps.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from tpiedge.kernels.library import Pool

NOT_A_NUMBER: Final = -(1 << 63)  # a sum with a part that is NaN or out of range
MOST: Final = 1 << 56  # the largest magnitude of any other int64 sum

_INT32: Final = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Grid:
    """A matrix's grid on one node. A step is 2**exponent. `most` is the largest magnitude of an int32 sum."""

    exponent: int
    most: int = _INT32

    @staticmethod
    def among(exponent: int, nodes: int) -> "Grid":
        return Grid(exponent, _INT32 // nodes)


def sums_of(shape: tuple[int, int], compute: Callable[[Tensor, bool], bool]) -> Tensor:
    """Returns sums that `compute(sums, wide)` fills in. They are int32, or int64 if the first call returns False."""
    sums = torch.empty(shape, dtype=torch.int32)
    if not compute(sums, False):
        sums = torch.empty(shape, dtype=torch.int64)
        compute(sums, True)
    return sums


def widened(sums: Tensor, grid: Grid) -> Tensor:
    """Converts sums to f32 numbers, rounded once."""
    if sums.dtype is torch.int32:
        return sums.float() * 2.0**grid.exponent
    number = (sums >= -MOST) & (sums <= MOST)
    return (sums.float() * 2.0**grid.exponent).masked_fill(~number, torch.nan)


def add_sums(x_TH: Tensor, sums_TH: Tensor, grid: Grid, pool: Pool | None) -> None:
    """Adds `sums_TH` (int32 or int64) to `x_TH` (f32), both contiguous."""
    if pool is None:
        x_TH += widened(sums_TH, grid)
        return
    wide = sums_TH.dtype is torch.int64
    if (
        x_TH.dtype is not torch.float32
        or not (wide or sums_TH.dtype is torch.int32)
        or x_TH.shape != sums_TH.shape
        or not (x_TH.is_contiguous() and sums_TH.is_contiguous() and x_TH.is_cpu and sums_TH.is_cpu)
    ):
        raise ValueError(
            f"sums {list(sums_TH.shape)} {sums_TH.dtype} do not fit f32 {list(x_TH.shape)} {x_TH.dtype}"
        )
    pool.dll.tpiedge_add_sums(x_TH.data_ptr(), sums_TH.data_ptr(), x_TH.numel(), grid.exponent, wide)
