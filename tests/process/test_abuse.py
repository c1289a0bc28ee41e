"""The soak under abuse, in a short form; `tools/abuse.py` has the long one."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.process.command import gone, wait_for

pytestmark = [
    pytest.mark.alone,  # a node that gets no processor is lost, too
    pytest.mark.skipif(
        sys.platform != "linux", reason="system: its callers come from many loopback addresses"
    ),
]

ROOT = Path(__file__).parents[2]
_END_S = 280.0


def start(*arguments: object) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "tools.abuse", *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_abuse_changes_no_byte_and_leaves_nothing(tmp_path: Path) -> None:
    """Every attack, beside the others."""
    found = tmp_path / "found.json"
    phases = "cancelled, imposters, together, with nodes"
    with start("--minutes", 0.4, "--phases", phases, "--json", found, "--keep", tmp_path / "cluster") as soak:
        said, _ = soak.communicate(timeout=_END_S)
    assert soak.returncode == 0, said
    record = json.loads(found.read_text())
    assert record["faults"] == []
    assert [phase["name"] for phase in record["phases"]] == ["cancelled", "imposters", "together, with nodes"]
    assert all(phase["stream"]["judgements"]["exact"] > 0 for phase in record["phases"][:2]), said
    assert all(phase["counts"] for phase in record["phases"])


def test_an_interrupted_soak_leaves_no_process(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    with start("--minutes", 5, "--phases", "silent callers", "--keep", folder) as soak:
        assert soak.stdout is not None
        next(line for line in soak.stdout if "a little of everything" in line)
        family = psutil.Process(soak.pid).children(recursive=True)
        assert len(family) >= 6  # three machines with a node each, the attackers
        os.kill(soak.pid, signal.SIGINT)
        said, _ = soak.communicate(timeout=_END_S)
    assert soak.returncode == 130, said
    wait_for(lambda: all(map(gone, family)), 30.0)
