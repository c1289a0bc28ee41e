"""Sums the collectives' tensors in the order of ranks.

A part of integers is narrow (int32) or wide (int64). The sum is wide if any part is wide. A narrow part's numbers are
at most (2^31 - 1) // ranks. A wide part's numbers are at most LARGEST. So no sum overflows. A larger number in a wide
part counts as not finite. A sum with such a number is NOT_A_NUMBER.
"""

from collections.abc import Mapping
from math import isfinite
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from tpiedge.errors import InternalError, Misconduct, ProtocolError
from tpiedge.kernels.grid import MOST as LARGEST
from tpiedge.kernels.grid import NOT_A_NUMBER

F32Array = NDArray[np.float32]
IntArray = NDArray[np.int32 | np.int64]
"""Narrow or wide integers."""
Summable = NDArray[np.float32 | np.int32 | np.int64]
"""f32 or integers."""

SUMMABLE: Final = frozenset(np.dtype(one).char for one in (np.float32, np.int32, np.int64))
_TAKES: Final = "a collective takes contiguous f32 matrices, an all-reduce those of int32 and int64 as well"


def array_of(tensor: torch.Tensor, kinds: frozenset[str] = frozenset("f")) -> NDArray[Any]:
    """Returns the tensor's own memory. Raises InternalError unless it is contiguous and 2-D."""
    try:
        array: NDArray[Any] = tensor.numpy()
    except (TypeError, RuntimeError) as error:
        raise InternalError(f"{_TAKES}: {error}") from None
    # Asked of numpy: every call of torch costs several microseconds between two blocks.
    if array.dtype.char not in kinds or array.ndim != 2 or not array.flags.c_contiguous:
        raise InternalError(f"{_TAKES}, not {tensor.dtype} {tuple(tensor.shape)}")
    return array


def widened(total: Summable, values: Summable) -> Summable:
    """Returns `total`, or an int64 copy if `values` are wider."""
    return total if values.itemsize <= total.itemsize else total.astype(values.dtype)


def is_finite(array: Summable, *, part: bool = False) -> bool:
    """Whether all values are finite. `part`: `array` is a part, not a sum."""
    if array.dtype.kind == "f":
        # A sum is cheaper than testing every element; if it overflows the elements decide.
        return isfinite(np.add.reduce(array, None)) or bool(np.isfinite(array).all())
    if array.dtype == np.int32 or not array.size:
        return True
    largest = LARGEST if part else -NOT_A_NUMBER - 1
    return int(array.min()) >= -largest and int(array.max()) <= largest


Parts = Mapping[int, Summable | None]
"""Maps each rank to its part (None: no part)."""


def ordered_sum(parts: Parts, out: Summable) -> Summable:
    """Returns ((p0 + p1) + p2) + ..., in `out` or a wider copy. Call it within `np.errstate(over="ignore",
    invalid="ignore")`."""
    total: Summable | None = None
    given = [part for _, part in sorted(parts.items()) if part is not None]
    for part in given:
        out = widened(out, part)
        total = part if total is None else np.add(total, part, out)
    if total is None:
        out.fill(0)
    elif total is not out:
        np.copyto(out, total)
    for part in given if out.dtype == np.int64 else ():
        if not is_finite(part, part=True):
            out[(part < -LARGEST) | (part > LARGEST)] = NOT_A_NUMBER
    return out


def check_sum(total: Summable, parts: Parts, what: object, adds: int | None = None) -> None:
    """Raises Misconduct or ProtocolError for a sum that is not finite. If `adds` (the rank that adds) is given, the
    error is never Misconduct."""
    if is_finite(total):
        return
    given = {rank: part for rank, part in sorted(parts.items()) if part is not None}
    faulty = [rank for rank, part in given.items() if not is_finite(part, part=True)]
    if not faulty:
        raise ProtocolError(f"the sum of {what} overflows {'f32' if total.dtype.kind == 'f' else 'int64'}")
    if adds is not None:
        names = " and ".join(f"node {rank}" for rank in faulty)
        raise ProtocolError(
            f"the sum of {what} is not finite where node {adds} adds it up: {names} contributed a value that "
            "is not finite; run it with --collective star to learn which node is at fault"
        )
    if faulty[0] == 0 and len(faulty) == len(given) > 1:
        # Rank 0 is trusted: its inputs had such values already.
        raise ProtocolError(f"every node contributed a value that is not finite to {what}")
    raise Misconduct(faulty[0], f"node {faulty[0]} contributed a value that is not finite to {what}")
