"""A control group of its own for each child: its limit counts page cache too. Linux, root; version 1 or 2."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tpiedge.errors import UserError
from tpiedge.nodes.cgroups import Cgroups

__all__ = ["MemoryGroup", "MemoryUse", "memory_group"]

_END_S = 20.0
_POLL_S = 0.02


@dataclass(frozen=True)
class MemoryUse:
    """What a group's counters say. `refusals`: how often the limit was met and something had to be given back."""

    peak_bytes: int
    refusals: int
    oom_kills: int


@dataclass(frozen=True)
class _Files:
    """The names of one version's files."""

    limit: str
    swap: str
    peak: str
    events: str
    refusals: str


_V1 = _Files(
    "memory.limit_in_bytes",
    "memory.swappiness",
    "memory.max_usage_in_bytes",
    "memory.oom_control",
    "memory.failcnt",
)
_V2 = _Files("memory.max", "memory.swap.max", "memory.peak", "memory.events", "memory.events")


class MemoryGroup:
    """An existing group's folder; `memory_group` makes one and removes it."""

    def __init__(self, folder: Path, files: _Files) -> None:
        self._folder = folder
        self._files = files

    @property
    def members_file(self) -> Path:
        """A process that writes its id here belongs to the group, with all that it starts."""
        return self._folder / "cgroup.procs"

    def limit(self, nbytes: int) -> None:
        """Nothing in it may be swapped: that would be memory elsewhere."""
        (self._folder / self._files.limit).write_text(str(nbytes))
        swap = self._folder / self._files.swap
        if swap.exists():
            swap.write_text("0")

    def use(self) -> MemoryUse:
        """So far."""
        events = _numbers((self._folder / self._files.events).read_text())
        refusals = (self._folder / self._files.refusals).read_text()
        return MemoryUse(
            peak_bytes=int((self._folder / self._files.peak).read_text()),
            refusals=_numbers(refusals)["max"] if self._files is _V2 else int(refusals),
            oom_kills=events.get("oom_kill", 0),
        )

    def kill(self) -> None:
        """End every member. Raises TimeoutError if one is still there after 20 s."""
        deadline = time.monotonic() + _END_S
        while members := self.members_file.read_text().split():
            for member in members:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(member), signal.SIGKILL)
            if time.monotonic() > deadline:
                raise TimeoutError(f"processes {', '.join(members)} of {self._folder} do not end")
            time.sleep(_POLL_S)

    def remove(self) -> None:
        """With what is in it."""
        self.kill()
        self._folder.rmdir()


@contextlib.contextmanager
def memory_group(nbytes: int) -> Iterator[MemoryGroup]:
    """A group of that limit below this process's own one. Its members do not outlive the block.

    Raises UserError where no such group can be made.
    """
    group = _make()
    try:
        group.limit(nbytes)
        yield group
    finally:
        group.remove()


def _make() -> MemoryGroup:
    own = Cgroups.own()
    places = [(folder, _V1) for folder in own.memory_v1[:1]] + [(folder, _V2) for folder in own.memory_v2[:1]]
    for parent, files in places:
        folder = parent / f"tpiedge-peers-{os.getpid()}"
        with contextlib.suppress(OSError):
            folder.mkdir()
            if (folder / files.limit).exists() and (folder / files.peak).exists():
                return MemoryGroup(folder, files)
            folder.rmdir()  # version 2: memory is not handed down to the groups below
    raise UserError("cannot make a control group with a memory limit: this needs Linux, cgroups and root")


def _numbers(text: str) -> dict[str, int]:
    """Of lines "name number"."""
    return {name: int(number) for name, number in (line.split() for line in text.splitlines())}
