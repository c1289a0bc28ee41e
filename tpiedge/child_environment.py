"""The environment of processes that compute or read what others wrote: what they need, and no secret."""

import os
from collections.abc import Mapping
from typing import Final

_NEEDED: Final = frozenset(
    {"HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "SHELL", "SYSTEMROOT", "TERM", "TMPDIR", "TZ", "USER"}
)
#: Settings of the linker, of malloc, of Python, of sanitizers, and of the libraries that compute.
_PREFIXES: Final = (
    *("LC_", "LD_", "DYLD_", "GLIBC_", "MALLOC_", "PYTHON", "XDG_", "TPIEDGE_", "COVERAGE_", "COV_CORE_"),
    *("ASAN_", "LSAN_", "TSAN_", "UBSAN_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "RAYON_"),
    *("TORCH_", "ATEN_", "DNNL_", "ONEDNN_"),
)
_SECRET_WORDS: Final = ("KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIAL")


def child_environment(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Returns the part of `environment` (default: that of this process) that a child gets."""
    own = os.environ if environment is None else environment
    return {name: text for name, text in own.items() if _is_needed(name)}


def _is_needed(name: str) -> bool:
    if any(word in name for word in _SECRET_WORDS):
        return False
    return name in _NEEDED or name.startswith(_PREFIXES)
