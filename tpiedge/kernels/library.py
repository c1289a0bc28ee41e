"""The native kernels: finding, loading and calling the shared library (`native/`, C interface, ctypes)."""

import ctypes
import functools
import importlib.machinery
import logging
import os
import weakref
from pathlib import Path

import torch
from torch import Tensor

__all__ = ["ISAS", "Library", "Pool", "native_library"]

_ABI = 1
# The order is the C side's numbering (native/interface.cpp).
ISAS = ("portable", "avx2", "avx512")

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
    """Native threads that compute together with the caller. One call at a time."""

    def __init__(self, dll: ctypes.CDLL, isa: int, threads: int) -> None:
        handle = dll.tpiedge_open(threads, isa)
        if not handle:
            raise RuntimeError(f"cannot start {threads - 1} threads for the native kernels")
        self._dll = dll
        self._handle = handle
        self.close = weakref.finalize(self, dll.tpiedge_close, handle)

    def project(self, x_TI: Tensor, w_RI: Tensor, y_TR: Tensor) -> None:
        """y = x @ w.T; x and y contiguous f32."""
        self._call(self._dll.tpiedge_project, x_TI, w_RI, y_TR)

    def contract(self, x_TR: Tensor, w_RO: Tensor, y_TO: Tensor) -> None:
        """y = x @ w; x and y contiguous f32."""
        self._call(self._dll.tpiedge_contract, x_TR, w_RO, y_TO)

    def _call(self, function: "ctypes._NamedFuncPointer", x: Tensor, w: Tensor, y: Tensor) -> None:
        if not self.close.alive:
            raise RuntimeError("the native threads were closed")
        function(
            self._handle,
            x.data_ptr(),
            w.data_ptr(),
            w.dtype is torch.bfloat16,
            w.stride(0),
            y.data_ptr(),
            x.shape[0],
            w.shape[0],
            w.shape[1],
        )


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
    dll.tpiedge_has_isa.argtypes = [ctypes.c_int]
    dll.tpiedge_open.argtypes = [ctypes.c_int, ctypes.c_int]
    dll.tpiedge_open.restype = ctypes.c_void_p
    dll.tpiedge_close.argtypes = [ctypes.c_void_p]
    dll.tpiedge_close.restype = None
    pointer, size = ctypes.c_void_p, ctypes.c_int64
    for function in (dll.tpiedge_project, dll.tpiedge_contract):
        function.argtypes = [pointer, pointer, pointer, ctypes.c_int, size, pointer, size, size, size]
        function.restype = None
    return dll
