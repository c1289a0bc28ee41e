"""Loads the shared libraries that setup.py builds from C++."""

import ctypes
import importlib.machinery
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

Signatures: TypeAlias = Mapping[str, tuple[list[Any], Any]]
"""Maps a function's name to (argument types, result type)."""


class OtherVersion(OSError):
    """The library was built from other sources than this package."""


def find_library(folder: Path) -> Path | None:
    paths = (folder / f"_native{suffix}" for suffix in importlib.machinery.EXTENSION_SUFFIXES)
    return next((path for path in paths if path.is_file()), None)


def load_library(path: Path, abi: str, version: int, signatures: Signatures) -> ctypes.CDLL:
    """Loads a library and declares its functions. Its function named `abi` must return `version`. Raises OSError,
    OtherVersion."""
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
