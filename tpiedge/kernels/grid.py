"""Sums quantised row-parallel products as integers, so that the order of summation changes nothing.

Every unit (an attention head, or 128 columns of the FFN) gives a part of the sum. A step is 2**exponent. Every part is
rounded to whole steps. The steps of all units and nodes are added as integers. Their sum is rounded to f32 once. Sums
are int32 if they surely fit, else int64. An int64 sum is NOT_A_NUMBER if one of its parts is NaN or beyond 2**46 steps.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import torch
from torch import Tensor

from tpiedge.kernels.elementwise import rms_norm
from tpiedge.kernels.library import Pool, address, check_f32

NOT_A_NUMBER: Final = -(1 << 63)  # a sum with a part that is NaN or out of range
MOST_OF_A_PART: Final = 1 << 46
MOST: Final = 1 << 56  # the largest magnitude of any other int64 sum

_INT32: Final = (1 << 31) - 1
_END: Final = struct.Struct("=2q3d2q")


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


@dataclass(frozen=True, eq=False)
class BlockEnd:
    """Ends a block of width H with x = scale * (x + factor * norm(y + bias)), each operation rounded to f32. y is the
    block's sum. A block of two sums has norms of `parts`: y = norm(first sum) + norm(second sum).

    `norm_H` is the weight of an RMS norm, as are `parts`. None leaves out the bias or the norm. The tensors are
    contiguous f32 that must not move.
    """

    bias_H: Tensor | None = None
    norm_H: Tensor | None = None
    eps: float = 0.0
    factor: float = 1.0
    scale: float = 1.0
    parts: tuple[Tensor, Tensor] | None = None

    @property
    def sums(self) -> int:
        return 1 if self.parts is None else 2

    @cached_property
    def packed(self) -> bytes:
        """The bytes of BlockEnd in native/interface.h."""
        bias, norm, *parts = map(address, (self.bias_H, self.norm_H, *(self.parts or (None, None))))
        return _END.pack(bias, norm, self.eps, self.factor, self.scale, *parts)

    def check(self, width: int) -> None:
        """Raises ValueError unless bias and norms have `width` numbers."""
        norms = (("norm", norm_H) for norm_H in (self.norm_H, *(self.parts or ())))
        for name, x_H in (("bias", self.bias_H), *norms):
            if x_H is not None:
                check_f32(f"the {name} at a block's end", x_H, (width,))


PLAIN_END: Final = BlockEnd()


def add_sums(
    x_TH: Tensor, sums_TH: Tensor, grid: Grid | None, pool: Pool | None, end: BlockEnd = PLAIN_END
) -> None:
    """Ends a block: changes `x_TH` (f32) by `sums_TH`, which is int32 or int64 in steps of `grid`, or f32 without a
    grid. The rows of a second sum follow those of the first one. Both tensors are contiguous. Raises ValueError."""
    end.check(x_TH.shape[-1])
    kinds = (torch.float32,) if grid is None else (torch.int32, torch.int64)
    if (
        x_TH.dtype is not torch.float32
        or sums_TH.dtype not in kinds
        or (end.sums * x_TH.shape[0], *x_TH.shape[1:]) != sums_TH.shape
        or not (x_TH.is_contiguous() and sums_TH.is_contiguous() and x_TH.is_cpu and sums_TH.is_cpu)
    ):
        raise ValueError(
            f"sums {list(sums_TH.shape)} {sums_TH.dtype} do not fit f32 {list(x_TH.shape)} {x_TH.dtype}"
        )
    if pool is not None:
        scratch = None if end.norm_H is None and end.parts is None else torch.empty(sums_TH.shape)
        exponent, kind = (0, 2) if grid is None else (grid.exponent, kinds.index(sums_TH.dtype))
        of_sums = sums_TH.data_ptr(), *x_TH.shape, exponent, kind
        pool.call("tpiedge_add_sums", x_TH.data_ptr(), *of_sums, end.packed, address(scratch))
        return
    y_TH = sums_TH if grid is None else widened(sums_TH, grid)
    if end.parts is not None:
        first_TH, second_TH = map(rms_norm, y_TH.chunk(2), end.parts, (end.eps, end.eps))
        y_TH = first_TH + second_TH
    if end.bias_H is not None:
        y_TH = y_TH + end.bias_H
    if end.norm_H is not None:
        y_TH = rms_norm(y_TH, end.norm_H, end.eps)
    x_TH += y_TH if end.factor == 1 else y_TH * end.factor
    if end.scale != 1:
        x_TH *= end.scale
