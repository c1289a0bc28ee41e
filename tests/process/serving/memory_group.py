"""A control group with a memory limit, as a container has. Linux, root."""

import contextlib
import os
from pathlib import Path

import psutil

from tests.process.command import wait_for
from tpiedge.nodes.cgroups import Cgroups

__all__ = ["MemoryGroup", "new_memory_group"]

_END_S = 5.0
_MARGIN = 1 << 20


class MemoryGroup:
    """Made by `new_memory_group`; `remove` it when its processes have ended."""

    def __init__(self, folder: Path, limit: str, used: str) -> None:
        self._folder = folder
        self._limit = folder / limit
        self._used = folder / used

    def add(self, process: psutil.Process) -> None:
        """With what it will start."""
        (self._folder / "cgroup.procs").write_text(str(process.pid))

    @property
    def held_bytes(self) -> int:
        """What the kernel cannot take back, files in memory left out, and a little more."""
        files = sum(self._numbers("memory.stat")[name] for name in ("inactive_file", "active_file"))
        return int(self._used.read_text()) - files + _MARGIN

    def try_limit(self, nbytes: int) -> bool:
        """False where more is taken and cannot be given back."""
        with contextlib.suppress(OSError):
            self._limit.write_text(str(nbytes))
            return True
        return False

    @property
    def kills(self) -> int:
        """How many of its processes the kernel has killed for want of memory."""
        name = "memory.oom_control" if (self._folder / "memory.oom_control").exists() else "memory.events"
        return self._numbers(name)["oom_kill"]

    def remove(self) -> None:
        wait_for(lambda: not (self._folder / "cgroup.procs").read_text(), _END_S)
        self._folder.rmdir()

    def _numbers(self, name: str) -> dict[str, int]:
        """Of a file of lines "name number"."""
        lines = (line.split() for line in (self._folder / name).read_text().splitlines())
        return {name: int(number) for name, number in lines}


def new_memory_group() -> MemoryGroup | None:
    """Below this process's own one; None where that is not allowed."""
    own = Cgroups.own()
    places = [(folder, "memory.limit_in_bytes", "memory.usage_in_bytes") for folder in own.memory_v1[:1]]
    places += [(folder, "memory.max", "memory.current") for folder in own.memory_v2[:1]]
    for parent, limit, used in places:
        folder = parent / f"tpiedge-serving-{os.getpid()}"
        with contextlib.suppress(OSError):
            folder.mkdir()
            if (folder / limit).exists():
                return MemoryGroup(folder, limit, used)
            folder.rmdir()  # of version 2: memory is not handed down to groups below this one
    return None
