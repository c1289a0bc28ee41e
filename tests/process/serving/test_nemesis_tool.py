import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.process.network.namespaces import why_impossible
from tools.nemesis.forms import FORMS
from tools.nemesis.stage import why_not

ROOT = Path(__file__).parents[3]
#: Several times what it takes on a machine that does nothing else.
_LIMIT_S = 880.0


def broken(*options: object) -> dict:
    """Returns the report of a run. Fails unless it ends well."""
    words = [str(option) for option in options]
    ended = subprocess.run(
        [sys.executable, "-m", "tools.nemesis", *words, "--json"],
        cwd=ROOT, capture_output=True, text=True, timeout=_LIMIT_S, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = json.loads(ended.stdout)
    assert found["faults"] == []
    return found


@pytest.mark.timeout(900)
@pytest.mark.fault(
    "P19", "of processes, links and the master itself, one or two at once: no answer is wrong or lost"
)
@pytest.mark.fault(
    "P19",
    "every kind of answer of every API, clients that stop reading and come again among them: none is wrong or lost",
)
def test_nemesis_faults_break_no_kind_of_answer() -> None:
    """One test breaks a few things; `tools.nemesis` breaks as many as one likes. With links this seed kills
    rank 0, has a worker leave and a client stand still, and at last kills the master while a link is mute."""
    pytest.importorskip("llguidance", reason="software: llguidance is not installed")
    links = [] if why_impossible("nft", "tc") else ["links"]
    kinds = ",".join(["kills", "processes", "master", "readers", *links])
    sizes = ("--kills", 5, "--apart", 1.5, "--seed", 9104, "--tokens", 16, "--clients", 3)
    found = broken("--forms", *sizes, "--faults", kinds)
    assert found["kills"] >= 5
    assert sum(found["by_kind"].values()) == found["kills"]
    assert len(found["forms"]) == len([form for form in FORMS if form.resumable])


@pytest.mark.timeout(900)
def test_nemesis_faults_break_no_answer_of_a_mixture() -> None:
    """A master and three workers: this seed kills an agent, stops rank 0, drains workers and has another one join."""
    sizes = ("--workers", 3, "--kills", 5, "--apart", 1, "--seed", 3, "--tokens", 40, "--clients", 3)
    found = broken("mixture", *sizes, "--faults", "kills,processes")
    assert found["kills"] >= 5
    assert found["answers"] > 0


@pytest.mark.timeout(900)
@pytest.mark.fault("F6", "disks of KV pages while answers run: none is wrong or lost, and the limits hold")
@pytest.mark.fault(
    "F9",
    "while answers run, and nodes are killed while they write pages: none is wrong, nothing is left over",
)
def test_nemesis_faults_of_pages_break_no_answer(tmp_path: Path) -> None:
    disks = [] if why_not("page-disks", tmp_path) else ["page-disks"]
    sizes = ("--kills", 6, "--apart", 1, "--seed", 12, "--tokens", 120, "--clients", 4)
    found = broken(*sizes, "--faults", ",".join(["kills", "pages", *disks]))
    assert found["kills"] >= 6
    assert found["moved_pages"]["left"] > 0, "the answers left no page on a disk"
