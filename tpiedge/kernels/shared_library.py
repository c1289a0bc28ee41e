"""The native kernels (`native/`: C++ behind a C interface, called through ctypes).

Imports no torch: a process that only packs or checks bytes uses them, too.
"""

import ctypes
import functools
import logging
import os
from pathlib import Path

from tpiedge.kernels.signatures import ABI, SIGNATURES
from tpiedge.native_code import find_library, load_library

#: The order is the C side's numbering (native/interface.cpp).
ISAS = ("portable", "avx2", "avx2vnni", "avx512", "avx512vnni", "neon", "neondotprod", "neoni8mm")
#: The name of what computes where there are no native kernels.
NO_ISA = "torch"
#: Columns of an attention head; torch computes wider ones (native/kv.h).
MAX_HEAD_WIDTH = 256

_INSTALL = "install a C++ compiler and type 'make setup', or install a wheel of tpiedge"

_log = logging.getLogger(__name__)


class KernelLibrary:
    """The loaded shared library, computing with one instruction set (`isa` of ISAS; the best by default)."""

    def __init__(self, dll: ctypes.CDLL, isa: str | None = None) -> None:
        self.dll = dll
        self.isa = ISAS[dll.tpiedge_best_isa()] if isa is None else isa
        if self.isa not in ISAS or not dll.tpiedge_has_isa(ISAS.index(self.isa)):
            raise ValueError(f"this CPU or build of the kernels has no {self.isa}")


@functools.cache
def kernel_library() -> KernelLibrary | None:
    """The kernels for this CPU; None, with one notice in the log, where they are not built or switched off.

    TPIEDGE_NATIVE=0 switches them off; the name of an instruction set (one of ISAS) picks it.
    """
    found = _find()
    if isinstance(found, KernelLibrary):
        return found
    level = logging.INFO if os.environ.get("TPIEDGE_NATIVE") == "0" else logging.WARNING
    _log.log(
        level, "native kernels %s; without them q8 and q4 cannot be computed, f32 and bf16 are slower", found
    )
    return None


def why_missing() -> str:
    """Why there are no native kernels, and what to do about it; "" where there are."""
    if kernel_library() is not None:
        return ""
    found = _find()
    return found if isinstance(found, str) else ""


def _find() -> KernelLibrary | str:
    """The kernels, or the words that follow "native kernels" where there are none."""
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
    """Load the kernels. Raises OSError."""
    return load_library(path, "tpiedge_abi", ABI, SIGNATURES)
