"""Quantises numbers to panels in q4 or q8 (panels.py). No torch.

A scale covers 32 inputs of an output (docs/kernels.md). Quantising again does not change numbers from panels or from
GGUF's Q4_0 or Q8_0. Scales below 2^-14 are an exception.
"""

import math
from dataclasses import dataclass

import numpy as np

from tpiedge.errors import UserError
from tpiedge.kernels.panels import Array, PanelShape
from tpiedge.kernels.shared_library import KernelLibrary, kernel_library, why_missing

_KINDS = {np.dtype(np.float32): 0, np.dtype(np.float16): 1, np.dtype(np.uint16): 2}


class CannotQuantise(ValueError):
    """A weight of `output` is NaN, infinite or too large for a scale."""

    def __init__(self, output: int, reason: str) -> None:
        super().__init__(f"output {output} {reason}")
        self.output = output
        self.reason = reason


@dataclass(frozen=True)
class QuantisationError:
    """`signal` is the sum of the squared weights, `noise` of the squared errors."""

    signal: float = 0.0
    noise: float = 0.0

    def __add__(self, other: "QuantisationError") -> "QuantisationError":
        return QuantisationError(self.signal + other.signal, self.noise + other.noise)

    @property
    def sqnr_db(self) -> float:
        """The ratio of signal to noise in dB, infinite without noise."""
        if self.noise == 0:
            return math.inf
        return 10 * math.log10(self.signal / self.noise) if self.signal else -math.inf


def quantise_unit(
    values_OI: Array, shape: PanelShape, search: bool = True, out: Array | None = None
) -> tuple[Array, QuantisationError]:
    """Quantises `values_OI` (f32, f16, or bf16 as uint16) to panels. `out`: memory for the panels. `search`: whether to
    try several scales for q4 and keep the best scale. Releases the GIL. Raises CannotQuantise, UserError."""
    if values_OI.shape != (shape.outputs, shape.inputs) or values_OI.dtype not in _KINDS or shape.inputs < 1:
        raise ValueError(
            f"{values_OI.dtype}{list(values_OI.shape)} for {shape.outputs} x {shape.inputs} weights"
        )
    found = np.empty(shape.nbytes, np.uint8) if out is None else out
    if found.dtype != np.uint8 or found.shape != (shape.nbytes,) or not found.flags.c_contiguous:
        raise ValueError(f"{found.dtype}{list(found.shape)} for panels of {shape.nbytes} bytes")
    library = kernel_library()
    if library is None:
        raise UserError(
            f"weights in q8 and q4 need native kernels, which {why_missing()}; or choose --precision bf16"
        )
    values_OI = values_OI if values_OI.strides[1] == values_OI.itemsize else np.ascontiguousarray(values_OI)
    error = _native_quantise(library, values_OI, shape, search, found)
    if error is None:
        raise _refusal(values_OI, shape.format.bits)
    return found, error


def _refusal(values_OI: Array, bits: int) -> CannotQuantise:
    for output, stored in enumerate(values_OI):
        bf16 = stored.dtype == np.uint16
        row = (stored.astype(np.uint32) << 16).view(np.float32) if bf16 else stored.astype(np.float32)
        largest = np.abs(row).max()
        if not np.isfinite(row).all():
            return CannotQuantise(output, "has a weight that is not a finite number")
        if largest / (127 if bits == 8 else 8) >= 65520:  # f16 rounds it to infinity
            return CannotQuantise(output, f"has a weight of {largest:.3g}, too large for a scale in f16")
    raise AssertionError("all outputs can be quantised")


def _native_quantise(
    library: KernelLibrary, values_OI: Array, shape: PanelShape, search: bool, out: Array
) -> QuantisationError | None:
    sums = np.zeros(2)
    refused = library.dll.tpiedge_quantise(
        # As in quantise.cpp: 0 any, 1 AVX2, 2 AVX512.
        2 if library.isa.startswith("avx512") else 1 if library.isa.startswith("avx2") else 0,
        values_OI.ctypes.data,
        _KINDS[values_OI.dtype],
        values_OI.strides[0] // values_OI.itemsize,
        shape.outputs,
        shape.inputs,
        shape.format.bits,
        search,
        out.ctypes.data,
        sums.ctypes.data,
    )
    return None if refused else QuantisationError(float(sums[0]), float(sums[1]))
