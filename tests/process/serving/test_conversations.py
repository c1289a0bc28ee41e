"""People talk with a cluster beside each other for a while; each gets what he would have got alone."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
CONVERSATIONS = 3


@pytest.mark.timeout(500)
def test_every_answer_is_the_one_that_is_given_alone(tmp_path: Path) -> None:
    ended = subprocess.run(
        [
            sys.executable, "-m", "tools.converse", "demo", "--minutes", "0.05", "--pause", "0.3", "--tokens", "40",
            "--least", "2", "--conversations", str(CONVERSATIONS), "--json", tmp_path / "found.json",
        ],
        cwd=ROOT, capture_output=True, text=True, timeout=450, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert (found["different"], found["faults"]) == (0, [])
    assert found["answers"] >= 2 * CONVERSATIONS
    assert 0 < found["cached_share_of_prompts"] < 1
