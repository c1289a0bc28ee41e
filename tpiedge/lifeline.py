"""Child processes: they cannot outlive their parent, get no secret of its environment, and say whom the system ends
first.

Two ways at once tie a child to its parent: the kernel's parent-death signal where there is one (Linux), and a thread
that reads standard input, which the parent holds open: end of file means that the parent is gone. What the parent
writes there goes to `on_bytes`; a process that read the first lines by other means leaves it out. A parent that asks
why its child ended learns from `killed_from_outside` whether the child itself is at fault.
"""

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
#: Signals that a process brings on itself, by what it does or by a limit that was set for it.
_OWN_SIGNALS: Final = frozenset(
    {
        signal.SIGABRT,
        signal.SIGBUS,
        signal.SIGFPE,
        signal.SIGILL,
        signal.SIGPROF,
        signal.SIGSEGV,
        signal.SIGSYS,
        signal.SIGTRAP,
        signal.SIGXCPU,
        signal.SIGXFSZ,
    }
)


def die_with_parent(death_signal: signal.Signals = signal.SIGKILL) -> None:
    """Has the kernel send this process `death_signal` when the thread ends that started it. A fork does not inherit
    it. Without effect where the system has no such thing."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, death_signal, 0, 0, 0)


def killed_from_outside(status: int) -> bool:
    """Whether a process with this exit status (negative: of a signal) was killed by the system, for lack of memory, or
    by a person, and not by what it did."""
    return status < 0 and -status not in _OWN_SIGNALS


def guard(
    on_orphaned: Callable[[], None],
    death_signal: signal.Signals = signal.SIGKILL,
    on_bytes: Callable[[bytes], object] = len,
) -> None:
    """Call `on_orphaned` from a thread once the parent is gone. It should end the process.

    `on_bytes` is called from the same thread with everything that arrives on standard input.
    """
    die_with_parent(death_signal)
    threading.Thread(target=_watch, args=(on_orphaned, on_bytes), name="lifeline", daemon=True).start()


def _watch(on_orphaned: Callable[[], None], on_bytes: Callable[[bytes], object]) -> None:
    while data := os.read(0, 4096):
        on_bytes(data)
    on_orphaned()


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
    return {
        name: text
        for name, text in own.items()
        if (name in _NEEDED or name.startswith(_PREFIXES)) and not any(word in name for word in _SECRET_WORDS)
    }


def raise_oom_score(score: int) -> None:
    """Has the system's OOM killer end this process, and those that it starts from now on, as if they took so many
    thousandths more of the memory that there is; unless their score is higher. On Linux; elsewhere, and where the
    system does not allow it, there is no effect."""
    own = Path("/proc/self/oom_score_adj")
    with suppress(OSError):
        if int(own.read_text(encoding="ascii")) < score:
            own.write_text(str(score), encoding="ascii")
