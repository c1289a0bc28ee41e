from pathlib import Path

from tpiedge.lab.testbed.isolation import Controllers, GroupUse


def computer(root: Path, groups: str, mounts: str) -> Controllers:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)
    (root / "proc/self/mountinfo").write_text(mounts)
    return Controllers.here(root)


def test_cgroup_v2_limits_are_set_and_use_is_read(tmp_path: Path) -> None:
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
