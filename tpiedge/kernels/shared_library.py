"""The native kernels (`native/`: C++ through ctypes), and a checksum. No torch: packing uses them, too."""

import ctypes
import functools
import logging
import os
import zlib
from pathlib import Path

import numpy as np

from tpiedge.native_code import Signatures, find_library, load_library

#: As in native/interface.cpp.
ABI = 11

_int, _float, _size, _pointer = ctypes.c_int, ctypes.c_float, ctypes.c_int64, ctypes.c_void_p
_double = ctypes.c_double
_packed = ctypes.c_char_p
_ROWS = [_pointer, _pointer, _pointer, _size, _size, _size, _size, _size]

SIGNATURES: Signatures = {
    "tpiedge_has_isa": ([_int], _int),
    "tpiedge_best_isa": ([], _int),
    "tpiedge_open": ([_int, _int], _pointer),
    "tpiedge_close": ([_pointer], None),
    "tpiedge_project": ([_pointer, _pointer, _size, _size, _packed, _size], None),
    "tpiedge_contract": ([_pointer, _pointer, _packed, _size, _size], _int),
    "tpiedge_ffn": (
        [_pointer, _pointer, _size, _size, _pointer, _float, _int, _packed, _size, _pointer],
        _int,
    ),
    "tpiedge_panels_project": ([_pointer, _pointer, _size, _packed, _size], _int),
    "tpiedge_panels_contract": ([_pointer, _pointer, _size, _packed, _int], _int),
    "tpiedge_panels_attention": (
        [_pointer, _packed, _pointer, _pointer, _packed, _size, *[_pointer] * 3, _int],
        _int,
    ),
    "tpiedge_panels_ffn": (
        [_pointer, _packed, _pointer, _pointer, _size, _pointer, _float, _pointer, _int],
        _int,
    ),
    "tpiedge_add_sums": ([_pointer, _pointer, _size, _size, _int], None),
    "tpiedge_panels_stack": (
        [_pointer, _packed, _size, _pointer, _packed, _size, *[_pointer] * 4],
        _int,
    ),
    "tpiedge_rms_norm": ([*_ROWS, _pointer, _float], None),
    "tpiedge_rope": ([*_ROWS, _pointer, _pointer, _size], None),
    "tpiedge_crc32": ([_pointer, _size, ctypes.c_uint32], ctypes.c_uint32),
    "tpiedge_swiglu": ([_pointer, _pointer, _pointer, _pointer, _size], None),
    "tpiedge_kv_append": ([_pointer, _pointer, _pointer, _packed, _packed, *[_size] * 5], None),
    "tpiedge_attention": (
        [_pointer, _pointer, _pointer, _packed, _packed, _size, _packed, _size, _size, _float],
        None,
    ),
    "tpiedge_quantise": ([_size, _pointer, *[_size] * 6, _pointer, _pointer], _size),
    "tpiedge_draw": ([_size, _pointer, _size, _double, _size, *[_double] * 3], _size),
    "tpiedge_likeliest": ([_size, _pointer, _size, _size, _pointer], _size),
    "tpiedge_probe_read": ([_pointer, _size], ctypes.c_uint64),
    "tpiedge_probe_operations": ([_int], _size),
    "tpiedge_probe_multiply": ([_int, _size], _size),
}


#: The order is the C side's numbering (native/interface.cpp).
ISAS = ("portable", "avx2", "avx2vnni", "avx512", "avx512vnni", "neon", "neondotprod", "neoni8mm")
#: What computes without native kernels.
NO_ISA = "torch"
#: Columns of an attention head; torch computes wider ones (native/kv.h).
MAX_HEAD_WIDTH = 256

_INSTALL = "install a C++ compiler and type 'make setup', or install a wheel of tpiedge"

_log = logging.getLogger(__name__)


class KernelLibrary:
    """The loaded library with one instruction set (`isa` of ISAS; the best by default)."""

    def __init__(self, dll: ctypes.CDLL, isa: str | None = None) -> None:
        self.dll = dll
        self.isa = ISAS[dll.tpiedge_best_isa()] if isa is None else isa
        if self.isa not in ISAS or not dll.tpiedge_has_isa(ISAS.index(self.isa)):
            raise ValueError(f"this CPU or build of the kernels has no {self.isa}")


@functools.cache
def kernel_library() -> KernelLibrary | None:
    """The kernels for this CPU; None, with one log line, where they are not built or switched off. TPIEDGE_NATIVE=0
    switches them off; the name of an instruction set (one of ISAS) picks it."""
    found = _find()
    if isinstance(found, KernelLibrary):
        return found
    level = logging.INFO if os.environ.get("TPIEDGE_NATIVE") == "0" else logging.WARNING
    _log.log(
        level, "native kernels %s; without them q8 and q4 cannot be computed, f32 and bf16 are slower", found
    )
    return None


def why_missing() -> str:
    """Why there are no native kernels, and what to do; "" where there are."""
    return "" if kernel_library() is not None else str(_find())


def _find() -> KernelLibrary | str:
    wanted = os.environ.get("TPIEDGE_NATIVE", "")
    if wanted == "0":
        return "are switched off (TPIEDGE_NATIVE=0): unset it"
    path = find_library(Path(__file__).parent)
    if path is None:
        return f"are not built: {_INSTALL}"
    try:
        return KernelLibrary(load(path), wanted or None)
    except (OSError, ValueError) as error:
        return f"cannot be used ({error}): {_INSTALL}"


def load(path: Path) -> ctypes.CDLL:
    """Loads the kernels. Raises OSError."""
    return load_library(path, "tpiedge_abi", ABI, SIGNATURES)


def crc32(data: memoryview, before: int = 0) -> int:
    """The CRC-32 of contiguous bytes after bytes with the CRC `before`. Releases the GIL."""
    library = kernel_library()
    if library is None:
        return zlib.crc32(data, before)
    at = np.frombuffer(data, np.uint8)
    return int(library.dll.tpiedge_crc32(at.ctypes.data, at.nbytes, before))
