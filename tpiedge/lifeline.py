"""A child process that cannot outlive its parent.

Two ways at once: the kernel's parent-death signal where there is one (Linux), and a thread that reads standard input,
which the parent holds open: end of file means that the parent is gone. What the parent writes there goes to
`on_bytes`; a process that read the first lines by other means leaves it out. A parent that asks why its child ended
learns from `killed_from_outside` whether the child itself is at fault.
"""

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable
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
