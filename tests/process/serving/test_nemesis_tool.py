"""A cluster that is broken again and again loses no answer and gives no wrong one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
KILLS = 10


@pytest.mark.timeout(400)
@pytest.mark.fault(
    "P19", "ten at random, one or two at once, beside four clients: no answer is wrong or lost"
)
def test_ten_faults(tmp_path: Path) -> None:
    """As many as one likes: tools/nemesis.py."""
    ended = subprocess.run(
        [sys.executable, "-m", "tools.nemesis", "--kills", str(KILLS), "--seed", "5", "--json"],
        cwd=ROOT, capture_output=True, text=True, timeout=380, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = json.loads(ended.stdout)
    assert found["faults"] == []
    assert found["kills"] >= KILLS
    assert found["paused_answers"] > 0
