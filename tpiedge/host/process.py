"""What a process may map (RLIMIT_AS) and open (RLIMIT_NOFILE), which its children inherit; what it uses and runs on;
and how memory that malloc keeps goes back to the system.
"""

import contextlib
import ctypes
import math
import platform
import resource
import sys
from pathlib import Path
from typing import Final

import psutil

from tpiedge.errors import ResourceError
from tpiedge.units import GIB, MIB, format_bytes

#: What a command maps before it has read its own words; numpy's libraries end a process that gets less.
LEAST: Final = 512 * MIB
LEAST_TO_COMPUTE: Final = 2 * GIB


def raise_limits() -> None:
    """Raises this process's limits as far as they may be and as is of use: of open files to what is ample and what
    macOS grants a process, since some programs close as many at their start."""
    endless = resource.RLIM_INFINITY
    for kind, most in ((resource.RLIMIT_AS, endless), (resource.RLIMIT_NOFILE, 10_240)):
        soft, hard = resource.getrlimit(kind)
        wanted = hard if most == endless else most if hard == endless else min(most, hard)
        if soft != endless and (wanted == endless or soft < wanted):
            with contextlib.suppress(OSError, ValueError):  # the system has the last word
                resource.setrlimit(kind, (wanted, hard))


def address_limit() -> int | None:
    """Bytes that this process may map; None without a limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if soft == resource.RLIM_INFINITY else soft


def address_room() -> int:
    """Bytes that a node may take for what it computes with: beside that it maps libraries, and a stack and a pool of
    memory for each thread."""
    limit = address_limit()
    return sys.maxsize if limit is None else max(0, limit - GIB)


def check_address_space(least: int) -> None:
    """Raises ResourceError where this process may map less than `least` bytes."""
    limit = address_limit()
    if limit is not None and limit < least:
        raise ResourceError(
            f"this process may map {format_bytes(limit)} of addresses, and needs {format_bytes(least)}: lift the limit "
            "(ulimit -v unlimited; a service: LimitAS=infinity), and limit memory by a control group (MemoryMax=) or "
            "--memory"
        )


#: A master with a worker needs some seventy, and more for each further one; crowds of strangers may hold half of all at
#: its HTTP port (api/limits.py) and 128 at each of three others (transport/backlog.py).
LEAST_DESCRIPTORS: Final = 1024


def check_descriptors() -> int:
    """The limit. Raises ResourceError where that is too low to serve or to compute."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return sys.maxsize
    if soft < LEAST_DESCRIPTORS:
        raise ResourceError(
            f"this process may open {soft} files and connections at a time, and needs {LEAST_DESCRIPTORS}: raise the "
            "limit (ulimit -n 4096; a service: LimitNOFILE=4096)"
        )
    return soft


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


def cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()[:64]
    except OSError:
        pass  # no /proc: ask the portable way
    return (platform.processor() or platform.machine())[:64]


def give_back_what_is_freed() -> None:
    """From now on a block of 128 KiB or more goes back to the system when it is freed, and so does the end of the heap
    where more than 1 MiB of it is free.

    glibc raises that bound up to 32 MiB when it sees such blocks freed, and keeps twice as much: among eight nodes of
    rows 8192 wide, whose messages are that large, 65 MB. Page faults are the price, an eighth of a prompt's time where
    all weights are in memory.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt") and hasattr(library, "malloc_trim"):
        library.mallopt(-3, 128 << 10)  # M_MMAP_THRESHOLD of <malloc.h>
        library.mallopt(-1, 1 << 20)  # M_TRIM_THRESHOLD
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
            # A look takes a millisecond, and what is used again a page fault for every 4 KiB.
            self._due = now + 10.0
            self._trim(0)
