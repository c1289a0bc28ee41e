"""Integers as summands: quantised models compute their parts on a grid, whose sum no order and no split changes.

Laws: a part is narrow (int32) or wide (int64), as its values need, and each rank decides for itself. The sum is wide
where a part is. The magnitudes of narrow parts are at most (2^31 - 1) // size, of wide ones LARGEST: no sum overflows,
and whoever breaks the law gets one that wraps around. A larger value of a wide part is not finite; NOT_A_NUMBER stands
where there is no number, or too large a one. A sum has it wherever a part was not finite, as one of f32 has NaN.
"""

import numpy as np

from tpiedge.collectives.arrays import Summable
from tpiedge.kernels.grid import MOST as LARGEST
from tpiedge.kernels.grid import NOT_A_NUMBER

__all__ = ["LARGEST", "NOT_A_NUMBER", "all_finite", "mark_not_finite"]


def all_finite(array: Summable, ranks: int | None = None) -> bool:
    """Of integers: of a part that may be the sum of those of `ranks` ranks; None: of a sum whose parts were marked."""
    if array.dtype == np.int32 or not array.size:
        return True
    largest = _largest(ranks)
    return int(array.min()) >= -largest and int(array.max()) <= largest


def mark_not_finite(total: Summable, part: Summable, ranks: int) -> None:
    """Write NOT_A_NUMBER into `total` wherever `part` is not finite."""
    if not all_finite(part, ranks):
        largest = _largest(ranks)
        total[(part < -largest) | (part > largest)] = NOT_A_NUMBER


def _largest(ranks: int | None) -> int:
    beyond = -NOT_A_NUMBER
    return beyond - 1 if ranks is None else min(ranks * LARGEST, beyond - 1)
