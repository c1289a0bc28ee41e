"""Makes network namespaces and control groups (version 1 or 2) of devices. Needs Linux and root.

All groups lie below the topmost group that this process sees. Groups' names contain the testbed's name.
"""

import contextlib
import ctypes
import math
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tpiedge.errors import ResourceError, UserError
from tpiedge.host.device import Cgroups
from tpiedge.lab.memory_group import MemoryGroup

NAMESPACES = Path("/run/netns")
_CLONE_NEWNET = 0x40000000
_MNT_DETACH = 2


def add_namespace(name: str) -> None:
    """Makes a namespace with loopback up."""
    for command in (("ip", "netns", "add", name), ("ip", "-n", name, "link", "set", "lo", "up")):
        try:
            ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20.0)
        except FileNotFoundError:
            raise UserError("ip is not installed: it is part of the package iproute2") from None
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ResourceError(f"cannot run {' '.join(command)}: {error}") from None
        if ended.returncode:
            raise ResourceError(f"{' '.join(command)} failed: {ended.stderr.strip() or ended.returncode}")


def remove_namespace(path: Path) -> None:
    """Removes a namespace's name, if it exists. Processes keep the namespace. Raises OSError."""
    if _libc().umount2(os.fsencode(path), _MNT_DETACH) and os.geteuid():
        raise PermissionError(ctypes.get_errno(), "removing a network namespace needs root", str(path))
    path.unlink(missing_ok=True)  # a name may exist without a mount


@contextlib.contextmanager
def inside(path: Path) -> Iterator[None]:
    """Puts this thread into the namespace for the block. New sockets and processes stay there. Raises OSError."""
    with _opened(Path("/proc/thread-self/ns/net")) as before:
        with _opened(path) as wanted:
            _set_namespace(wanted)
        try:
            yield
        finally:
            _set_namespace(before)


