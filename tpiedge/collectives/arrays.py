"""Between torch tensors, numpy arrays and frames, without a copy where none is needed."""

from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from tpiedge.errors import InternalError, Misconduct
from tpiedge.transport.endpoint import Envelope
from tpiedge.wire.flat import FLAT_BYTES
from tpiedge.wire.tensors import TensorHeader

__all__ = ["Array", "array_of", "frame_array", "header_of", "read_array"]

Array = NDArray[np.float32]


def array_of(tensor: torch.Tensor) -> Array:
    """The tensor's own memory as an array. InternalError unless it is a contiguous f32 matrix."""
    try:
        array: Array = tensor.numpy()
    except (TypeError, RuntimeError) as error:
        raise InternalError(f"a collective takes contiguous f32 matrices: {error}") from None
    # numpy is asked, because every call of torch costs several microseconds between two blocks.
    if array.dtype.char != "f" or array.ndim != 2 or not array.flags.c_contiguous:
        raise InternalError(
            f"a collective takes contiguous f32 matrices, not {tensor.dtype} {tuple(tensor.shape)}"
        )
    return array


def header_of(array: Array) -> TensorHeader:
    return _header(array.shape)


@lru_cache(maxsize=64)
def _header(shape: tuple[int, ...]) -> TensorHeader:
    return TensorHeader("f32", shape)


def read_array(envelope: Envelope, rank: int, shape: tuple[int, ...] | None) -> Array:
    """The tensor that came with a message, read-only, in the received bytes. Raises Misconduct.

    `shape` is what it must be; None allows any matrix.
    """
    header = envelope.message.tensor  # type: ignore[union-attr]
    if header is None or header.dtype != "f32" or len(header.shape) != 2 or shape not in (None, header.shape):
        raise Misconduct(rank, f"node {rank} sent {header} where an f32 tensor of shape {shape} belongs")
    frame = envelope.tensors[0]
    if not frame.nbytes:
        return np.empty(header.shape, np.float32)
    return np.frombuffer(frame, np.float32).reshape(header.shape)


def frame_array(frame: memoryview | bytearray, shape: tuple[int, ...]) -> Array:
    """The tensor of `shape` behind the header of a frame that is known to be so long, in the frame's memory."""
    return np.ndarray(shape, np.float32, frame, FLAT_BYTES)
