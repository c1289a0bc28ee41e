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

__all__ = ["ISAS", "MAX_HEAD_WIDTH", "KernelLibrary", "kernel_library", "load"]

#: The order is the C side's numbering (native/interface.cpp).
ISAS = ("portable", "avx2", "avx2vnni", "avx512", "avx512vnni", "neon", "neondotprod", "neoni8mm")
#: Columns of an attention head; torch computes wider ones (native/kv.h).
MAX_HEAD_WIDTH = 256

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
        return KernelLibrary(load(path), wanted or None)
    except (OSError, ValueError) as error:
        _log.warning("native kernels cannot be used (%s): torch computes everything, slower", error)
        return None


def load(path: Path) -> ctypes.CDLL:
    """Load the kernels. Raises OSError."""
    return load_library(path, "tpiedge_abi", ABI, SIGNATURES)