def members_of(paths: Sequence[Path]) -> set[int]:
    wanted = {inode for path in paths if (inode := _inode(path)) is not None}
    if not wanted:
        return set()
    pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    return {pid for pid in pids if _inode(Path(f"/proc/{pid}/ns/net")) in wanted}


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _set_namespace(descriptor: int) -> None:
    if _libc().setns(descriptor, _CLONE_NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _libc() -> ctypes.CDLL:
    # Python has os.setns from 3.12 on only.
    return ctypes.CDLL(None, use_errno=True)


def end_all(members: Callable[[], set[int]], polite_s: float) -> None:
    """Sends SIGTERM to all members except this process, and SIGKILL after `polite_s`, until all have ended."""
    started = time.monotonic()
    signalled: set[int] = set()
    while running := members() - {os.getpid()}:
        waited = time.monotonic() - started
        if waited > polite_s + 20.0:
            raise ResourceError(
                f"processes of the testbed do not end: {', '.join(map(str, sorted(running)))}"
            )
        if waited > polite_s:
            _signal(running, signal.SIGKILL)
        else:
            _signal(running - signalled, signal.SIGTERM)
            _signal(running - signalled, signal.SIGCONT)  # a stopped process would not get SIGTERM
            signalled |= running
        time.sleep(0.01)


def module_processes(module: str, argument: str) -> set[int]:
    """Returns the ids of processes `... -m MODULE ARGUMENT` outside containers."""
    wanted = [os.fsencode(word) for word in ("-m", module, argument)]
    processes = (Path("/proc", name) for name in os.listdir("/proc") if name.isdecimal())
    return {int(path.name) for path in processes if _arguments(path)[-3:] == wanted and _shares_run(path)}


def _arguments(process: Path) -> list[bytes]:
    try:
        return (process / "cmdline").read_bytes().removesuffix(b"\0").split(b"\0")
    except OSError:
        return []


def _shares_run(process: Path) -> bool:
    try:
        return (process / "root" / "run").samefile("/run")
    except OSError:
        return False


def _signal(pids: set[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


@dataclass(frozen=True)
class GroupUse:
    """A group's memory use. None means unknown. A `limit_bytes` of None may also mean unlimited."""

    used_bytes: int | None
    peak_bytes: int | None
    limit_bytes: int | None
    oom_kills: int


@dataclass(frozen=True)
class Controllers:
    """The topmost group of each controller; None without the controller."""

    cpu: Path | None
    cpu_version: int
    memory: Path | None
    memory_version: int

    @staticmethod
    def here(root: Path = Path("/")) -> "Controllers":
        own = Cgroups.own(root)
        cpu, cpu_version = _topmost(own.cpu_v1, own.unified, "cpu")
        memory, memory_version = _topmost(own.memory_v1, own.unified, "memory")
        return Controllers(cpu, cpu_version, memory, memory_version)

    def folders(self, name: str) -> tuple[Path, ...]:
        tops = (self.cpu, self.memory)
        return tuple(dict.fromkeys(top / name for top in tops if top is not None))

    def make(self, name: str) -> tuple[Path, ...]:
        for top, version, controller in self._controllers():
            if version == 2:
                (top / "cgroup.subtree_control").write_text(f"+{controller}")
        folders = self.folders(name)
        for folder in folders:
            folder.mkdir(exist_ok=True)
        return folders

    def limit_cpus(self, name: str, cpus: float) -> None:
        """Limits a group's processors. Raises OSError."""
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
        if self.memory is not None:
            MemoryGroup(self.memory / name, self.memory_version).limit(nbytes, swap_bytes)

    def use(self, name: str) -> GroupUse:
        """Returns the group's memory use. All sizes are None if the group cannot be read."""
        if self.memory is not None:
            with contextlib.suppress(OSError):
                return _use(MemoryGroup(self.memory / name, self.memory_version))
        return GroupUse(None, None, None, 0)

    def members(self, name: str) -> set[int]:
        """Returns the process ids in the group and its subgroups."""
        groups = (group for folder in self.folders(name) for group in _tree(folder))
        return {pid for group in groups for pid in _pids_of(group)}

    def found(self, prefix: str) -> set[str]:
        tops = {top for top in (self.cpu, self.memory) if top is not None}
        return {folder.name for top in tops for folder in top.glob(f"{prefix}*") if folder.is_dir()}

    def remove(self, name: str) -> None:
        """Moves this process out, kills the other members, and removes the group."""
        for folder in self.folders(name):
            _remove_group(folder)

    def _controllers(self) -> Iterator[tuple[Path, int, str]]:
        if self.cpu is not None:
            yield self.cpu, self.cpu_version, "cpu"
        if self.memory is not None:
            yield self.memory, self.memory_version, "memory"


def processors() -> int:
    return os.cpu_count() or 1


def cpu_quota_us(cpus: float) -> tuple[int, int]:
    """Returns (quota, period) in microseconds."""
    least_us = 1_000  # the kernel's least quota
    period = max(10_000, math.ceil(least_us / cpus))
    return max(least_us, round(period * cpus)), period


def _topmost(v1: tuple[Path, ...], v2: tuple[Path, ...], controller: str) -> tuple[Path | None, int]:
    if v1:
        return v1[-1], 1
    if v2 and controller in _words(v2[-1] / "cgroup.controllers"):
        return v2[-1], 2
    return None, 0


def _use(group: MemoryGroup) -> GroupUse:
    limit = group.limit_bytes
    if not group.counts:
        return GroupUse(group.used_bytes, None, limit, 0)
    use = group.use()
    return GroupUse(group.used_bytes, use.peak_bytes, limit, use.oom_kills)


def _remove_group(folder: Path) -> None:
    deadline = time.monotonic() + 10.0
    while folder.is_dir():
        try:
            for group in _tree(folder):
                if os.getpid() in _pids_of(group):
                    (folder.parent / "cgroup.procs").write_text(str(os.getpid()))
                MemoryGroup(group, 2).remove()  # of either version: only its list of members is used
        except OSError as error:  # the kernel is a little behind, or another process was faster
            if time.monotonic() > deadline:
                raise ResourceError(f"cannot remove the control group {folder}: {error.strerror}") from None
            time.sleep(0.01)


def _tree(folder: Path) -> list[Path]:
    return [Path(path) for path, _, _ in os.walk(folder, topdown=False)]


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []


def _pids_of(group: Path) -> set[int]:
    return {int(pid) for pid in _words(group / "cgroup.procs")} - {0}  # 0: of another pid namespace
