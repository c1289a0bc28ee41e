"""What this computer lets this process use: processors, memory, disk; and whether its limits of memory change. No
torch.

Containers and services limit these by cgroups, of version 1 or 2, and a limit holds for everything below it: so the
own group and all its ancestors count (`cgroups`).
"""

import contextlib
import math
import os
import shutil
from pathlib import Path

import psutil

from tpiedge.host.cgroups import Cgroups
from tpiedge.host.process import address_room
from tpiedge.units import GIB, MIB, format_bytes


def available_memory_bytes(root: Path = Path("/")) -> int:
    """Memory that can be taken now without swapping and without exceeding a limit. Page cache counts as free."""
    free = psutil.virtual_memory().available
    return max(0, min([free, *Cgroups.own(root).memory_room(), address_room()]))


def default_memory_bytes(available: int | None = None) -> int:
    """What tpiedge takes for itself unless told: 80 % of what is available, leaving at least 128 MiB and at most
    2 GiB to everything else."""
    if available is None:
        available = available_memory_bytes()
    return max(0, int(available - min(max(0.2 * available, 128 * MIB), 2 * GIB)))


def usable_cores(root: Path = Path("/")) -> float:
    """Processors that this process may use, by affinity and quota; a quota may be a fraction."""
    cores = psutil.cpu_count() or 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cores
    return min([float(cores), float(allowed), *Cgroups.own(root).cpu_quotas()])


def default_threads(root: Path = Path("/")) -> int:
    """Physical cores that this process may use, at least one: hardware threads of one core share its vector unit, and
    a thread beyond a quota makes the others wait for it."""
    allowed = None
    if hasattr(os, "sched_getaffinity"):
        topology = root / "sys/devices/system/cpu"
        cores = {_core(topology / f"cpu{thread}/topology") for thread in os.sched_getaffinity(0)}
        allowed = None if "" in cores else len(cores)
    physical = allowed or psutil.cpu_count(logical=False) or psutil.cpu_count() or 1
    return max(1, min(physical, math.floor(usable_cores(root))))


def _core(topology: Path) -> str:
    """The hardware threads of the core to which one belongs, as Linux lists them; "" where it does not."""
    for name in ("core_cpus_list", "thread_siblings_list"):  # the latter before Linux 5.3
        with contextlib.suppress(OSError, ValueError):
            if text := (topology / name).read_text(encoding="ascii").strip():
                return text
    return ""


def free_disk_bytes(folder: Path) -> int:
    """Bytes that this user may still write to `folder`, or to where it would be made."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free


class MemoryLimits:
    """Reads the limits of this process's groups and its ancestors' at each `usable_bytes`, which takes no lock and
    about a millisecond. A group that it came to later counts as empty."""

    def __init__(self, asked_bytes: int | None = None, root: Path = Path("/")) -> None:
        """`asked_bytes` is what the user gave to tpiedge; None: what is usual."""
        memory = psutil.virtual_memory()
        self._asked_bytes = asked_bytes
        self._root = root
        self._addresses = address_room()
        self._total = memory.total
        self._taken = {**Cgroups.own(root).memory_taken(), Path("/"): memory.total - memory.available}

    def shortfall(self, usable: int) -> str:
        """The line for the user where less is usable than was asked for; otherwise ""."""
        if self._asked_bytes is None or usable >= self._asked_bytes:
            return ""
        asked, most = format_bytes(self._asked_bytes), format_bytes(usable)
        return f"--memory gives {asked}, but the limit of this machine or of its control group is {most}"

    def usable_bytes(self) -> int:
        """What the user gave, but no more than the smallest limit; or the usual part of what others left below it."""
        limits = {**Cgroups.own(self._root).memory_limits(), Path("/"): self._machine_bytes()}
        if self._asked_bytes is not None:
            return min(self._asked_bytes, *limits.values())
        rooms = [limit - self._taken.get(place, 0) for place, limit in limits.items()]
        return default_memory_bytes(max(0, min([*rooms, self._addresses])))

    def _machine_bytes(self) -> int:
        """As it was at the last look where the system has no descriptor left for another one."""
        with contextlib.suppress(OSError):
            self._total = psutil.virtual_memory().total
        return self._total
