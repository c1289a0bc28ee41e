"""Control groups of devices in both versions, on folders that look like a computer's."""

from pathlib import Path

import pytest

from tpiedge.lab.testbed.groups import Controllers, GroupUse, cpu_quota_us


def computer(root: Path, groups: str, mounts: str) -> Controllers:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)
    (root / "proc/self/mountinfo").write_text(mounts)
    return Controllers.here(root)


V1 = "2:memory:/own\n1:cpu,cpuacct:/own\n0::/own\n"
V1_MOUNTS = (
    "31 1 0:1 / /sys/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
    "32 1 0:2 / /sys/memory rw - cgroup cgroup rw,memory\n"
    "33 1 0:3 / /sys/unified rw - cgroup2 cgroup2 rw\n"
)


def test_version_1(tmp_path: Path) -> None:
    found = computer(tmp_path, V1, V1_MOUNTS)
    cpu, memory = tmp_path / "sys/cpu", tmp_path / "sys/memory"
    assert found == Controllers(cpu, 1, memory, 1)
    for top in (cpu, memory):
        top.mkdir(parents=True)
    assert found.make("tpiedge.x.a") == (cpu / "tpiedge.x.a", memory / "tpiedge.x.a")
    found.limit_cpus("tpiedge.x.a", 0.5)
    assert (cpu / "tpiedge.x.a/cpu.cfs_quota_us").read_text() == "5000"
    assert (cpu / "tpiedge.x.a/cpu.cfs_period_us").read_text() == "10000"
    (memory / "tpiedge.x.a/memory.memsw.limit_in_bytes").write_text("9223372036854771712\n")
    found.limit_memory("tpiedge.x.a", 1000, 500)
    assert (memory / "tpiedge.x.a/memory.limit_in_bytes").read_text() == "1000"
    assert (memory / "tpiedge.x.a/memory.memsw.limit_in_bytes").read_text() == "1500"
    (cpu / "tpiedge.y.a").mkdir()
    assert found.found("tpiedge.x.") == {"tpiedge.x.a"}
    (cpu / "tpiedge.x.a/cgroup.procs").write_text("12\n13\n")
    (memory / "tpiedge.x.a/cgroup.procs").write_text("13\n14\n")
    assert found.members("tpiedge.x.a") == {12, 13, 14}
    (memory / "tpiedge.x.a/below/deeper").mkdir(parents=True)
    (memory / "tpiedge.x.a/below/deeper/cgroup.procs").write_text("0\n15\n")  # one of another pid namespace
    assert found.members("tpiedge.x.a") == {12, 13, 14, 15}
    assert found.members("tpiedge.x.b") == set()


def test_version_2(tmp_path: Path) -> None:
    top = tmp_path / "sys/fs"
    top.mkdir(parents=True)
    (top / "cgroup.controllers").write_text("cpuset cpu io memory\n")
    (top / "cgroup.subtree_control").touch()
    found = computer(tmp_path, "0::/a/b\n", "31 1 0:1 / /sys/fs rw - cgroup2 cgroup2 rw\n")
    assert found == Controllers(top, 2, top, 2)
    assert found.make("tpiedge.x.a") == (top / "tpiedge.x.a",)
    assert (top / "cgroup.subtree_control").read_text() == "+memory"  # the file keeps the last write only
    found.limit_cpus("tpiedge.x.a", 1.5)
    assert (top / "tpiedge.x.a/cpu.max").read_text() == "15000 10000"
    (top / "tpiedge.x.a/memory.swap.max").touch()
    found.limit_memory("tpiedge.x.a", 1000, 500)
    assert (top / "tpiedge.x.a/memory.max").read_text() == "1000"
    assert (top / "tpiedge.x.a/memory.swap.max").read_text() == "500"
    (top / "tpiedge.x.a/memory.current").write_text("10\n")
    assert found.use("tpiedge.x.a") == GroupUse(10, None, 1000, 0)
    assert found.use("tpiedge.x.b") == GroupUse(None, None, None, 0)
    (top / "tpiedge.x.a/memory.current").unlink()  # as while it is removed
    assert found.use("tpiedge.x.a") == GroupUse(None, None, None, 0)


def test_a_version_2_without_the_controllers_that_matter(tmp_path: Path) -> None:
    """As beside a version 1 that has them, or where an administrator has kept them."""
    (tmp_path / "sys/fs").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup.controllers").write_text("hugetlb cpuset\n")
    found = computer(tmp_path, "0::/\n", "31 1 0:1 / /sys/fs rw - cgroup2 cgroup2 rw\n")
    assert found == Controllers(None, 0, None, 0)
    assert found.make("tpiedge.x.a") == found.folders("tpiedge.x.a") == ()
    found.limit_cpus("tpiedge.x.a", 1.0)
    found.limit_memory("tpiedge.x.a", 1, 0)
    found.remove("tpiedge.x.a")
    assert found.found("tpiedge.") == set()


@pytest.mark.parametrize(
    ("cpus", "quota", "period"),
    [
        (0.5, 5000, 10_000),
        (1.5, 15_000, 10_000),
        (0.1, 1000, 10_000),
        (0.01, 1000, 100_000),
        (0.05, 1000, 20_000),
    ],
)
def test_quotas_are_short(cpus: float, quota: int, period: int) -> None:
    assert cpu_quota_us(cpus) == (quota, period)
