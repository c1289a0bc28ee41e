"""The integers in which sums of quantised row-parallel products are kept, so that no order of summation changes them.

Every unit's part of such a product (of an attention head, or of 128 columns of the FFN) is folded in f32 and rounded
to a multiple of 2**exponent, which is the same for all nodes. These multiples are added as integers: within a node,
over nodes, in any order and any brackets, with one result. It is rounded to f32 once, where it meets the residual
stream.

Sums are int32 where they are known to fit, also when those of all nodes are added, and int64 where they may not: the
integers are the same. In int64 a part may be of 2**46 steps; what is beyond, or no number, makes the sum NOT_A_NUMBER.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from tpiedge.kernels.library import Pool

#: What becomes of a sum one of whose parts is no number, or out of all range.
NOT_A_NUMBER: Final = -(1 << 63)
#: What else a sum may be in 64 bits, in magnitude.
MOST: Final = 1 << 56

_INT32: Final = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Grid:
    """That of one matrix, for one node among some: sums count steps of 2**exponent, and those of this node are at most
    `most` in magnitude where they are int32."""

    exponent: int
    most: int = _INT32

    @staticmethod
    def among(exponent: int, nodes: int) -> "Grid":
        """For one of `nodes` nodes, whose int32 sums added up are int32, too."""
        return Grid(exponent, _INT32 // nodes)


def sums_of(shape: tuple[int, int], compute: Callable[[Tensor, bool], bool]) -> Tensor:
    """int32, or int64 where that is not enough: what `compute(sums, wide)` puts there; it says whether it was."""
    sums = torch.empty(shape, dtype=torch.int32)
    if not compute(sums, False):
        sums = torch.empty(shape, dtype=torch.int64)
        compute(sums, True)
    return sums


def widened(sums: Tensor, grid: Grid) -> Tensor:
    """f32: sums as numbers, rounded once."""
    if sums.dtype is torch.int32:
        return sums.float() * 2.0**grid.exponent
    number = (sums >= -MOST) & (sums <= MOST)
    return (sums.float() * 2.0**grid.exponent).masked_fill(~number, torch.nan)


def add_sums(x_TH: Tensor, sums_TH: Tensor, grid: Grid, pool: Pool | None) -> None:
    """x += sums, both contiguous and of one shape, x in f32 and sums in int32 or int64."""
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
