"""What a process uses and runs on."""

import contextlib
import ctypes
import platform
import resource
import sys
from pathlib import Path

import psutil

__all__ = ["cpu_name", "forget_peak_rss", "give_back_what_is_freed", "peak_rss_bytes", "rss_bytes"]

# Of mallopt in <malloc.h>.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_MMAP_BYTES, _TRIM_BYTES = 128 << 10, 1 << 20


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


def give_back_what_is_freed() -> None:
    """From now on a block of 128 KiB or more goes back to the system when it is freed, and so does the end of the heap
    where more than 1 MiB of it is free.

    glibc raises that bound up to 32 MiB when it sees such blocks freed, and keeps twice as much: among eight nodes of
    rows 8192 wide, whose messages are that large, 65 MB. Page faults are the price, an eighth of a prompt's time where
    all weights are in memory. Other C libraries go on as they do.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt") and hasattr(library, "malloc_trim"):
        library.mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
        library.mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)
        library.malloc_trim(0)


def cpu_name() -> str:
    """The processor's name as far as the system tells."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()[:64]
    except OSError:
        pass  # no /proc: ask the portable way
    return (platform.processor() or platform.machine())[:64]
