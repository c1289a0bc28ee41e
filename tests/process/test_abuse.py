"""The soak under abuse, in a short form; `tools/abuse.py` has the long one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.alone,  # a node that gets no processor is lost, too
    pytest.mark.skipif(
        sys.platform != "linux", reason="system: its callers come from many loopback addresses"
    ),
]

ROOT = Path(__file__).parents[2]
_END_S = 230.0  # the test's own end comes after 300


def start(*arguments: object) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "tools.abuse", *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.mark.fault(
    "W2",
    "members and nodes whose messages are wrong, beside all other attacks: no answer is, and nothing is left over",
)
def test_attacks_change_no_answer_and_leave_nothing(tmp_path: Path) -> None:
    """Every attack, beside the others."""
    found = tmp_path / "found.json"
    phases = "imposters, together, with nodes"
    with start(
        "--minutes", 0.12, "--phases", phases, "--json", found, "--keep", tmp_path / "cluster"
    ) as soak:
        try:
            said, _ = soak.communicate(timeout=_END_S)
        except subprocess.TimeoutExpired:
            soak.terminate()  # it ends its cluster
            said, _ = soak.communicate(timeout=60.0)
    assert soak.returncode == 0, said
    record = json.loads(found.read_text())
    assert record["faults"] == []
    assert [phase["name"] for phase in record["phases"]] == ["imposters", "together, with nodes"]
    assert record["phases"][0]["stream"]["judgements"]["exact"] > 0, said
    assert all(phase["counts"] for phase in record["phases"])
