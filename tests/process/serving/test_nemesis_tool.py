import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.process.network.namespaces import why_impossible
from tools.nemesis.forms import FORMS

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
def test_faults_of_several_kinds() -> None:
    """One test kills a few times; `tools.nemesis` does as often as one likes."""
    links = [] if why_impossible("nft", "tc") else ["links"]
    kinds = ",".join(["kills", "processes", "master", *links])
    found = broken("--kills", 3, "--seed", 2, "--tokens", 60, "--faults", kinds)
    assert found["kills"] >= 3
    assert sum(found["by_kind"].values()) == found["kills"]


@pytest.mark.timeout(900)
@pytest.mark.fault(
    "P19",
    "every kind of answer of every API, clients that stop reading and come again among them: none is wrong or lost",
)
def test_every_kind_of_answer() -> None:
    pytest.importorskip("llguidance", reason="software: llguidance is not installed")
    found = broken(
        "--forms", "--kills", 2, "--apart", 2, "--seed", 3, "--tokens", 24, "--faults", "kills,readers,master"
    )
    assert found["kills"] >= 2
    assert len(found["forms"]) == len([form for form in FORMS if form.resumable])
