"""Limits of the control groups (Linux, version 1 and 2) that hold for this process. Elsewhere there are none.

Everything is read from files below `root`; what is missing, unreadable or not a number is no limit.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Cgroups:
    """Folders of the groups that limit this process, per version and controller: the own one, then its ancestors."""

    memory_v1: tuple[Path, ...]
    memory_v2: tuple[Path, ...]
    cpu_v1: tuple[Path, ...]
    cpu_v2: tuple[Path, ...]

    @staticmethod
    def own(root: Path = Path("/")) -> "Cgroups":
        """The control groups of this process, as /proc and the mounts below `root` tell."""
        groups = _own_groups(root)
        mounts = _mounts(root)
        unified = _folders(groups, mounts, "")
        return Cgroups(_folders(groups, mounts, "memory"), unified, _folders(groups, mounts, "cpu"), unified)

    def memory_room(self) -> list[int]:
        """Bytes that may still be taken below each limit; page cache, which the kernel gives back, is not taken."""
        taken = self.memory_taken()
        return [limit - taken[folder] for folder, limit in self.memory_limits().items()]

    def memory_limits(self) -> dict[Path, int]:
        """The limits in bytes by the folder of the group that has each."""
        limits = {folder: _limit(folder, "memory.limit_in_bytes") for folder in self.memory_v1}
        limits |= {folder: _limit(folder, "memory.max", "memory.high") for folder in self.memory_v2}
        return {folder: limit for folder, limit in limits.items() if limit is not None}

    def memory_taken(self) -> dict[Path, int]:
        """Bytes that are taken, by the folder of each group; page cache, which the kernel gives back, is not taken."""
        used = [(folder, "memory.usage_in_bytes", "total_") for folder in self.memory_v1]
        used += [(folder, "memory.current", "") for folder in self.memory_v2]
        return {
            folder: (_number(folder / name) or 0)
            # Files in memory (not of tmpfs, which can only be swapped).
            - sum(_field(folder / "memory.stat", f"{prefix}{kind}_file") for kind in ("inactive", "active"))
            for folder, name, prefix in used
        }

    def oom_kills(self) -> int:
        """How many processes of the own group the kernel has killed for want of memory so far."""
        own = [folder / "memory.oom_control" for folder in self.memory_v1[:1]]
        own += [folder / "memory.events" for folder in self.memory_v2[:1]]
        return sum(_field(path, "oom_kill") for path in own)

    def cpu_quotas(self) -> list[float]:
        pairs = [
            (next(_lines(folder / "cpu.cfs_quota_us"), ""), next(_lines(folder / "cpu.cfs_period_us"), ""))
            for folder in self.cpu_v1
        ]
        limits = [next(_lines(folder / "cpu.max"), "").partition(" ") for folder in self.cpu_v2]
        pairs += [(quota, period) for quota, _, period in limits]
        numbers = [(int(one), int(other)) for one, other in pairs if one.isdecimal() and other.isdecimal()]
        return [quota / period for quota, period in numbers if period]


def _own_groups(root: Path) -> dict[str, str]:
    """Controller -> path of the own group in its hierarchy; version 2 is the controller ""."""
    groups: dict[str, str] = {}
    for line in _lines(root / "proc/self/cgroup"):
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        groups |= dict.fromkeys(controllers.split(","), path)
    return groups


def _mounts(root: Path) -> dict[str, tuple[str, Path]]:
    """Controller -> (path of the group that is mounted, where)."""
    mounts: dict[str, tuple[str, Path]] = {}
    for line in _lines(root / "proc/self/mountinfo"):
        left, _, right = line.partition(" - ")
        fields, system = left.split(" "), right.split(" ")
        if len(fields) < 5 or len(system) < 3 or system[0] not in ("cgroup", "cgroup2"):
            continue
        place = (fields[3], root / fields[4].lstrip("/"))
        controllers = [""] if system[0] == "cgroup2" else system[-1].split(",")
        mounts |= dict.fromkeys(controllers, place)
    return mounts


def _folders(
    groups: dict[str, str], mounts: dict[str, tuple[str, Path]], controller: str
) -> tuple[Path, ...]:
    """The folders from the own group up to the mount.

    In a container the mount often is the own group, whatever it is called.
    """
    if controller not in groups or controller not in mounts:
        return ()
    top, mount = mounts[controller]
    try:
        inner = Path(groups[controller]).relative_to(top)
    except ValueError:
        return (mount,)
    return tuple([mount / part for part in (inner, *inner.parents)]) if ".." not in inner.parts else (mount,)


def _limit(folder: Path, *names: str) -> int | None:
    limits = [_number(folder / name) for name in names]
    # Version 1 writes the largest multiple of a page where there is none.
    return min((limit for limit in limits if limit is not None and limit < 1 << 60), default=None)


def _field(path: Path, name: str) -> int:
    """The number beside `name` in a file of lines "name number"; 0 where it is not there."""
    pairs = (line.partition(" ") for line in _lines(path))
    return next((int(value) for key, _, value in pairs if key == name and value.isdecimal()), 0)


def _number(path: Path) -> int | None:
    """The file's number; None if there is none ("max", "-1")."""
    text = next(_lines(path), "")
    return int(text) if text.isdecimal() else None


def _lines(path: Path) -> Iterator[str]:
    try:
        yield from path.read_text(errors="replace").splitlines()
    except OSError:
        return  # no such limit, or not for us to see
