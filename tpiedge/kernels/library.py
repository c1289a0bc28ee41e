"""Owns the native kernels' threads, and checks and packs the kernels' arguments. Without a Pool, torch computes
everything. With a Pool, torch computes only two things: f32 and bf16 products of more than NATIVE_TOKENS tokens, and
attention of heads wider than MAX_HEAD_WIDTH."""

import struct
import weakref
from typing import Final

import torch
from torch import Tensor

from tpiedge.kernels.panel_matrix import PanelMatrix
from tpiedge.kernels.shared_library import ISAS, KernelLibrary

#: The native kernels multiply up to this many tokens with f32 and bf16 matrices; for more tokens torch is faster.
NATIVE_TOKENS: Final = 16
# The most products of one call (native/interface.cpp).
MAX_PRODUCTS: Final = 4
NO_WINDOW: Final = 1 << 62  # the window of attention that sees all earlier positions
F32_BYTES: Final = 4

# One weight of a product: w, y, is bf16, stride, rows.
_WEIGHT = struct.Struct("=5q")
# A quantised weight: data, y, format, bytes from one unit to the next, rows, cols, rows of a unit, bias; exponent and
# `most` of the grid; floats from one row of y to the next.
_PANELS = struct.Struct("=11q")
#: Packed in place of a matrix that there is not.
NO_MATRIX: Final = bytes(_WEIGHT.size)
NO_PANELS: Final = bytes(_PANELS.size)
# As the statuses in native/interface.h.
_NO_MEMORY, _TOO_LARGE = 1, 2


class Pool:
    """Native threads that help the calling thread. Concurrent calls wait for each other. Callers must check
    addresses."""

    def __init__(self, library: KernelLibrary, threads: int) -> None:
        self.dll = library.dll
        handle = self.dll.tpiedge_open(threads, ISAS.index(library.isa))
        if not handle:
            raise RuntimeError(f"cannot start {threads - 1} threads for the native kernels")
        self._handle: int | None = handle
        self._finalizer = weakref.finalize(self, self.dll.tpiedge_close, handle)

    def close(self) -> None:
        self._handle = None
        self._finalizer()

    def call(self, function: str, *arguments: object) -> bool:
        """Calls a native function. Returns False if int32 sums may overflow. Raises MemoryError."""
        if self._handle is None:
            raise RuntimeError("the native threads were closed")
        status: int | None = getattr(self.dll, function)(self._handle, *arguments)
        if status == _NO_MEMORY:
            raise MemoryError("no memory for the native kernels' intermediate results")
        return status != _TOO_LARGE


def check_f32(what: str, x: Tensor, shape: tuple[int, ...], *, contiguous: bool = True) -> None:
    """Raises ValueError unless `x` is f32 of this shape in main memory."""
    if (
        x.shape != shape
        or x.dtype is not torch.float32
        or not x.is_cpu
        or (contiguous and not x.is_contiguous())
    ):
        raise ValueError(
            f"{what}: {list(x.shape)} {x.dtype} with strides {x.stride()} on {x.device}, not "
            f"{'contiguous ' if contiguous else ''}f32 {list(shape)} in main memory"
        )


def pack_matrix(w: Tensor, y: int, rows: int) -> bytes:
    """Packs an f32 or bf16 matrix. `y` is the address for its products."""
    return _WEIGHT.pack(w.data_ptr(), y, w.dtype is torch.bfloat16, w.stride(0), rows)


def pack_inputs(inputs_TF: Tensor) -> bytes:
    """Packs f32 numbers that take the place of a matrix's products."""
    return _WEIGHT.pack(0, inputs_TF.data_ptr(), False, inputs_TF.stride(0), inputs_TF.shape[1])


def address(x: Tensor | None) -> int:
    """Returns where a tensor's numbers lie, or 0."""
    return 0 if x is None else x.data_ptr()


def pack_panels(
    w: PanelMatrix, y: int = 0, bias_R: Tensor | None = None, y_stride: int | None = None
) -> bytes:
    """Packs a column-parallel matrix. `y`: the address of its products. `y_stride`: the number of floats from one row
    of products to the next. `bias_R`: contiguous f32 that must not move."""
    return _packed(w, y, address(bias_R), 0, 0, w.rows if y_stride is None else y_stride)


def pack_row_parallel(w: PanelMatrix, exponent: int, most: int, y: int = 0) -> bytes:
    return _packed(w, y, 0, exponent, most, 0)


def _packed(w: PanelMatrix, y: int, *rest: int) -> bytes:
    return _PANELS.pack(
        w.data_B.data_ptr(), y, w.format.number, w.unit_nbytes, w.rows, w.cols, w.rows_per_unit, *rest
    )
