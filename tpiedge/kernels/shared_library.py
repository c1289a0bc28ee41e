"""Loads the native kernels (`native/`: C++ through ctypes). No torch."""

import ctypes
import functools
import logging
import os
import zlib
from pathlib import Path

import numpy as np

from tpiedge.native_code import Signatures, find_library, load_library

ABI = 16  # as in native/interface.cpp

_TYPES = {
    **{"i": ctypes.c_int, "n": ctypes.c_int64, "u": ctypes.c_uint32, "U": ctypes.c_uint64},
    **{"f": ctypes.c_float, "d": ctypes.c_double, "p": ctypes.c_void_p, "b": ctypes.c_char_p},
}
#: Function -> letters of its arguments and of its result ("": none). "b" is packed bytes, "p" an address.
_FUNCTIONS = {
    "tpiedge_has_isa": ("i", "i"),
    "tpiedge_best_isa": ("", "i"),
    "tpiedge_open": ("ii", "p"),
    "tpiedge_close": ("p", ""),
    "tpiedge_project": ("ppnnbn", ""),
    "tpiedge_contract": ("ppbnn", "i"),
    "tpiedge_ffn": ("ppnnpfibnnp", "i"),
    "tpiedge_panels_project": ("ppnbn", "i"),
    "tpiedge_panels_contract": ("ppnbi", "i"),
    "tpiedge_panels_attention": ("pbppbnbpi", "i"),
    "tpiedge_panels_ffn": ("pbppnpnpi", "i"),
    "tpiedge_route": ("ppnnbppp", ""),
    "tpiedge_panels_experts": ("pbpppnpi", "i"),
    "tpiedge_add_sums": ("pppnnnibp", ""),
    "tpiedge_panels_stack": ("pbnpbnbpnpp", "i"),
    "tpiedge_rms_norm": ("pppnnnnnpf", ""),
    "tpiedge_rope": ("pppnnnnnbn", ""),
    "tpiedge_crc32": ("pnu", "u"),
    "tpiedge_activate": ("ppppnn", ""),
    "tpiedge_kv_append": ("pppbbnnnnn", ""),
    "tpiedge_attention": ("pppbbnbnnffp", ""),
    "tpiedge_quantise": ("npnnnnnnpp", "n"),
    "tpiedge_draw": ("npndnddd", "n"),
    "tpiedge_likeliest": ("npnnp", "n"),
    "tpiedge_probe_read": ("pn", "U"),
    "tpiedge_probe_operations": ("i", "n"),
    "tpiedge_probe_multiply": ("in", "n"),
}
SIGNATURES: Signatures = {
    name: ([_TYPES[letter] for letter in arguments], _TYPES.get(result))
    for name, (arguments, result) in _FUNCTIONS.items()
}

#: The order is the C side's numbering (native/interface.cpp).
ISAS = ("portable", "avx2", "avx2vnni", "avx512", "avx512vnni", "neon", "neondotprod", "neoni8mm")
NO_ISA = "torch"  # the name for computing without native kernels
MAX_HEAD_WIDTH = 512  # columns of an attention head; torch computes wider ones (native/kv.h)

_INSTALL = "install a C++ compiler and type 'make setup', or install a wheel of tpiedge"

_log = logging.getLogger(__name__)


class KernelLibrary:
    """The loaded library. `isa` names the instruction set to use (None: the best)."""

    def __init__(self, dll: ctypes.CDLL, isa: str | None = None) -> None:
        self.dll = dll
        self.isa = ISAS[dll.tpiedge_best_isa()] if isa is None else isa
        if self.isa not in ISAS or not dll.tpiedge_has_isa(ISAS.index(self.isa)):
            raise ValueError(f"this CPU or build of the kernels has no {self.isa}")


@functools.cache
def kernel_library() -> KernelLibrary | None:
    """Returns this CPU's kernels. Without kernels, logs why and returns None. The environment variable TPIEDGE_NATIVE
    may be 0 (no kernels) or an instruction set of ISAS."""
    found = _find()
    if isinstance(found, KernelLibrary):
        return found
    level = logging.INFO if os.environ.get("TPIEDGE_NATIVE") == "0" else logging.WARNING
    _log.log(
        level, "native kernels %s; without them there is no int8 arithmetic, f32 and bf16 are slower", found
    )
    return None


def why_missing() -> str:
    """Returns why native kernels are missing, with a remedy, or "" if they exist."""
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
    return load_library(path, "tpiedge_abi", ABI, SIGNATURES)


def crc32(data: memoryview, before: int = 0) -> int:
    """Returns the CRC-32 of `data` (contiguous). `before`: the CRC-32 of earlier bytes. Releases the GIL."""
    library = kernel_library()
    if library is None:
        return zlib.crc32(data, before)
    at = np.frombuffer(data, np.uint8)
    return int(library.dll.tpiedge_crc32(at.ctypes.data, at.nbytes, before))
