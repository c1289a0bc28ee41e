"""`tpiedge bench memory` runs and its figures fit together; how large they are is nobody's assertion."""

import json
import os
import signal
from pathlib import Path

import pytest

from tests.process.command import run_command, wait_for
from tests.process.lab.refused import refusal
from tpiedge.host.cgroups import Cgroups
from tpiedge.lab.bench.memory_runs import run_in_group

FEW = ("--model", "demo", "--threads", 1, "--tokens", 4, "--repeats", 1)
LIMIT_S = 90.0

pytestmark = pytest.mark.timeout(400)  # a cluster for each setting, and a disk that others use


def memory_groups() -> Path | None:
    """Where control groups with a memory limit can be made (version 1); None where they cannot."""
    folders = Cgroups.own().memory_v1
    return folders[0] if folders and os.access(folders[0], os.W_OK) else None


needs_groups = pytest.mark.skipif(
    memory_groups() is None, reason="groups: there are no control groups with a memory limit"
)


@pytest.fixture(scope="module")
def record() -> dict:
    ended = run_command(
        "bench", "memory", *FEW, "--nodes", 2, "--budgets", "all,min,50%", "--json", limit_s=300
    )
    assert ended.status == 0, ended.err
    assert ended.out.count("\n") == 1
    assert "repeat 1 of 1: min (" in ended.err
    found = json.loads(ended.out)
    assert isinstance(found, dict)
    return found


def test_settings_come_with_growing_memory(record: dict) -> None:
    settings = record["settings"]
    assert list(settings) == ["min", "50%", "all"]
    assert settings["min"]["budget_bytes"] == record["smallest_budget_bytes"]
    sizes = [found["budget_bytes"] for found in settings.values()]
    assert sizes == sorted(sizes)
    assert record["compute_from"] == "all in memory"
    assert record["compute_s_per_token"] == settings["all"]["s_per_token"]["median"]
    assert all(found["failures"] == [] for found in settings.values())
    slower = {(small, large) for small, large in record["rises"]}
    times = {name: found["s_per_token"]["median"] for name, found in settings.items()}
    for pair in (("min", "50%"), ("50%", "all")):
        assert (pair in slower) == (times[pair[1]] > times[pair[0]])


@pytest.mark.parametrize("name", ["min", "50%", "all"])
def test_the_bound_is_the_disk_or_the_processor(record: dict, name: str) -> None:
    found = record["settings"][name]
    streamed = sum(node["streamed_bytes"] for node in found["nodes"])
    assert found["streamed_bytes_per_token"] == pytest.approx(streamed)
    disk_s = streamed / found["disk_bytes_per_s"]["median"]
    bound_s = max(disk_s, record["compute_s_per_token"])
    assert found["bound_s_per_token"]["median"] == pytest.approx(bound_s)
    assert 0 <= found["disk_busy"]["median"] <= 1
    reached = bound_s / found["s_per_token"]["median"]
    assert found["bound_reached"]["median"] == pytest.approx(reached)


@pytest.mark.parametrize("name", ["min", "50%"])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_node_reads_what_is_not_pinned(record: dict, name: str, rank: int) -> None:
    found = record["settings"][name]
    node, steady = found["nodes"][rank], found["steady"][rank]
    if steady["pinned_bytes"] == steady["weights_bytes"]:
        assert node["reads"] == 0
        return
    expected = steady["weights_bytes"] - steady["pinned_bytes"]
    # Over a few tokens it matters how much of the ring was filled before the first and after the last.
    assert abs(node["streamed_bytes"] - expected) <= steady["ring_bytes"]
    assert 0 < node["prefetch_hits"] + node["stalls"] <= steady["blocks"] * (1 + 1e-9)  # none that is pinned
    assert steady["sweep"]["load_s"] == pytest.approx(expected / steady["disk_bytes_per_s"])


@pytest.mark.parametrize("name", ["min", "50%", "all"])
@pytest.mark.parametrize("rank", [0, 1])
def test_the_conditions_agree_with_each_other(record: dict, name: str, rank: int) -> None:
    found = record["settings"][name]
    node, steady = found["nodes"][rank], found["steady"][rank]
    for sides in (steady["sweep"], steady["stretch"], steady["tight"]):
        assert sides["holds"] == (sides["work_s"] >= sides["load_s"])
    assert steady["loose"] == (steady["sweep"]["holds"] and steady["stretch"]["holds"])
    assert steady["loose"] == (steady["predicted_stall_s_per_token"] < 1e-9)
    assert steady["measured_stall_s_per_token"] == node["stall_s"]
    parts = [steady[f"{which}_stall_s_per_block"] * steady["blocks"] for which in ("predicted", "measured")]
    assert parts == pytest.approx(
        [steady["predicted_stall_s_per_token"], steady["measured_stall_s_per_token"]]
    )
    assert 0 <= steady["predicted_hidden"] <= 1
    assert 0 <= steady["steady"]["pinned_share"] <= 1


@pytest.mark.parametrize("name", ["min", "50%", "all"])
def test_all_time_of_a_token_is_work_or_waiting(record: dict, name: str) -> None:
    found = record["settings"][name]
    node, steady = found["nodes"][0], found["steady"][0]
    known_s = node["attention_s"] + node["ffn_s"] + node["reduce_s"]
    work_s = max(known_s, found["s_per_token"]["median"] - node["stall_s"])
    assert steady["sweep"]["work_s"] == pytest.approx(work_s)


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
def test_bad_budgets_are_one_line(budgets: str, status: int, complaint: str) -> None:
    found, words = refusal("bench", "memory", *FEW, "--budgets", budgets)
    assert found == status
    assert complaint in words


@needs_groups
def test_in_a_control_group_page_cache_and_libraries_count() -> None:
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
def test_what_the_group_has_no_memory_for_is_killed_and_counted() -> None:
    run = run_in_group(30_000_000, ["bench", "memory", "--model", "demo"])
    assert run.record is None
    assert run.failure.startswith("status ")
    assert run.oom_kills > 0
    assert run.peak_bytes <= 30_000_000


@needs_groups
def test_nothing_of_the_group_is_left_when_interrupted(start) -> None:
    groups = memory_groups()
    assert groups is not None
    command = start(
        "bench", "memory", "--model", "demo", "--tokens", 900, "--repeats", 50, "--budgets", "min", "--cgroup"
    )
    folder = groups / f"tpiedge-{command.process.pid}-0"
    procs = folder / "cgroup.procs"
    wait_for(lambda: folder.exists() and len(procs.read_text().split()) > 1, LIMIT_S)
    command.process.send_signal(signal.SIGINT)
    assert command.finish().status == 130
    assert not folder.exists()
