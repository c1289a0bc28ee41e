"""Keeps secrets of the environment from children, and ends children with their parent."""

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

_PR_SET_PDEATHSIG = 1
#: Signals caused by the process itself, or by a limit set for it.
_OWN_SIGNALS: Final = (
    *(signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGPROF),
    *(signal.SIGSEGV, signal.SIGSYS, signal.SIGTRAP, signal.SIGXCPU, signal.SIGXFSZ),
)


def die_with_parent(death_signal: signal.Signals = signal.SIGKILL) -> None:
    """Makes Linux send `death_signal` to this process when the thread that started it ends. Forks do not inherit
    this."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, death_signal, 0, 0, 0)


def killed_from_outside(status: int) -> bool:
    """Whether the system or a person killed the process. A negative `status` is minus the signal's number."""
    return status < 0 and -status not in _OWN_SIGNALS


def guard(
    on_orphaned: Callable[[], None],
    death_signal: signal.Signals = signal.SIGKILL,
) -> None:
    """Calls `die_with_parent`, and starts a thread that calls `on_orphaned` once standard input ends."""

    def watch() -> None:
        while os.read(0, 4096):
            pass
        on_orphaned()

    die_with_parent(death_signal)
    threading.Thread(target=watch, name="lifeline", daemon=True).start()


_NEEDED: Final = frozenset(
    {"HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "SHELL", "SYSTEMROOT", "TERM", "TMPDIR", "TZ", "USER"}
)
#: Beginnings of variables of the linker, malloc, Python, sanitizers and numeric libraries.
_PREFIXES: Final = (
    *("LC_", "LD_", "DYLD_", "GLIBC_", "MALLOC_", "PYTHON", "XDG_", "TPIEDGE_", "COVERAGE_", "COV_CORE_"),
    *("ASAN_", "LSAN_", "TSAN_", "UBSAN_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "RAYON_"),
    *("TORCH_", "ATEN_", "DNNL_", "ONEDNN_"),
)
_SECRET_WORDS: Final = ("KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIAL")


def child_environment(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Returns the variables of `environment` (None: this process's) that a child process may have."""
    own = os.environ if environment is None else environment
    return {
        name: text
        for name, text in own.items()
        if (name in _NEEDED or name.startswith(_PREFIXES)) and not any(word in name for word in _SECRET_WORDS)
    }


def raise_oom_score(score: int) -> None:
    """Raises this process's OOM score to `score`, unless it is higher. Later children inherit it."""
    own = Path("/proc/self/oom_score_adj")
    with suppress(OSError):
        if int(own.read_text(encoding="ascii")) < score:
            own.write_text(str(score), encoding="ascii")
