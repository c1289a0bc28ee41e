"""A child process that cannot outlive its parent.

Two ways at once: the kernel's parent-death signal where there is one (Linux), and a thread that reads standard input,
which the parent holds open and never writes to after the first line: end of file means that the parent is gone.
"""

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable

__all__ = ["guard"]

_PR_SET_PDEATHSIG = 1


def guard(on_orphaned: Callable[[], None], death_signal: signal.Signals = signal.SIGKILL) -> None:
    """Call `on_orphaned` from a thread once the parent is gone. It should end the process."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, death_signal, 0, 0, 0)
    threading.Thread(target=_watch, args=(on_orphaned,), name="lifeline", daemon=True).start()


def _watch(on_orphaned: Callable[[], None]) -> None:
    while os.read(0, 4096):
        pass
    on_orphaned()
