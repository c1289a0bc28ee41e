"""Processors, memory and disk that this process may use. No torch.

The limits of this process's control group and its parent groups apply (Linux, versions 1 and 2). Functions
read `proc` and `sys` in the folder `root`. An unreadable file means no limit.
"""

import contextlib
import math
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from tpiedge.host.process import address_room
from tpiedge.units import GIB, MIB, format_bytes


def available_memory_bytes(root: Path = Path("/")) -> int:
    """Returns the memory that is free now. Page cache counts as free."""
    free = psutil.virtual_memory().available
    return max(0, min([free, *Cgroups.own(root).memory_room(), address_room()]))


def default_memory_bytes(available: int | None = None) -> int:
    """Returns the available memory minus a reserve: a fifth, but at least 128 MiB and at most 2 GiB."""
    if available is None:
        available = available_memory_bytes()
    return max(0, int(available - min(max(0.2 * available, 128 * MIB), 2 * GIB)))


def usable_cores(root: Path = Path("/")) -> float:
    """Returns how many processors affinity and quotas allow; this may be a fraction."""
    cores = psutil.cpu_count() or 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cores
    return min([float(cores), float(allowed), *Cgroups.own(root).cpu_quotas()])


def default_threads(root: Path = Path("/")) -> int:
    """Counts usable physical cores, at least 1."""
    allowed = None
    if hasattr(os, "sched_getaffinity"):
        topology = root / "sys/devices/system/cpu"
        cores = {_core(topology / f"cpu{thread}/topology") for thread in os.sched_getaffinity(0)}
        allowed = None if "" in cores else len(cores)
    # A core has one vector unit; threads beyond a CPU quota only wait.
    physical = allowed or psutil.cpu_count(logical=False) or psutil.cpu_count() or 1
    return max(1, min(physical, math.floor(usable_cores(root))))


def _core(topology: Path) -> str:
    for name in ("core_cpus_list", "thread_siblings_list"):  # the latter before Linux 5.3
        with contextlib.suppress(OSError, ValueError):
            if text := (topology / name).read_text(encoding="ascii").strip():
                return text
    return ""


