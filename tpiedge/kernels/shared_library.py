"""Finding and loading the native kernels (`native/`: C++ behind a C interface, called through ctypes).

Imports no torch: a process that only packs or checks bytes uses them, too.
"""

import ctypes
import functools
import importlib.machinery
import logging
import os
from pathlib import Path

from tpiedge.kernels.signatures import ABI, SIGNATURES

__all__ = ["ISAS", "Library", "find_library", "load", "native_library"]

#: The order is the C side's numbering (native/interface.cpp).
ISAS = ("portable", "avx2", "avx2vnni", "avx512", "avx512vnni", "neon", "neondotprod", "neoni8mm")

_log = logging.getLogger(__name__)


class Library:
    """The loaded shared library, computing with one instruction set (`isa` of ISAS; the best by default)."""

    def __init__(self, dll: ctypes.CDLL, isa: str | None = None) -> None:
        self.dll = dll
        self.isa = ISAS[dll.tpiedge_best_isa()] if isa is None else isa
        if self.isa not in ISAS or not dll.tpiedge_has_isa(ISAS.index(self.isa)):
            raise ValueError(f"this CPU or build of the kernels has no {self.isa}")


@functools.cache
def native_library() -> Library | None:
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
    if version != ABI:
        raise OSError(f"{path.name} has version {version}, not {ABI}: reinstall")
    for name, (arguments, result) in SIGNATURES.items():
        function = getattr(dll, name, None)
        if function is None:
            raise OSError(f"{path.name} has no {name}: reinstall")
        function.argtypes, function.restype = arguments, result
    return dll
