"""What is remembered of a testbed while it is there, and who may change it. Linux.

Everything of the testbed NAME has a name that can be told from it: namespaces and control groups `tpiedge.NAME.*`, the
folder `/run/tpiedge/testbeds/NAME`, a switch that was started with the socket in that folder. So what a killed command
left is found without any record of it. The state, which is written before anything else is made, says what the names do
not: the description, changes of links, who brought it up.
"""

import contextlib
import fcntl
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil

from tpiedge.errors import ResourceError, UserError
from tpiedge.lab.testbed.description import Link, parse_description
from tpiedge.lab.testbed.topology import Topology
from tpiedge.pack.files import open_lock

ROOT = Path("/run/tpiedge/testbeds")

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NEEDS_ROOT = "a testbed needs root, for namespaces and control groups: run it with sudo"
_NEEDS_LINUX = "the testbed needs Linux: elsewhere use containers (tpiedge testbed up --backend docker)"


@dataclass(frozen=True)
class Owner:
    """A process, told from a later one of the same id."""

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
    """`maker` brings it up. It belongs to `owner`, with which it ends, or, once `ready`, to no process.

    `links`: member -> (up, down), where they differ from what the description says.
    """

    name: str
    text: str
    maker: Owner
    owner: Owner | None = None
    ready: bool = False
    boot: str = field(default_factory=lambda: _boot())
    links: Mapping[str, tuple[Link, Link]] = field(default_factory=dict)

    @property
    def topology(self) -> Topology:
        """The topology with the links as they are now."""
        topology = Topology(parse_description(self.text, f"the testbed {self.name}"))
        for member, (up, down) in self.links.items():
            topology = topology.with_links(member, up, down)
        return topology

    @property
    def abandoned(self) -> bool:
        """Whether only its removal is left: the process that was to finish or to end it is gone, or the computer
        restarted.
        """
        if self.boot != _boot():
            return True
        keeper = self.owner if self.ready else self.maker
        return keeper is not None and not keeper.alive

    @property
    def orphaned(self) -> bool:
        """Whether it belonged to a process that has ended: nobody is to end it any more."""
        return self.owner is not None and not self.owner.alive

    def write(self) -> None:
        """Writes the file in one step: a reader sees the old state or the new one."""
        folder = folder_of(self.name)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        partial = folder / "state.json.partial"
        partial.write_text(json.dumps(asdict(self)))
        partial.replace(folder / "state.json")


def read_state(name: str) -> TestbedState | None:
    """None where there is no such testbed, or none that says enough to do more than to remove it. Raises UserError
    without the right to look."""
    try:
        record = json.loads((folder_of(name) / "state.json").read_text())
        owners = {key: record[key] and Owner(**record[key]) for key in ("maker", "owner")}
        links = {member: (Link(**up), Link(**down)) for member, (up, down) in record["links"].items()}
        return TestbedState(**(record | owners | {"links": links}))
    except FileNotFoundError:
        return None
    except PermissionError:
        raise UserError(_NEEDS_ROOT) from None
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def names() -> list[str]:
    """The names of testbeds that have a folder, whatever is in it."""
    try:
        return sorted(entry.name for entry in os.scandir(ROOT) if entry.is_dir())
    except OSError:
        return []


def folder_of(name: str) -> Path:
    return ROOT / name


def socket_of(name: str) -> Path:
    """The path of the switch's socket."""
    return folder_of(name) / "control.sock"


def prefix_of(name: str) -> str:
    """What the names of namespaces and control groups begin with. Names of testbeds have no dots."""
    return f"tpiedge.{name}."


@contextlib.contextmanager
def locked(limit_s: float = 60.0) -> Iterator[None]:
    """Holds the lock of all testbeds, so that no other process changes one.

    Raises UserError without root, ResourceError if another command holds it for so long.
    """
    require_root()
    ROOT.mkdir(parents=True, exist_ok=True, mode=0o700)
    deadline = time.monotonic() + limit_s
    descriptor = open_lock(ROOT / "lock")
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise ResourceError("another command works on a testbed: try again") from None
                time.sleep(0.02)
        yield
    finally:
        os.close(descriptor)


def require_root() -> None:
    """And Linux. Raises UserError."""
    if sys.platform != "linux":
        raise UserError(_NEEDS_LINUX)
    if os.geteuid():
        raise UserError(_NEEDS_ROOT)


def _boot() -> str:
    """Another one after each restart; elsewhere than on Linux there is none."""
    return _BOOT_ID.read_text().strip() if sys.platform == "linux" else ""


def _started(pid: int) -> float | None:
    """When a process that runs was started: on Linux in ticks since the computer was, for setting the clock does not
    move them. None where it has ended."""
    if sys.platform != "linux":
        try:
            return psutil.Process(pid).create_time()
        except psutil.NoSuchProcess:
            return None
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    state, *fields = text.rpartition(")")[2].split()  # what is before may have spaces and brackets
    # A zombie, or dead.
    return None if state in ("Z", "X") else float(fields[18])
