"""The native kernels: finding, loading and calling the shared library (`native/`, C interface, ctypes)."""

import ctypes
import functools
import importlib.machinery
import logging
import os
import struct
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

__all__ = ["ISAS", "MAX_HEAD_WIDTH", "MAX_PRODUCTS", "NATIVE_TOKENS", "Library", "Pool", "native_library"]

_ABI = 4
# Up to this many tokens the native kernels compute; torch's products are faster for more.
NATIVE_TOKENS = 16
# The order is the C side's numbering (native/interface.cpp).
ISAS = ("portable", "avx2", "avx512")

# Of one call of Pool.project, and of a head (native/interface.cpp, native/kernels.h).
MAX_PRODUCTS = 4
MAX_HEAD_WIDTH = 256

_F32_BYTES = 4
# One weight of a product: w, y, is bf16, stride, rows.
_WEIGHT = struct.Struct("=5q")
_NO_WINDOW = 1 << 62

_int, _float, _size, _pointer = ctypes.c_int, ctypes.c_float, ctypes.c_int64, ctypes.c_void_p
_ROWS = [_pointer, _pointer, _pointer, _size, _size, _size, _size, _size]
_SIGNATURES: dict[str, tuple[list[Any], Any]] = {
    "tpiedge_has_isa": ([_int], _int),
    "tpiedge_best_isa": ([], _int),
    "tpiedge_open": ([_int, _int], _pointer),
    "tpiedge_close": ([_pointer], None),
    "tpiedge_project": ([_pointer, _pointer, _size, _size, ctypes.c_char_p, _size], None),
    "tpiedge_contract": ([_pointer, _pointer, ctypes.c_char_p, _size, _size], None),
    "tpiedge_ffn": (
        [_pointer, _pointer, _size, _size, _pointer, _float, _int, ctypes.c_char_p, _size, _pointer],
        None,
    ),
    "tpiedge_rms_norm": ([*_ROWS, _pointer, _float], None),
    "tpiedge_rope": ([*_ROWS, _pointer, _pointer, _size], None),
    "tpiedge_crc32": ([_pointer, _size, ctypes.c_uint32], ctypes.c_uint32),
    "tpiedge_swiglu": ([_pointer, _pointer, _pointer, _pointer, _size], None),
    "tpiedge_attention": (
        [_pointer, _pointer, _pointer, _pointer, _pointer, _int, ctypes.c_char_p, *[_size] * 10, _float],
        None,
    ),
}

_log = logging.getLogger(__name__)


class Library:
    """The loaded shared library, computing with one instruction set (`isa` of ISAS; the best by default)."""

    def __init__(self, dll: ctypes.CDLL, isa: str | None = None) -> None:
        self.dll = dll
        self.isa = ISAS[dll.tpiedge_best_isa()] if isa is None else isa
        if self.isa not in ISAS or not dll.tpiedge_has_isa(ISAS.index(self.isa)):
            raise ValueError(f"this CPU or build of the kernels has no {self.isa}")

    def open_pool(self, threads: int) -> "Pool":
        """Start threads - 1 threads."""
        return Pool(self.dll, ISAS.index(self.isa), threads)


