"""Numbers as checkpoints and packs store them, held by numpy.

numpy has no bf16: an array of bf16 is a uint16 array of its bits. Everything here is exact but f32 -> bf16
and f16 -> bf16, which round to the nearest, ties to even; a NaN stays a NaN.
"""

from typing import Any, Literal, TypeAlias

import numpy as np

from tpiedge.kernels.panels import Array
from tpiedge.pack.specs import Precision

SourceDtype: TypeAlias = Literal["F32", "F16", "BF16"]

#: Of the precisions that are not quantised.
STORED: dict[Precision, SourceDtype] = {Precision.F32: "F32", Precision.BF16: "BF16"}

# Conversions go by blocks that fit the cache: twice as fast, and no temporaries of a tensor's size.
_BLOCK = 1 << 15
_NUMPY: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}


def numpy_dtype(dtype: str) -> np.dtype[Any]:
    """The array type that holds `dtype`. Raises KeyError for anything but F32, F16 and BF16."""
    return _NUMPY[dtype]


def f32_from_bf16(bits: Array) -> Array:
    """uint16 bits of bf16 -> float32, exactly."""
    wide = bits.astype(np.uint32)
    wide <<= 16
    return wide.view(np.float32)


def bf16_from_f32(values: Array) -> Array:
    """float32 or float16 -> uint16 bits of the nearest bf16."""
    values = np.ascontiguousarray(values)
    bits = np.empty(values.shape, np.uint16)
    flat_in, flat_out = values.reshape(-1), bits.reshape(-1)
    for start in range(0, flat_in.size, _BLOCK):
        part = slice(start, start + _BLOCK)
        flat_out[part] = _round_block(flat_in[part].astype(np.float32, copy=False))
    return bits


def convert(array: Array, dtype: SourceDtype, precision: Precision) -> Array:
    """An array of `dtype` -> the array that stores it in `precision`; itself where nothing changes."""
    target = STORED[precision]
    if dtype == target:
        return array
    if target == "F32":
        return f32_from_bf16(array) if dtype == "BF16" else array.astype(np.float32)
    return bf16_from_f32(array)


def _round_block(values: Array) -> Array:
    raw = values.view(np.uint32)
    rounded = raw >> 16
    rounded &= 1
    rounded += 0x7FFF
    rounded += raw
    rounded >>= 16
    nan = np.isnan(values)
    if nan.any():
        # Rounding could carry a NaN into infinity: keep its upper half and set the quiet bit.
        rounded[nan] = (raw[nan] >> 16) | 0x40
    return rounded.astype(np.uint16)
