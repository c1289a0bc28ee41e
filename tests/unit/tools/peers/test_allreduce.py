"""All-reduces against torch.distributed's gloo: its processes, the record, and both on loopback."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.process.lab.testbed.beds import bed_name, left_of, removed, why_no_testbed, written
from tools.peers.allreduce import report
from tools.peers.allreduce_gloo import GlooGroup
from tpiedge.launch.child import Place

REASON = why_no_testbed()
pytestmark = pytest.mark.slow
PAIR = """
[defaults]
latency = "2 ms"
[[router]]
name = "router"
[[device]]
name = "one"
uplink = "router"
[[device]]
name = "two"
uplink = "router"
"""
TOOL = Path(__file__).parents[4] / "tools" / "bench_peers.py"


def compare(*flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TOOL), "allreduce", *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=55, check=False)


def test_ratios_pair_adjacent_measurements():
    found = report(8, 4, "mesh", 0.001, theirs=[0.016, 0.020, 0.024], ours=[0.002, 0.004, 0.002])
    assert found == {
        "nodes": 8,
        "bytes": 4,
        "latency_s": 0.001,
        "collective": "mesh",
        "gloo_s": {"median": 0.020, "min": 0.016, "max": 0.024},
        "tpiedge_s": {"median": 0.002, "min": 0.002, "max": 0.004},
        "times_slower_than_tpiedge": {
            "ratio": {"median": 8.0, "min": 5.0, "max": 12.0},
            "required": 5.0,
            "met": True,
        },
    }


def test_gloo_group_measures_and_ends_its_processes():
    with GlooGroup([Place()] * 3) as group:
        seconds = group.measure(4096, warm_up=1, rounds=7)
        again = group.measure(4, warm_up=0, rounds=3)
        processes = [rank._process for rank in group._ranks]
    assert (len(seconds), len(again)) == (7, 3)
    assert all(0 < one < 5 for one in seconds + again)
    assert [process.poll() for process in processes] == [0, 0, 0]


@pytest.mark.skipif(REASON is not None, reason=str(REASON))
def test_comparison_uses_testbed_links_and_removes_testbed(tmp_path):
    with removed(bed_name()) as bed:
        file = written(tmp_path, bed, PAIR)
        ended = compare("--testbed", file, "--nodes", "2", "--repeats", "1", "--rounds", "10")
        assert left_of(bed) == []
        refused = compare("--testbed", file, "--nodes", "3", "--repeats", "1", "--rounds", "10")
        assert left_of(bed) == []
    assert ended.returncode == 0, ended.stderr
    (found,) = json.loads(ended.stdout)["results"]
    assert found["latency_s"] == pytest.approx(0.004)
    for name in ("gloo_s", "tpiedge_s"):
        assert 0.004 < found[name]["min"] < 0.1
    assert refused.returncode == 2
    assert refused.stderr.endswith(f"error: --nodes 3: the testbed {bed} has 2 devices\n")
