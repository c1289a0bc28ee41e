"""Torch tensors as numpy arrays, without a copy: what a collective sends and sums."""

from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from tpiedge.errors import InternalError

F32Array = NDArray[np.float32]
IntArray = NDArray[np.int32 | np.int64]
"""Narrow or wide, see summation.py."""
Summable = NDArray[np.float32 | np.int32 | np.int64]
"""What an all-reduce sums: f32 or integers."""

_F32: Final = frozenset("f")
_SUMMABLE: Final = frozenset(np.dtype(one).char for one in (np.float32, np.int32, np.int64))


def array_of(tensor: torch.Tensor) -> F32Array:
    """The tensor's own memory as an array. InternalError unless it is a contiguous f32 matrix."""
    return _matrix(tensor, _F32, "a collective takes contiguous f32 matrices")


def summable_of(tensor: torch.Tensor) -> Summable:
    """As `array_of`, of f32, int32 or int64."""
    return _matrix(tensor, _SUMMABLE, "an all-reduce takes contiguous f32, int32 or int64 matrices")


def widened(total: Summable, values: Summable) -> Summable:
    """`total` itself, or a copy of int64 where `values` are and it is not."""
    return total if values.itemsize <= total.itemsize else total.astype(values.dtype)


def _matrix(tensor: torch.Tensor, kinds: frozenset[str], takes: str) -> NDArray[Any]:
    try:
        array: NDArray[Any] = tensor.numpy()
    except (TypeError, RuntimeError) as error:
        raise InternalError(f"{takes}: {error}") from None
    # numpy is asked, because every call of torch costs several microseconds between two blocks.
    if array.dtype.char not in kinds or array.ndim != 2 or not array.flags.c_contiguous:
        raise InternalError(f"{takes}, not {tensor.dtype} {tuple(tensor.shape)}")
    return array
