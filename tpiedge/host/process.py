"""Checks and raises this process's limits, which children inherit. Reads its memory use and the processor's name.
Returns freed memory to the system."""

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

#: Address space that any command maps at its start; numpy's libraries end a process that gets less.
LEAST: Final = 512 * MIB
LEAST_TO_COMPUTE: Final = 2 * GIB


def raise_limits() -> None:
    """Increases the limits as far as the system allows, the limit of open files to at most 10,240."""
    endless = resource.RLIM_INFINITY
    # Some programs close all possible files: too many would take long.
    for kind, most in ((resource.RLIMIT_AS, endless), (resource.RLIMIT_NOFILE, 10_240)):
        soft, hard = resource.getrlimit(kind)
        wanted = hard if most == endless else most if hard == endless else min(most, hard)
        if soft != endless and (wanted == endless or soft < wanted):
            with contextlib.suppress(OSError, ValueError):  # the system has the last word
                resource.setrlimit(kind, (wanted, hard))


def address_limit() -> int | None:
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if soft == resource.RLIM_INFINITY else soft


def address_room() -> int:
    limit = address_limit()
    # A GiB is left for libraries, stacks and heaps.
    return sys.maxsize if limit is None else max(0, limit - GIB)


def check_address_space(least: int) -> None:
    """Raises ResourceError if this process may map less than `least` bytes."""
    limit = address_limit()
    if limit is not None and limit < least:
        raise ResourceError(
            f"this process may map {format_bytes(limit)} of addresses, and needs {format_bytes(least)}: lift the limit "
            "(ulimit -v unlimited; a service: LimitAS=infinity), and limit memory by a control group (MemoryMax=) or "
            "--memory"
        )


#: A master with a worker needs some seventy descriptors. Unauthenticated peers may hold half of the limit at its HTTP
#: port (api/limits.py), and 128 at each of three other ports (transport/backlog.py).
LEAST_DESCRIPTORS: Final = 1024


def check_descriptors() -> int:
    """Returns the limit of open files. Raises ResourceError if too low."""
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
    if high := proc_field("/proc/self/status", "VmHWM:"):
        return int(high.split()[0]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def rss_bytes(pid: int) -> int:
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0


def cpu_name() -> str:
    return (proc_field("/proc/cpuinfo", "model name") or platform.processor() or platform.machine())[:64]


def proc_field(path: str, *names: str) -> str:
    """Returns the text after the colon in the first line that begins with `names`."""
    with contextlib.suppress(OSError):
        for line in Path(path).read_text().splitlines():
            if line.startswith(names):
                return line.partition(":")[2].strip()
    return ""


def give_back_what_is_freed() -> None:
    """Makes malloc return freed blocks of 128 KiB or more."""
    # Otherwise glibc slowly increases that bound to 32 MiB: eight nodes with rows of 8192 numbers took 65 MB more.
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt") and hasattr(library, "malloc_trim"):
        library.mallopt(-3, 128 << 10)  # M_MMAP_THRESHOLD of <malloc.h>
        library.mallopt(-1, 1 << 20)  # M_TRIM_THRESHOLD
        library.malloc_trim(0)


class FreedMemory:
    """Returns free memory to the system, at most every ten seconds."""

    def __init__(self) -> None:
        # glibc returns only the end of a heap: after floods of small messages a master held 68 MB beside 18 in use.
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        self._due = -math.inf

    def give_back(self, now: float) -> None:
        if self._trim is not None and now >= self._due:
            # A call takes a millisecond, and reused memory costs a page fault for every 4 KiB.
            self._due = now + 10.0
            self._trim(0)
