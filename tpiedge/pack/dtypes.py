"""Converts numbers of checkpoints and packs, in numpy arrays. A bf16 array holds the bits as uint16.

Conversions to bf16 round to the nearest number, ties to even. A NaN stays a NaN. Other conversions are exact.
"""

from typing import Any, Literal, TypeAlias

import numpy as np

from tpiedge.kernels.panels import Array
from tpiedge.pack.specs import Precision

SourceDtype: TypeAlias = Literal["F32", "F16", "BF16"]

STORED: dict[Precision, SourceDtype] = {Precision.F32: "F32", Precision.BF16: "BF16"}

NUMPY: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}
"""Dtype that can be packed -> the numpy dtype that holds it."""

# Conversions go by blocks that fit the cache: twice as fast, and no temporaries of a tensor's size.
_BLOCK = 1 << 15


def f32_from_bf16(bits: Array) -> Array:
    wide = bits.astype(np.uint32)
    wide <<= 16
    return wide.view(np.float32)


def bf16_from_f32(values: Array) -> Array:
    values = np.ascontiguousarray(values)
    bits = np.empty(values.shape, np.uint16)
    flat_in, flat_out = values.reshape(-1), bits.reshape(-1)
    for start in range(0, flat_in.size, _BLOCK):
        part = slice(start, start + _BLOCK)
        block = flat_in[part].astype(np.float32, copy=False)
        raw = block.view(np.uint32)
        rounded = raw >> 16
        rounded &= 1
        rounded += 0x7FFF
        rounded += raw
        rounded >>= 16
        nan = np.isnan(block)
        if nan.any():
            # Rounding could carry a NaN into infinity: keep its upper half and set the quiet bit.
            rounded[nan] = (raw[nan] >> 16) | 0x40
        flat_out[part] = rounded
    return bits


def convert(array: Array, dtype: SourceDtype, precision: Precision) -> Array:
    """Converts an array of `dtype` to its stored form in `precision`. May return `array` itself."""
    target = STORED[precision]
    if dtype == target:
        return array
    if target == "F32":
        return f32_from_bf16(array) if dtype == "BF16" else array.astype(np.float32)
    return bf16_from_f32(array)
