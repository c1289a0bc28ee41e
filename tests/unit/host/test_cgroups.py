from pathlib import Path

import psutil
import pytest

from tpiedge.host.device import (
    Cgroups,
    MemoryLimits,
    available_memory_bytes,
    default_memory_bytes,
    default_threads,
    usable_cores,
)
from tpiedge.units import GIB, MIB

V1_MOUNTS = """\
31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,nosuid shared:9 - cgroup cgroup rw,memory
"""
V1_GROUPS = "4:memory:/box/inner\n2:cpu,cpuacct:/box\n1:name=systemd:/init\n0::/\n"
V2_MOUNTS = "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n"
NO_LIMIT = 9223372036854771712


@pytest.fixture
def computer(tmp_path):
    """Lay out files: computer(groups, mounts, {path below /sys/fs/cgroup: contents}) -> root."""

    def build(groups: str, mounts: str, files: dict[str, object]) -> Path:
        contents = {"proc/self/cgroup": groups, "proc/self/mountinfo": mounts}
        contents |= {f"sys/fs/cgroup/{name}": f"{value}\n" for name, value in files.items()}
        for name, text in contents.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return build


def v1_memory(folder: str, limit: int, used: int, stat: str = "") -> dict[str, object]:
    names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat")
    return {f"{folder}/{name}": value for name, value in zip(names, (limit, used, stat), strict=True)}


def v2_memory(folder: str, limit: object, used: int, stat: str = "") -> dict[str, object]:
    names = ("memory.max", "memory.current", "memory.stat")
    return {f"{folder}{name}": value for name, value in zip(names, (limit, used, stat), strict=True)}


def test_cgroup_v1_limits_include_ancestors(computer):
    stat = "cache 500\ninactive_file 1\ntotal_inactive_file 30\ntotal_active_file 20"
    root = computer(
        V1_GROUPS,
        V1_MOUNTS,
        v1_memory("memory/box/inner", 1000, 400, stat)
        | {"memory/box/inner/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3"}
        | {"memory/box/memory.oom_control": "oom_kill 40"}
        | v1_memory("memory/box", 900, 450)
        | v1_memory("memory", NO_LIMIT, 5000)
        | {"cpu,cpuacct/box/cpu.cfs_quota_us": 150000, "cpu,cpuacct/box/cpu.cfs_period_us": 100000}
        | {"cpu,cpuacct/cpu.cfs_quota_us": -1, "cpu,cpuacct/cpu.cfs_period_us": 100000},
    )
    groups = Cgroups.own(root)
    assert groups.memory_room() == [650, 450]
    assert groups.cpu_quotas() == [1.5]
    assert groups.oom_kills() == 3
    assert available_memory_bytes(root) == 450
    assert usable_cores(root) == min(1.5, usable_cores())
    assert default_threads(root) == 1


def test_cgroup_v2_limits_include_ancestors(computer):
    stat = "anon 100\nfile 90\ninactive_file 50\nactive_file 25\nshmem 15"
    root = computer(
        "0::/box/inner\n",
        V2_MOUNTS,
        v2_memory("box/inner/", "max", 700)
        | {"box/inner/memory.events": "low 0\noom_kill 5\noom 2"}
        | v2_memory("box/", 2000, 800, stat)
        | {"box/memory.high": 1000, "box/memory.events": "oom_kill 40"}
        | {"box/inner/cpu.max": "max 100000", "box/cpu.max": "50000 100000"},
    )
    groups = Cgroups.own(root)
    assert groups.memory_room() == [275]
    assert groups.cpu_quotas() == [0.5]
    assert groups.oom_kills() == 5
    assert default_threads(root) == 1  # a part of a core is one thread


@pytest.mark.parametrize(
    ("own", "mounted"),
    [("/", "/"), ("/docker/abc", "/docker/abc"), ("/docker/abc", "/elsewhere"), ("/../../box", "/")],
)
def test_container_mount_is_its_own_cgroup(computer, own, mounted):
    mounts = f"31 23 0:28 {mounted} /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
    root = computer(f"0::{own}\n", mounts, v2_memory("", 1000, 100))
    assert Cgroups.own(root).memory_room() == [900]


@pytest.mark.parametrize("value", ["max", "", "-1", "lots", "12 34"])
def test_unparsable_cgroup_values_mean_no_limit(computer, value):
    root = computer("0::/\n", V2_MOUNTS, v2_memory("", value, 100) | {"cpu.max": value})
    assert Cgroups.own(root) != Cgroups((), (), ())
    assert Cgroups.own(root).memory_room() == []
    assert Cgroups.own(root).cpu_quotas() == ([] if value != "12 34" else [12 / 34])


def test_usable_memory_follows_limits_and_not_current_use(computer):
    groups = "0::/box\n"
    root = computer(groups, V2_MOUNTS, v2_memory("box/", 2 * GIB, GIB, f"inactive_file {GIB // 2}"))
    usual, given, little = (MemoryLimits(limit, root) for limit in (None, GIB, GIB // 4))
    assert usual.usable_bytes() == default_memory_bytes(3 * GIB // 2)
    assert (given.usable_bytes(), little.usable_bytes()) == (GIB, GIB // 4)
    computer(groups, V2_MOUNTS, v2_memory("box/", 2 * GIB, 2 * GIB))
    assert usual.usable_bytes() == default_memory_bytes(3 * GIB // 2), "its own node takes memory, too"
    computer(groups, V2_MOUNTS, v2_memory("box/", GIB - MIB, GIB // 2))
    assert usual.usable_bytes() == default_memory_bytes(GIB // 2 - MIB)
    assert (given.usable_bytes(), little.usable_bytes()) == (GIB - MIB, GIB // 4)
    computer(groups, V2_MOUNTS, v2_memory("box/", GIB // 4, GIB // 4))
    assert usual.usable_bytes() == 0


def test_usable_memory_is_capped_at_the_machines_memory(tmp_path):
    assert MemoryLimits(1 << 60, tmp_path).usable_bytes() == psutil.virtual_memory().total


def test_without_cgroups_nothing_is_limited(tmp_path):
    assert Cgroups.own(tmp_path) == Cgroups((), (), ())
    assert Cgroups.own(tmp_path).oom_kills() == 0
    assert abs(available_memory_bytes(tmp_path) - psutil.virtual_memory().available) < 512 * MIB


@pytest.mark.parametrize("line", ["nonsense", "31 23 0:28 / /x rw - cgroup2"])
def test_strange_mounts_are_ignored(computer, line):
    root = computer("0::/\nnonsense\n", line + "\n", {})
    assert Cgroups.own(root).memory_room() == []
