import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tpiedge.host.device import default_memory_bytes, default_threads, free_disk_bytes
from tpiedge.units import GIB, MIB


@pytest.mark.parametrize(
    ("available", "taken"),
    [
        (0, 0),
        (100 * MIB, 0),
        (500 * MIB, 372 * MIB),  # 128 MiB stay
        (5 * GIB, 4 * GIB),  # a fifth stays
        (100 * GIB, 98 * GIB),  # 2 GiB stay
    ],
)
def test_default_memory_leaves_a_reserve(available, taken):
    assert default_memory_bytes(available) == pytest.approx(taken, abs=1)


def topology(root: Path, siblings: dict[int, str], name: str) -> None:
    for thread, text in siblings.items():
        folder = root / f"sys/devices/system/cpu/cpu{thread}/topology"
        folder.mkdir(parents=True)
        (folder / name).write_text(text + "\n")


#: Four cores of two hardware threads each, in the orders in which firmware numbers them.
APART = {thread: f"{thread % 4},{thread % 4 + 4}" for thread in range(8)}
BESIDE = {thread: f"{thread // 2 * 2}-{thread // 2 * 2 + 1}" for thread in range(8)}
ALONE = {thread: str(thread) for thread in range(8)}


@pytest.mark.parametrize("name", ["core_cpus_list", "thread_siblings_list"])
@pytest.mark.parametrize(
    ("siblings", "allowed", "threads"),
    [
        (APART, {0, 4}, 1),
        (APART, {0, 1}, 2),
        (BESIDE, {0, 1}, 1),
        (BESIDE, {0, 2, 3}, 2),
        (ALONE, set(range(8)), 8),
    ],
)
def test_threads_under_an_affinity_mask_are_its_physical_cores(
    siblings, allowed, threads, name, tmp_path, monkeypatch
):
    """`taskset -c 0,1` may be one core or two."""
    topology(tmp_path, siblings, name)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: allowed, raising=False)
    monkeypatch.setattr(psutil, "cpu_count", lambda logical=True: 8 if logical else 4)
    assert default_threads(tmp_path) == threads


@pytest.mark.parametrize(("quota", "threads"), [("50000 100000", 1), ("250000 100000", 2), ("max 100000", 3)])
def test_cpu_quota_limits_threads_beside_the_affinity_mask(quota, threads, tmp_path, monkeypatch):
    topology(tmp_path, APART, "core_cpus_list")
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    (tmp_path / "proc/self/mountinfo").write_text("30 25 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup rw\n")
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/cpu.max").write_text(f"{quota}\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 4, 1, 2}, raising=False)
    monkeypatch.setattr(psutil, "cpu_count", lambda logical=True: 8 if logical else 4)
    assert default_threads(tmp_path) == threads


def test_free_disk_is_known_for_a_missing_folder(tmp_path):
    assert free_disk_bytes(tmp_path / "not" / "yet") == pytest.approx(free_disk_bytes(tmp_path), rel=0.1)


def test_disk_speed_and_slot_do_not_import_torch():
    code = "import sys, tpiedge.host.disk_speed, tpiedge.launch.slot; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
