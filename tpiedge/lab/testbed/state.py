"""Stores and locks the state of testbeds of namespaces. Needs Linux.

A testbed has the namespaces and control groups `tpiedge.NAME.*` and the folder `/run/tpiedge/testbeds/NAME`. The state
file is written first.
"""

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import psutil

from tpiedge.errors import ResourceError, UserError
from tpiedge.lab.testbed.description import Link, parse_description
from tpiedge.lab.testbed.topology import Topology
from tpiedge.pack.files import FileLock

ROOT = Path("/run/tpiedge/testbeds")

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NEEDS_ROOT = "a testbed needs root, for namespaces and control groups: run it with sudo"
_NEEDS_LINUX = "the testbed needs Linux: elsewhere use containers (tpiedge testbed up --backend docker)"


@dataclass(frozen=True)
class Owner:
    """A process. `started` distinguishes processes with the same id."""

    pid: int
    started: float
    boot: str

    @staticmethod
    def own() -> "Owner":
        return Owner(os.getpid(), _started(os.getpid()) or 0.0, _boot())

    @property
    def alive(self) -> bool:
        return self.boot == _boot() and _started(self.pid) == self.started


@dataclass(frozen=True)
class TestbedState:
    """A testbed's state. `maker` brings the testbed up. With an `owner`, the testbed lasts until the owner ends.
    `links`: changed (up, down) by member."""

    name: str
    text: str
    maker: Owner
    owner: Owner | None = None
    ready: bool = False
    boot: str = field(default_factory=lambda: _boot())
    links: Mapping[str, tuple[Link, Link]] = field(default_factory=dict)

    @property
    def topology(self) -> Topology:
        topology = Topology(parse_description(self.text, f"the testbed {self.name}"))
        for member, (up, down) in self.links.items():
            topology = topology.with_links(member, up, down)
        return topology

    @property
    def abandoned(self) -> bool:
        """Whether the computer restarted, the maker ended before `ready`, or the owner ended."""
        if self.boot != _boot():
            return True
        keeper = self.owner if self.ready else self.maker
        return keeper is not None and not keeper.alive

    @property
    def orphaned(self) -> bool:
        return self.owner is not None and not self.owner.alive

    def write(self) -> None:
        folder = folder_of(self.name)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        partial = folder / "state.json.partial"
        partial.write_bytes(msgspec.json.encode(self))
        partial.replace(folder / "state.json")


def read_state(name: str) -> TestbedState | None:
    """Returns the state, or None if its file is missing or damaged. Raises UserError without root."""
    try:
        return msgspec.json.decode((folder_of(name) / "state.json").read_bytes(), type=TestbedState)
    except PermissionError:
        raise UserError(_NEEDS_ROOT) from None
    except (FileNotFoundError, ValueError):
        return None


def names() -> list[str]:
    try:
        return sorted(entry.name for entry in os.scandir(ROOT) if entry.is_dir())
    except OSError:
        return []


def folder_of(name: str) -> Path:
    return ROOT / name


def socket_of(name: str) -> Path:
    return folder_of(name) / "control.sock"


def prefix_of(name: str) -> str:
    return f"tpiedge.{name}."


@contextlib.contextmanager
def locked(limit_s: float = 60.0) -> Iterator[None]:
    """Holds the lock of all testbeds during the block. Raises UserError without root, ResourceError after `limit_s`."""
    require_root()
    ROOT.mkdir(parents=True, exist_ok=True, mode=0o700)
    deadline = time.monotonic() + limit_s
    with FileLock(ROOT / "lock") as lock:
        while not lock.try_alone():
            if time.monotonic() > deadline:
                raise ResourceError("another command works on a testbed: try again")
            time.sleep(0.02)
        yield


def require_root() -> None:
    if sys.platform != "linux":
        raise UserError(_NEEDS_LINUX)
    if os.geteuid():
        raise UserError(_NEEDS_ROOT)


def _boot() -> str:
    return _BOOT_ID.read_text().strip() if sys.platform == "linux" else ""


def _started(pid: int) -> float | None:
    """Returns when a process started; None without the process. Linux counts ticks since boot."""
    if sys.platform != "linux":
        try:
            return psutil.Process(pid).create_time()
        except psutil.NoSuchProcess:
            return None
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    state, *fields = text.rpartition(")")[2].split()  # the name before may have spaces and brackets
    # A zombie, or dead.
    return None if state in ("Z", "X") else float(fields[18])
