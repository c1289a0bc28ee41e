"""The blocks in which GGUF files store weights.

A row is a whole number of blocks. Q4_0: 32 weights, an f16 scale d, then 16 bytes, byte j with the code of weight j in
its lower four bits and that of weight 16 + j in its upper four; the weight is d * (code - 8). Q8_0: an f16 scale d and
32 signed bytes; the weight is d * byte. These are the numbers of a pack's q4 and q8. Other quantised blocks become f32
here by the `gguf` package, whose numpy code is their reference.
"""

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from tpiedge.kernels.panels import GROUP
from tpiedge.pack.dtypes import Array, SourceDtype, numpy_dtype
from tpiedge.pack.sources.codes import Codes

_PLAIN: Mapping[str, SourceDtype] = MappingProxyType({"F32": "F32", "F16": "F16", "BF16": "BF16"})

BLOCKS: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        "F32": (1, 4), "F16": (1, 2), "BF16": (1, 2),
        "Q4_0": (32, 18), "Q4_1": (32, 20), "Q5_0": (32, 22), "Q5_1": (32, 24), "Q8_0": (32, 34),
        "Q2_K": (256, 84), "Q3_K": (256, 110), "Q4_K": (256, 144), "Q5_K": (256, 176), "Q6_K": (256, 210),
        "IQ4_NL": (32, 18), "IQ4_XS": (256, 136),
    }
)  # fmt: skip
"""Type -> (weights, bytes) of a block."""

EXACT_BITS: Mapping[str, int] = MappingProxyType({"Q4_0": 4, "Q8_0": 8})
"""Type -> the bits of the pack's weights that hold it without a loss."""


def block_dtype(kind: str) -> SourceDtype:
    """The dtype of the numbers that `decode_blocks` gives."""
    return _PLAIN.get(kind, "F32")


def decode_blocks(kind: str, raw_RB: Array) -> Array:
    """uint8 [rows, bytes of whole blocks] -> the weights [rows, cols], F32, F16 or bits of BF16."""
    if kind in _PLAIN:
        plain: Array = raw_RB.view(numpy_dtype(kind))
        return plain
    if kind in EXACT_BITS:
        codes = _codes(kind, raw_RB)
        return codes.values()
    from gguf import GGMLQuantizationType  # slow to import, and seldom needed
    from gguf.quants import dequantize

    with np.errstate(all="ignore"):  # a damaged file has any scale
        values: Array = dequantize(raw_RB, GGMLQuantizationType[kind])
    return values


def block_codes(kind: str, raw_RB: Array, bits: int) -> Codes | None:
    """The same weights as integers of `bits` bits with a scale per 32; None where the type has no such numbers."""
    if kind not in EXACT_BITS or EXACT_BITS[kind] > bits:
        return None
    codes = _codes(kind, raw_RB)
    if codes.bits == bits:
        return codes
    return Codes(8, codes.codes_OI + np.uint8(128 - 8), codes.scales_OG)


def _codes(kind: str, raw_RB: Array) -> Codes:
    rows = raw_RB.shape[0]
    blocks = raw_RB.reshape(rows, -1, BLOCKS[kind][1])
    scales = np.ascontiguousarray(blocks[:, :, :2]).view("<f2").reshape(rows, -1)
    data = blocks[:, :, 2:]
    if kind == "Q8_0":
        return Codes(8, (data ^ np.uint8(128)).reshape(rows, -1), scales)
    halves = np.concatenate((data & np.uint8(15), data >> np.uint8(4)), axis=2)
    return Codes(4, halves.reshape(rows, -1, GROUP).reshape(rows, -1), scales)
