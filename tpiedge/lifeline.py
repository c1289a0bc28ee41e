"""A child process that cannot outlive its parent.

Two ways at once: the kernel's parent-death signal where there is one (Linux), and a thread that reads standard input,
which the parent holds open: end of file means that the parent is gone. What the parent writes there goes to
`on_bytes`; a process that read the first lines by other means leaves it out.
"""

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable

__all__ = ["guard"]

_PR_SET_PDEATHSIG = 1


def guard(
    on_orphaned: Callable[[], None],
    death_signal: signal.Signals = signal.SIGKILL,
    on_bytes: Callable[[bytes], object] = len,
) -> None:
    """Call `on_orphaned` from a thread once the parent is gone. It should end the process.

    `on_bytes` is called from the same thread with everything that arrives on standard input.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, death_signal, 0, 0, 0)
    threading.Thread(target=_watch, args=(on_orphaned, on_bytes), name="lifeline", daemon=True).start()


def _watch(on_orphaned: Callable[[], None], on_bytes: Callable[[bytes], object]) -> None:
    while data := os.read(0, 4096):
        on_bytes(data)
    on_orphaned()
