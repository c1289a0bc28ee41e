from pathlib import Path

import pytest

from tpiedge.errors import UserError
from tpiedge.lab.memory_group import MemoryGroup, MemoryUse, memory_group


def test_missing_control_groups_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="this system has no"), memory_group(1 << 20, tmp_path):
        pytest.fail("there is no group")


def check_counts(group: MemoryGroup) -> None:
    group.limit(1000)
    assert group.use() == MemoryUse(peak_bytes=4096, refusals=12, oom_kills=1)
    assert (group.counter("rss", "anon"), group.held_bytes) == (7, 15)


def test_cgroup_v1_counters_are_read_and_limits_written(tmp_path: Path) -> None:
    (tmp_path / "memory.max_usage_in_bytes").write_text("4096\n")
    (tmp_path / "memory.failcnt").write_text("12\n")
    (tmp_path / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
    (tmp_path / "memory.stat").write_text("cache 5\nrss 7\ninactive_file 2\nactive_file 3\n")
    (tmp_path / "memory.usage_in_bytes").write_text("20\n")
    (tmp_path / "memory.swappiness").write_text("60\n")
    check_counts(MemoryGroup(tmp_path, 1))
    assert (tmp_path / "memory.limit_in_bytes").read_text() == "1000"
    assert (tmp_path / "memory.swappiness").read_text() == "0"
    assert not (tmp_path / "memory.memsw.limit_in_bytes").exists()


def test_cgroup_v2_counters_are_read_and_limits_written(tmp_path: Path) -> None:
    (tmp_path / "memory.peak").write_text("4096\n")
    (tmp_path / "memory.events").write_text("low 0\nhigh 0\nmax 12\noom 1\noom_kill 1\noom_group_kill 0\n")
    (tmp_path / "memory.stat").write_text("anon 7\nfile 5\ninactive_file 2\nactive_file 3\n")
    (tmp_path / "memory.current").write_text("20\n")
    (tmp_path / "memory.swap.max").write_text("max\n")
    check_counts(MemoryGroup(tmp_path, 2))
    assert (tmp_path / "memory.max").read_text() == "1000"
    assert (tmp_path / "memory.swap.max").read_text() == "0"


def test_cgroup_v1_swap_limit_follows_the_memory_limit(tmp_path: Path) -> None:
    group = MemoryGroup(tmp_path, 1)
    limit, both = tmp_path / "memory.limit_in_bytes", tmp_path / "memory.memsw.limit_in_bytes"
    both.write_text("9223372036854771712\n")
    for nbytes in (5000, 1000, 3000):
        group.limit(nbytes, 10)
        assert (limit.read_text(), both.read_text()) == (str(nbytes), str(nbytes + 10))
