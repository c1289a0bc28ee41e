"""What a process uses and runs on."""

import contextlib
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
