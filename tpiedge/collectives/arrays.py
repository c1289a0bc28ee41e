"""Between torch tensors, numpy arrays and frames, without a copy where none is needed."""

from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from tpiedge.errors import InternalError
from tpiedge.wire.tensors import TensorHeader

__all__ = ["F32Array", "array_of", "header_of"]

F32Array = NDArray[np.float32]


def array_of(tensor: torch.Tensor) -> F32Array:
    """The tensor's own memory as an array. InternalError unless it is a contiguous f32 matrix."""
    try:
        array: F32Array = tensor.numpy()
    except (TypeError, RuntimeError) as error:
        raise InternalError(f"a collective takes contiguous f32 matrices: {error}") from None
    # numpy is asked, because every call of torch costs several microseconds between two blocks.
    if array.dtype.char != "f" or array.ndim != 2 or not array.flags.c_contiguous:
        raise InternalError(
            f"a collective takes contiguous f32 matrices, not {tensor.dtype} {tuple(tensor.shape)}"
        )
    return array


def header_of(array: F32Array) -> TensorHeader:
    return _header(array.shape)


@lru_cache(maxsize=64)
def _header(shape: tuple[int, ...]) -> TensorHeader:
    return TensorHeader("f32", shape)