class Pool:
    """Native threads that compute together with the caller, and what else is native. One call at a time.

    The methods read and write raw memory: the modules of this package check what they pass on. All f32 tensors
    are contiguous where no stride is named.
    """

    def __init__(self, dll: ctypes.CDLL, isa: int, threads: int) -> None:
        handle = dll.tpiedge_open(threads, isa)
        if not handle:
            raise RuntimeError(f"cannot start {threads - 1} threads for the native kernels")
        self._dll = dll
        self._open: int | None = handle
        self._finalizer = weakref.finalize(self, dll.tpiedge_close, handle)

    def close(self) -> None:
        """End the threads. May be called again."""
        self._open = None
        self._finalizer()

    @property
    def _handle(self) -> int:
        if self._open is None:
            raise RuntimeError("the native threads were closed")
        return self._open

    def project(self, x_TI: Tensor, weights: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        """y = x @ w.T of each weight [R, I] (rows at a stride, f32 or bf16), up to MAX_PRODUCTS."""
        packed = b"".join(_weight(w, y.data_ptr(), y.shape[1]) for w, y in zip(weights, outputs, strict=True))
        tokens, cols = x_TI.shape
        self._dll.tpiedge_project(self._handle, x_TI.data_ptr(), tokens, cols, packed, len(weights))

    def contract(self, x_TR: Tensor, w_RO: Tensor, y_TO: Tensor) -> None:
        """y = x @ w."""
        rows, cols = w_RO.shape
        packed = _weight(w_RO, y_TO.data_ptr(), rows)
        self._dll.tpiedge_contract(self._handle, x_TR.data_ptr(), packed, x_TR.shape[0], cols)

    def ffn(
        self,
        x_TH: Tensor,
        norm_H: Tensor,
        eps: float,
        weights: tuple[Tensor, Tensor, Tensor],
        rounds: bool,
        y_TO: Tensor,
    ) -> None:
        """Norm, gate and up, SwiGLU, down; `rounds`: the products' inputs to bf16."""
        gate_FH, up_FH, down_FO = weights
        tokens, hidden = x_TH.shape
        rows, cols = down_FO.shape
        scratch = torch.empty(tokens * (hidden + 2 * rows))
        gate = scratch.data_ptr() + _F32_BYTES * tokens * hidden
        packed = (
            _weight(gate_FH, gate, rows)
            + _weight(up_FH, gate + _F32_BYTES * tokens * rows, rows)
            + _weight(down_FO, y_TO.data_ptr(), rows)
        )
        self._dll.tpiedge_ffn(
            self._handle,
            x_TH.data_ptr(),
            tokens,
            hidden,
            norm_H.data_ptr(),
            eps,
            rounds,
            packed,
            cols,
            scratch.data_ptr(),
        )

    def rms_norm(self, x_TNd: Tensor, weight_d: Tensor, eps: float, y_TNd: Tensor) -> None:
        """x may be strided but in its last dimension."""
        self._dll.tpiedge_rms_norm(self._handle, *_rows(x_TNd, y_TNd), weight_d.data_ptr(), eps)

    def rope(self, x_TNd: Tensor, cos_Tr: Tensor, sin_Tr: Tensor, y_TNd: Tensor) -> None:
        """x may be strided but in its last dimension."""
        self._dll.tpiedge_rope(
            self._handle, *_rows(x_TNd, y_TNd), cos_Tr.data_ptr(), sin_Tr.data_ptr(), cos_Tr.shape[1]
        )

    def swiglu(self, gate_TF: Tensor, up_TF: Tensor, y_TF: Tensor) -> None:
        """y = silu(gate) * up."""
        self._dll.tpiedge_swiglu(
            self._handle, gate_TF.data_ptr(), up_TF.data_ptr(), y_TF.data_ptr(), y_TF.numel()
        )

    def attention(
        self,
        q_TNd: Tensor,
        k_KSd: Tensor,
        v_KSd: Tensor,
        head_start: bytes,
        offset: int,
        window: int | None,
        scale: float,
        y_TNd: Tensor,
    ) -> None:
        """The first query stands at key index `offset`; `head_start`: K + 1 native int64."""
        tokens, heads, width = q_TNd.shape
        k_head_stride, k_stride, _ = k_KSd.stride()
        v_head_stride, v_stride, _ = v_KSd.stride()
        self._dll.tpiedge_attention(
            self._handle,
            q_TNd.data_ptr(),
            k_KSd.data_ptr(),
            v_KSd.data_ptr(),
            y_TNd.data_ptr(),
            k_KSd.dtype is torch.bfloat16,
            head_start,
            k_head_stride,
            k_stride,
            v_head_stride,
            v_stride,
            tokens,
            heads,
            k_KSd.shape[0],
            width,
            offset,
            _NO_WINDOW if window is None else window,
            scale,
        )


def _weight(w: Tensor, y: int, rows: int) -> bytes:
    return _WEIGHT.pack(w.data_ptr(), y, w.dtype is torch.bfloat16, w.stride(0), rows)


def _rows(x_TNd: Tensor, y_TNd: Tensor) -> tuple[int, ...]:
    token_stride, head_stride, _ = x_TNd.stride()
    tokens, heads, width = x_TNd.shape
    return x_TNd.data_ptr(), y_TNd.data_ptr(), token_stride, head_stride, tokens, heads, width


@functools.cache
def native_library() -> Library | None:
    """The kernels for this CPU; None, with one notice in the log, where they are not built or switched off.

    TPIEDGE_NATIVE=0 switches them off; the name of an instruction set (portable, avx2, avx512) picks it.
    """
    wanted = os.environ.get("TPIEDGE_NATIVE", "")
    if wanted == "0":
        _log.info("native kernels are switched off (TPIEDGE_NATIVE=0): torch computes everything")
        return None
    path = find_library(Path(__file__).parent)
    if path is None:
        _log.warning(
            "native kernels are not built: torch computes everything, slower; reinstall with a C++ compiler"
        )
        return None
    try:
        return Library(load(path), wanted or None)
    except (OSError, ValueError) as error:
        _log.warning("native kernels cannot be used (%s): torch computes everything, slower", error)
        return None


def find_library(folder: Path) -> Path | None:
    """The built library of this interpreter in `folder`."""
    paths = (folder / f"_native{suffix}" for suffix in importlib.machinery.EXTENSION_SUFFIXES)
    return next((path for path in paths if path.is_file()), None)


def load(path: Path) -> ctypes.CDLL:
    """Load and declare the C functions; OSError where the file is no such library or of another version."""
    dll = ctypes.CDLL(str(path))
    try:
        version = dll.tpiedge_abi()
    except AttributeError as error:
        raise OSError(f"{path.name} is not the kernels' library") from error
    if version != _ABI:
        raise OSError(f"{path.name} has version {version}, not {_ABI}: reinstall")
    for name, (arguments, result) in _SIGNATURES.items():
        function = getattr(dll, name)
        function.argtypes, function.restype = arguments, result
    return dll
