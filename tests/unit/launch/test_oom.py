"""A process that the kernel killed for want of memory: told apart from one that was killed by another process."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.command import wait_for
from tpiedge.errors import OutOfMemory, PeerError, ResourceError
from tpiedge.host.cgroups import Cgroups
from tpiedge.launch.child import Child
from tpiedge.units import MIB

V1_MOUNT = "32 31 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
V2_MOUNT = "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
_LIMIT = 64 * MIB
OUT_OF_MEMORY = "it ran out of memory (killed by the system's OOM killer)"


def computer(root: Path, groups: str, mounts: str, files: dict[str, str]) -> Path:
    contents = {"proc/self/cgroup": groups, "proc/self/mountinfo": mounts, **files}
    for name, text in contents.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_version_1_counts_the_own_group(tmp_path):
    counts = {
        "sys/fs/cgroup/memory/box/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
        "sys/fs/cgroup/memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 40\n",
    }
    assert Cgroups.own(computer(tmp_path, "4:memory:/box\n", V1_MOUNT, counts)).oom_kills() == 3


def test_version_2_counts_the_own_group(tmp_path):
    events = "low 0\nhigh 0\nmax 7\noom 2\noom_kill 5\noom_group_kill 1\n"
    counts = {"sys/fs/cgroup/box/memory.events": events, "sys/fs/cgroup/memory.events": "oom_kill 40\n"}
    assert Cgroups.own(computer(tmp_path, "0::/box\n", V2_MOUNT, counts)).oom_kills() == 5


@pytest.mark.parametrize("text", ["", "oom_kill\n", "oom_kill many\n", "oom_kill_disable 0\nunder_oom 0\n"])
def test_a_kernel_that_does_not_count(tmp_path, text):
    counts = {"sys/fs/cgroup/memory/box/memory.oom_control": text}
    assert Cgroups.own(computer(tmp_path, "4:memory:/box\n", V1_MOUNT, counts)).oom_kills() == 0


def test_without_groups(tmp_path):
    assert Cgroups.own(tmp_path).oom_kills() == 0


def start(folder: Path, code: str, *, reports: bool = False) -> Child:
    (folder / "victim.py").write_text(code)
    return Child("victim", b"", {"PYTHONPATH": str(folder)}, reports=reports)


def test_a_child_that_says_so_ends_for_want_of_memory_before_it_is_gone(tmp_path):
    child = start(
        tmp_path,
        "import sys; print('OutOfMemory: a tensor', file=sys.stderr, flush=True); sys.stdin.readlines()",
    )
    try:
        wait_for(lambda: child.out_of_memory, 20)
        assert child.exit_cause() is None
    finally:
        child.stop(time.monotonic() + 10)


@pytest.mark.parametrize(
    ("kills", "words"), [(0, "its process was killed by SIGKILL"), (1, OUT_OF_MEMORY)], ids=["kill", "oom"]
)
def test_what_a_killed_child_is_called(monkeypatch, tmp_path, kills, words):
    counts = [4]
    monkeypatch.setattr(Cgroups, "oom_kills", lambda self: counts[-1])
    child = start(tmp_path, "import sys; sys.stdin.readlines()")
    try:
        counts.append(4 + kills)
        os.kill(child.pid, signal.SIGKILL)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert child.exit_cause() == words
    finally:
        child.stop(time.monotonic())


@pytest.mark.parametrize(("kills", "kind"), [(0, PeerError), (1, OutOfMemory)], ids=["kill", "oom"])
def test_a_child_that_dies_before_it_is_ready_says_whose_fault_it_is(monkeypatch, tmp_path, kills, kind):
    counts = [4]
    monkeypatch.setattr(Cgroups, "oom_kills", lambda self: counts[-1])
    child = start(tmp_path, "import sys; sys.stdin.readlines()", reports=True)
    try:
        counts.append(4 + kills)
        os.kill(child.pid, signal.SIGKILL)
        with pytest.raises(kind, match="a process that was to get ready did not report: it"):
            child.read_report(time.monotonic() + 10)
    finally:
        child.stop(time.monotonic())


def test_a_system_that_starts_no_process_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "gone"))
    with pytest.raises(ResourceError, match=r"cannot start a process \(No such file or directory\)"):
        start(tmp_path, "")


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A control group with little memory, below this process's own one."""
    group = make_small_group()
    if group is None:
        pytest.skip("groups: none with a memory limit can be made (root)")
    yield group
    wait_for(lambda: not (group / "cgroup.procs").read_text(), 5)
    group.rmdir()


def make_small_group() -> Path | None:
    own = Cgroups.own()
    places = [(folder, "memory.limit_in_bytes") for folder in own.memory_v1[:1]]
    places += [(folder, "memory.max") for folder in own.memory_v2[:1]]
    for parent, limit in places:
        group = parent / f"tpiedge-test-{os.getpid()}"
        with contextlib.suppress(OSError):
            group.mkdir()
            try:
                (group / limit).write_text(str(_LIMIT))
            except OSError:  # of version 2: memory is not handed down to groups below this one
                group.rmdir()
            else:
                return group
    return None


def test_the_kernel_kills_a_child_that_takes_too_much(small_group, tmp_path):
    (tmp_path / "victim.py").write_text(f"import sys; held = b'x' * {4 * _LIMIT}; sys.stdin.readlines()")
    parent = f"""
import os, time
open({str(small_group / "cgroup.procs")!r}, "w").write(str(os.getpid()))
from tpiedge.launch.child import Child
child = Child("victim", b"", {{"PYTHONPATH": {str(tmp_path)!r}}})
os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
print(child.exit_cause())
child.stop(time.monotonic())
"""
    done = subprocess.run(
        [sys.executable, "-c", parent], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.stdout == f"{OUT_OF_MEMORY}\n", done.stderr
