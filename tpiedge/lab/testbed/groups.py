"""The control groups of a device: processor time and memory, in version 1 or 2 of either. Linux, root.

All groups of a testbed lie below the topmost group that this process sees, so they outlive the process that makes them
and their names can be told from the testbed's: what is left after a crash is found by its name alone.
"""

import contextlib
import math
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tpiedge.errors import ResourceError
from tpiedge.host.cgroups import Cgroups
from tpiedge.host.memory_group import MemoryGroup

_REMOVED_S = 10.0
_POLL_S = 0.01
_PERIOD_US = 10_000
_LEAST_QUOTA_US = 1_000


@dataclass(frozen=True)
class GroupUse:
    """A device's use now: bytes, and processes that the kernel has killed for want of memory. None: not counted."""

    used_bytes: int | None
    peak_bytes: int | None
    limit_bytes: int | None
    oom_kills: int


@dataclass(frozen=True)
class Controllers:
    """Where groups can be made: the topmost folder of each controller; None where there is none."""

    cpu: Path | None
    cpu_version: int
    memory: Path | None
    memory_version: int

    @staticmethod
    def here(root: Path = Path("/")) -> "Controllers":
        """The controllers of this computer. A controller is in one of the two hierarchies only."""
        own = Cgroups.own(root)
        cpu, cpu_version = _topmost(own.cpu_v1, own.cpu_v2, "cpu")
        memory, memory_version = _topmost(own.memory_v1, own.memory_v2, "memory")
        return Controllers(cpu, cpu_version, memory, memory_version)

    def folders(self, name: str) -> tuple[Path, ...]:
        """The folders of the groups `name`, one or two."""
        tops = (self.cpu, self.memory)
        return tuple(dict.fromkeys(top / name for top in tops if top is not None))

    def make(self, name: str) -> tuple[Path, ...]:
        """The folders. Raises OSError where the system does not allow it."""
        for top, version, controller in self._controllers():
            if version == 2:
                (top / "cgroup.subtree_control").write_text(f"+{controller}")
        folders = self.folders(name)
        for folder in folders:
            folder.mkdir(exist_ok=True)
        return folders

    def limit_cpus(self, name: str, cpus: float) -> None:
        """Raises OSError."""
        if self.cpu is None:
            return
        quota, period = cpu_quota_us(cpus)
        folder = self.cpu / name
        if self.cpu_version == 2:
            (folder / "cpu.max").write_text(f"{quota} {period}")
        else:
            (folder / "cpu.cfs_period_us").write_text(str(period))
            (folder / "cpu.cfs_quota_us").write_text(str(quota))

    def limit_memory(self, name: str, nbytes: int, swap_bytes: int) -> None:
        """Raises OSError."""
        if self.memory is not None:
            MemoryGroup(self.memory / name, self.memory_version).limit(nbytes, swap_bytes)

    def use(self, name: str) -> GroupUse:
        """The use of memory. All is unknown where the group is not there, or is removed meanwhile."""
        if self.memory is not None:
            with contextlib.suppress(OSError):
                return _use(MemoryGroup(self.memory / name, self.memory_version))
        return GroupUse(None, None, None, 0)

    def members(self, name: str) -> set[int]:
        """Also of the groups below: a process may have made some for itself."""
        groups = (group for folder in self.folders(name) for group in _tree(folder))
        return {pid for group in groups for pid in _members(group)}

    def found(self, prefix: str) -> set[str]:
        """The names of the groups that begin so."""
        tops = {top for top in (self.cpu, self.memory) if top is not None}
        return {folder.name for top in tops for folder in top.glob(f"{prefix}*") if folder.is_dir()}

    def remove(self, name: str) -> None:
        """Removes the group with what is in it and below it; this process is moved up first.

        Does nothing where there is none. Raises ResourceError.
        """
        for folder in self.folders(name):
            _remove(folder)

    def _controllers(self) -> Iterator[tuple[Path, int, str]]:
        if self.cpu is not None:
            yield self.cpu, self.cpu_version, "cpu"
        if self.memory is not None:
            yield self.memory, self.memory_version, "memory"


def processors() -> int:
    """Processors of this computer. As many, or more, for a device are no limit."""
    return os.cpu_count() or 1


def cpu_quota_us(cpus: float) -> tuple[int, int]:
    """(quota, period). Short periods: who has used up its time waits at most 10 ms for more, and longer only where the
    quota would be less than the kernel grants."""
    period = max(_PERIOD_US, math.ceil(_LEAST_QUOTA_US / cpus))
    return max(_LEAST_QUOTA_US, round(period * cpus)), period


def _topmost(v1: tuple[Path, ...], v2: tuple[Path, ...], controller: str) -> tuple[Path | None, int]:
    if v1:
        return v1[-1], 1
    if v2 and controller in _words(v2[-1] / "cgroup.controllers"):
        return v2[-1], 2
    return None, 0


def _use(group: MemoryGroup) -> GroupUse:
    """Raises OSError."""
    limit = group.limit_bytes
    if not group.counts:
        return GroupUse(group.used_bytes, None, limit, 0)
    use = group.use()
    return GroupUse(group.used_bytes, use.peak_bytes, limit, use.oom_kills)


def _remove(folder: Path) -> None:
    deadline = time.monotonic() + _REMOVED_S
    while folder.is_dir():
        try:
            for group in _tree(folder):
                if os.getpid() in _members(group):
                    (folder.parent / "cgroup.procs").write_text(str(os.getpid()))
                MemoryGroup(group, 2).remove()  # of either version: only its list of members is used
        except OSError as error:  # the kernel is a little behind, or another process was faster
            if time.monotonic() > deadline:
                raise ResourceError(f"cannot remove the control group {folder}: {error.strerror}") from None
            time.sleep(_POLL_S)


def _tree(folder: Path) -> list[Path]:
    """The group and all below it, the lowest first. None where it is not there."""
    return [Path(path) for path, _, _ in os.walk(folder, topdown=False)]


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []


def _members(group: Path) -> set[int]:
    """But those of another pid namespace, which have no id here: they read as 0."""
    return {int(pid) for pid in _words(group / "cgroup.procs")} - {0}
