"""`tpiedge bench memory` prints figures that fit together; their size is not asserted."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.process.command import Ended, run_command, wait_for
from tests.process.lab.refused import refusal
from tpiedge.host.device import Cgroups

FEW = ("--model", "demo", "--threads", 1, "--tokens", 4, "--repeats", 1)
LIMIT_S = 90.0

pytestmark = pytest.mark.timeout(400)  # a cluster for each setting, and a disk that others use


def memory_groups() -> Path | None:
    """Returns the folder of control groups with a memory limit (version 1); None without one."""
    folders = Cgroups.own().memory_v1
    return folders[0] if folders and os.access(folders[0], os.W_OK) else None


needs_groups = pytest.mark.skipif(
    memory_groups() is None, reason="groups: there are no control groups with a memory limit"
)


def test_bench_memory_reports_each_budget_with_its_bound(
    here: Callable[..., Ended], one_fork_server: None
) -> None:
    ended = here("bench", "memory", *FEW, "--nodes", 2, "--budgets", "all,min,50%", "--json")
    assert ended.status == 0, ended.err
    assert ended.out.count("\n") == 1
    assert "repeat 1 of 1: min (" in ended.err
    record = json.loads(ended.out)
    settings = record["settings"]
    assert list(settings) == ["min", "50%", "all"]
    assert settings["min"]["budget_bytes"] == record["smallest_budget_bytes"]
    sizes = [found["budget_bytes"] for found in settings.values()]
    assert sizes == sorted(sizes)
    assert record["compute_from"] == "all in memory"
    assert record["compute_s_per_token"] == settings["all"]["s_per_token"]["median"]
    for found in settings.values():
        assert found["failures"] == []
        streamed = sum(node["streamed_bytes"] for node in found["nodes"])
        assert found["streamed_bytes_per_token"] == pytest.approx(streamed)
        bound_s = max(streamed / found["disk_bytes_per_s"]["median"], record["compute_s_per_token"])
        assert found["bound_s_per_token"]["median"] == pytest.approx(bound_s)
        assert 0 <= found["disk_busy"]["median"] <= 1
        reached = bound_s / found["s_per_token"]["median"]
        assert found["bound_reached"]["median"] == pytest.approx(reached)


@pytest.mark.parametrize(
    ("budgets", "status", "complaint"),
    [
        ("abc", 2, "not a size: 'abc'"),
        ("150%", 2, "write a part of the way from min to all as 0% to 100%"),
        ("x%", 2, "0% to 100%"),
        ("", 2, "not a size"),
        ("1MB", 4, "but may use 1.0 MB"),
    ],
)
def test_bad_budgets_give_a_one_line_error(budgets: str, status: int, complaint: str) -> None:
    found, words = refusal("bench", "memory", *FEW, "--budgets", budgets)
    assert found == status
    assert complaint in words


@needs_groups
def test_bench_memory_stays_within_its_cgroup_limit() -> None:
    ended = run_command("bench", "memory", *FEW, "--budgets", "min", "--cgroup", "--json", limit_s=300)
    assert ended.status == 0, ended.err
    found = json.loads(ended.out)["settings"]["min"]
    group = found["cgroup"]
    assert group["limit_bytes"] == found["budget_bytes"]
    assert 0 < group["peak_bytes"] <= group["limit_bytes"]
    assert group["part"] == group["peak_bytes"] / group["limit_bytes"]
    assert group["oom_kills"] == 0
    assert found["nodes"][0]["reads"] > 0


@needs_groups
def test_interrupted_bench_memory_removes_its_cgroup(start) -> None:
    groups = memory_groups()
    assert groups is not None
    command = start(
        "bench", "memory", "--model", "demo", "--tokens", 900, "--repeats", 50, "--budgets", "min", "--cgroup"
    )
    folder = groups / f"tpiedge-{command.process.pid}-0"
    procs = folder / "cgroup.procs"
    wait_for(lambda: folder.exists() and bool(procs.read_text()), LIMIT_S)
    command.process.send_signal(signal.SIGINT)
    assert command.finish().status == 130
    assert not folder.exists()