def free_disk_bytes(folder: Path) -> int:
    """Returns the user's free bytes in `folder`, which need not exist."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free


class MemoryLimits:
    """The memory that this process may use. Control groups that this process joins later are assumed to be empty."""

    def __init__(self, limit_bytes: int | None = None, root: Path = Path("/")) -> None:
        """`limit_bytes` is --memory (None: the default)."""
        memory = psutil.virtual_memory()
        self._limit_bytes = limit_bytes
        self._root = root
        self._addresses = address_room()
        self._total = memory.total
        self._taken = {**Cgroups.own(root).memory_taken(), Path("/"): memory.total - memory.available}

    def shortfall(self, usable: int) -> str:
        """Returns the line for the user if --memory exceeds `usable`, else ""."""
        if self._limit_bytes is None or usable >= self._limit_bytes:
            return ""
        limit, most = format_bytes(self._limit_bytes), format_bytes(usable)
        return f"--memory gives {limit}, but the limit of this machine or of its control group is {most}"

    def usable_bytes(self) -> int:
        """Returns how much memory this process may use: the smallest limit. One limit is --memory or, without it, a
        part of the free memory."""
        with contextlib.suppress(OSError):  # no descriptor is left to read it
            self._total = psutil.virtual_memory().total
        limits = {**Cgroups.own(self._root).memory_limits(), Path("/"): self._total}
        if self._limit_bytes is not None:
            return min(self._limit_bytes, *limits.values())
        rooms = [limit - self._taken.get(place, 0) for place, limit in limits.items()]
        return default_memory_bytes(max(0, min([*rooms, self._addresses])))


@dataclass(frozen=True)
class Cgroups:
    """Folders of the groups that limit this process, own group first."""

    memory_v1: tuple[Path, ...]
    cpu_v1: tuple[Path, ...]
    unified: tuple[Path, ...]

    @staticmethod
    def own(root: Path = Path("/")) -> "Cgroups":
        found = _own_folders(root)
        return Cgroups(*(found.get(controller, ()) for controller in ("memory", "cpu", "")))

    def memory_room(self) -> list[int]:
        taken = self.memory_taken()
        return [limit - taken[folder] for folder, limit in self.memory_limits().items()]

    def memory_limits(self) -> dict[Path, int]:
        limits = {folder: _limit(folder, "memory.limit_in_bytes") for folder in self.memory_v1}
        limits |= {folder: _limit(folder, "memory.max", "memory.high") for folder in self.unified}
        return {folder: limit for folder, limit in limits.items() if limit is not None}

    def memory_taken(self) -> dict[Path, int]:
        """Returns the used bytes by folder, without page cache."""
        used = [(folder, "memory.usage_in_bytes", "total_") for folder in self.memory_v1]
        used += [(folder, "memory.current", "") for folder in self.unified]
        return {
            folder: (_number(folder / name) or 0)
            # The page cache, without tmpfs, which can only be swapped.
            - sum(_field(folder / "memory.stat", f"{prefix}{kind}_file") for kind in ("inactive", "active"))
            for folder, name, prefix in used
        }

    def oom_kills(self) -> int:
        """Counts the own group's processes that were killed for lack of memory."""
        own = [folder / "memory.oom_control" for folder in self.memory_v1[:1]]
        own += [folder / "memory.events" for folder in self.unified[:1]]
        return sum(_field(path, "oom_kill") for path in own)

    def cpu_quotas(self) -> list[float]:
        pairs = [
            (next(_lines(folder / "cpu.cfs_quota_us"), ""), next(_lines(folder / "cpu.cfs_period_us"), ""))
            for folder in self.cpu_v1
        ]
        limits = [next(_lines(folder / "cpu.max"), "").partition(" ") for folder in self.unified]
        pairs += [(quota, period) for quota, _, period in limits]
        numbers = [(int(one), int(other)) for one, other in pairs if one.isdecimal() and other.isdecimal()]
        return [quota / period for quota, period in numbers if period]


def _own_folders(root: Path) -> dict[str, tuple[Path, ...]]:
    """Returns groups' folders by controller ("" in version 2), from the own group up to the mount."""
    groups: dict[str, str] = {}
    for line in _lines(root / "proc/self/cgroup"):
        controllers, _, path = line.partition(":")[2].partition(":")
        groups |= dict.fromkeys(controllers.split(","), path)
    folders: dict[str, tuple[Path, ...]] = {}
    for line in _lines(root / "proc/self/mountinfo"):
        left, _, right = line.partition(" - ")
        fields, system = left.split(" "), right.split(" ")
        if len(fields) < 5 or len(system) < 3 or system[0] not in ("cgroup", "cgroup2"):
            continue
        for controller in groups.keys() & (system[-1].split(",") if system[0] == "cgroup" else [""]):
            folders[controller] = _up_to_mount(groups[controller], fields[3], root / fields[4].lstrip("/"))
    return folders


def _up_to_mount(group: str, top: str, mount: Path) -> tuple[Path, ...]:
    inner = Path(group).relative_to(top) if Path(group).is_relative_to(top) else Path()
    return tuple([mount / part for part in (inner, *inner.parents)]) if ".." not in inner.parts else (mount,)


def _limit(folder: Path, *names: str) -> int | None:
    limits = [_number(folder / name) for name in names]
    # Version 1 writes the largest multiple of a page for "no limit".
    return min((limit for limit in limits if limit is not None and limit < 1 << 60), default=None)


def _field(path: Path, name: str) -> int:
    pairs = (line.partition(" ") for line in _lines(path))
    return next((int(value) for key, _, value in pairs if key == name and value.isdecimal()), 0)


def _number(path: Path) -> int | None:
    """Returns the file's number; None for other texts ("max", "-1")."""
    text = next(_lines(path), "")
    return int(text) if text.isdecimal() else None


def _lines(path: Path) -> Iterator[str]:
    try:
        yield from path.read_text(errors="replace").splitlines()
    except OSError:
        return  # no such limit, or unreadable
