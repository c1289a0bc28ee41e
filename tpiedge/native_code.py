"""Finding and loading what setup.py builds of C++: a shared library per package, called through ctypes."""

import ctypes
import importlib.machinery
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

Signatures: TypeAlias = Mapping[str, tuple[list[Any], Any]]
"""Of each function the types of its arguments and of its result."""


class OtherVersion(OSError):
    """The library was built from other sources than this package."""


def find_library(folder: Path) -> Path | None:
    paths = (folder / f"_native{suffix}" for suffix in importlib.machinery.EXTENSION_SUFFIXES)
    return next((path for path in paths if path.is_file()), None)


def load_library(path: Path, abi: str, version: int, signatures: Signatures) -> ctypes.CDLL:
    """Load the library whose function `abi` returns `version`, and declare its functions. Raises OSError where the
    file is no such library, and OtherVersion where it is another one of it."""
    dll = ctypes.CDLL(str(path))
    try:
        found = getattr(dll, abi)()
    except AttributeError as error:
        raise OSError(f"{path.name} has no {abi}") from error
    if found != version:
        raise OtherVersion(f"{path.name} has version {found}, not {version}: reinstall")
    for name, (arguments, result) in signatures.items():
        function = getattr(dll, name, None)
        if function is None:
            raise OtherVersion(f"{path.name} has no {name}: reinstall")
        function.argtypes, function.restype = arguments, result
    return dll
