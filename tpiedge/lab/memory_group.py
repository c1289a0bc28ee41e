"""Limits the memory of processes, including the page cache, with a control group. Needs Linux and root.

A page counts for the group that first touched the page, so drop the caches first (`echo 1 > /proc/sys/vm/drop_caches`).
"""

import contextlib
import itertools
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tpiedge.errors import ResourceError, UserError
from tpiedge.host.device import Cgroups

#: A shell's script that joins the group with the members' file $0, then becomes the command $@. So the group counts
#: all pages of the command.
ENTER = 'echo $$ > "$0" && exec "$@"'

_UNLIMITED = 1 << 60  # version 1 writes the largest multiple of a page
_numbers = itertools.count()


@dataclass(frozen=True)
class MemoryUse:
    peak_bytes: int
    refusals: int
    oom_kills: int


@dataclass(frozen=True)
class _Files:
    limit: str
    usage: str
    peak: str
    events: str
    refusals: str
    no_swap: str
    swap_limit: str = ""


_V1 = _Files(
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    "memory.max_usage_in_bytes",
    "memory.oom_control",
    "memory.failcnt",
    "memory.swappiness",
    "memory.memsw.limit_in_bytes",
)
_V2 = _Files(
    "memory.max", "memory.current", "memory.peak", "memory.events", "memory.events", "memory.swap.max"
)


class MemoryGroup:
    def __init__(self, folder: Path, version: int) -> None:
        self.folder = folder
        self._files = _V1 if version == 1 else _V2

    @property
    def members_file(self) -> Path:
        """Processes join by writing their ids to this file."""
        return self.folder / "cgroup.procs"

    @property
    def members(self) -> set[int]:
        """The process ids of the members in this pid namespace."""
        return {int(pid) for pid in self.members_file.read_text().split()} - {0}

    @property
    def counts(self) -> bool:
        """Whether the kernel reports peak memory. Version 2 of control groups does since Linux 5.19."""
        return (self.folder / self._files.peak).exists()

    def limit(self, nbytes: int, swap_bytes: int = 0) -> None:
        """Limits memory and swap. Raises OSError, for example if more is used."""
        files = self._files
        if not swap_bytes:
            self._write_if_there(files.no_swap, 0)
        both, total = self.folder / files.swap_limit, nbytes + swap_bytes
        counts_both = bool(files.swap_limit) and both.exists()  # of version 1, where swap is accounted for
        # The sum must never be less than the limit of memory.
        if counts_both and int(both.read_text()) < total:
            both.write_text(str(total))
        (self.folder / files.limit).write_text(str(nbytes))
        if counts_both:
            both.write_text(str(total))
        elif swap_bytes and not files.swap_limit:
            self._write_if_there(files.no_swap, swap_bytes)

    @property
    def limit_bytes(self) -> int | None:
        text = (self.folder / self._files.limit).read_text().strip()
        return int(text) if text.isdecimal() and int(text) < _UNLIMITED else None

    def use(self) -> MemoryUse:
        files = self._files
        refusals = (self.folder / files.refusals).read_text()
        return MemoryUse(
            peak_bytes=int((self.folder / files.peak).read_text()),
            refusals=_fields(refusals)["max"] if files is _V2 else int(refusals),
            oom_kills=_fields((self.folder / files.events).read_text()).get("oom_kill", 0),
        )

    @property
    def used_bytes(self) -> int:
        """Bytes used now, cached files included."""
        return int((self.folder / self._files.usage).read_text())

    @property
    def held_bytes(self) -> int:
        """Bytes used now, except cached files."""
        files = self.counter("inactive_file") + self.counter("active_file")
        return self.used_bytes - files

    def counter(self, *names: str) -> int:
        found = _fields((self.folder / "memory.stat").read_text())
        return next(found[name] for name in names if name in found)

    def kill(self) -> None:
        """Kills all members except this process. Raises ResourceError after 20 s."""
        deadline = time.monotonic() + 20.0
        while members := self.members - {os.getpid()}:
            for member in members:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(member, signal.SIGKILL)
            if time.monotonic() > deadline:
                raise ResourceError(f"processes of {self.folder} do not end: {sorted(members)}")
            time.sleep(0.01)

    def remove(self) -> None:
        """Kills the members and removes the group. Raises ResourceError, OSError."""
        self.kill()
        self.folder.rmdir()

    def _write_if_there(self, name: str, value: int) -> None:
        if (self.folder / name).exists():
            (self.folder / name).write_text(str(value))


@contextlib.contextmanager
def memory_group(limit_bytes: int, root: Path = Path("/")) -> Iterator[MemoryGroup]:
    """Makes a group for the block, then kills its members. Raises UserError, ResourceError, OSError."""
    group = _made(Cgroups.own(root))
    try:
        group.limit(limit_bytes)
        yield group
    finally:
        group.remove()


def _made(own: Cgroups) -> MemoryGroup:
    name = f"tpiedge-{os.getpid()}-{next(_numbers)}"
    if own.memory_v1:
        group = MemoryGroup(own.memory_v1[0] / name, 1)
    elif own.unified:
        group = MemoryGroup(own.unified[-1] / name, 2)
    else:
        raise UserError("this system has no control groups that limit memory")
    try:
        if not own.memory_v1:
            (group.folder.parent / "cgroup.subtree_control").write_text("+memory")
        group.folder.mkdir()
    except OSError as error:
        raise UserError(
            f"cannot make the control group {group.folder}: {error.strerror} (it needs root)"
        ) from None
    if not group.counts:
        group.remove()
        raise UserError("the control groups of this kernel do not tell the most that was used")
    return group


def _fields(text: str) -> dict[str, int]:
    pairs = (line.partition(" ") for line in text.splitlines())
    return {name: int(number) for name, _, number in pairs if number.isdecimal()}
