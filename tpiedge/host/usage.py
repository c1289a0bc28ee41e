"""What a process uses and runs on, and how memory that malloc keeps goes back to the system."""

import contextlib
import ctypes
import math
import platform
import resource
import sys
from pathlib import Path

import psutil


def peak_rss_bytes() -> int:
    """The largest resident set of this process so far (VmHWM where Linux gives it)."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass  # no /proc: ask the portable way
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def rss_bytes(pid: int) -> int:
    """The resident set of a process now; 0 if it has ended."""
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0


def forget_peak_rss() -> None:
    """Let `peak_rss_bytes` begin anew from what is resident now, where the system can (Linux)."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def cpu_name() -> str:
    """The processor's name as far as the system tells."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()[:64]
    except OSError:
        pass  # no /proc: ask the portable way
    return (platform.processor() or platform.machine())[:64]


# Of mallopt in <malloc.h>.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_MMAP_BYTES, _TRIM_BYTES = 128 << 10, 1 << 20
#: A look at the heaps takes a millisecond, and what is used again a page fault for every 4 KiB.
_EVERY_S = 10.0


def give_back_what_is_freed() -> None:
    """From now on a block of 128 KiB or more goes back to the system when it is freed, and so does the end of the heap
    where more than 1 MiB of it is free.

    glibc raises that bound up to 32 MiB when it sees such blocks freed, and keeps twice as much: among eight nodes of
    rows 8192 wide, whose messages are that large, 65 MB. Page faults are the price, an eighth of a prompt's time where
    all weights are in memory.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt") and hasattr(library, "malloc_trim"):
        library.mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
        library.mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)
        library.malloc_trim(0)


class FreedMemory:
    """Gives back whatever is free in the heaps of all threads, now and then: for a process that serves strangers.

    glibc has a heap for each of many threads, and gives back no more than its end: one block that is still used keeps
    all that was freed before it. After floods of small messages a master's had 68 MB free beside 18 in use.
    """

    def __init__(self) -> None:
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        self._due = -math.inf

    def give_back(self, now: float) -> None:
        """To be called often. Seconds of any clock."""
        if self._trim is not None and now >= self._due:
            self._due = now + _EVERY_S
            self._trim(0)
