"""Recorded answers are replayed with drafts and without, on any model that has their tokens."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.process.command import run_command

TOOL = Path(__file__).parents[3] / "tools" / "bench_speculation.py"


@pytest.mark.slow
def test_answers_are_replayed(tmp_path: Path) -> None:
    pack = tmp_path / "pack"
    assert run_command("pack", "demo", "--precision", "q4", "--out", pack).status == 0
    arguments = [
        "--cases",
        "resident,link-1ms",
        "--repeats",
        "1",
        "--tokens",
        "40",
        "--threads",
        "2",
        "--json",
    ]
    ended = subprocess.run(
        [sys.executable, TOOL, pack, *arguments], capture_output=True, text=True, timeout=100, check=False
    )
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert [(one["case"], one["trace"], one["tokens"]) for one in found] == [
        (case, trace, 40) for case in ("resident", "link-1ms") for trace in ("rewrite", "story")
    ]
    rewritten = [one for one in found if one["trace"] == "rewrite"]
    # How many guesses pay is learnt from what steps take: on busy cores it may be none, where no link is slow.
    assert any(one["tokens_per_step"] > 1 for one in rewritten), "it repeats its prompt"
    assert all(one["speedup"]["min"] <= one["speedup"]["median"] for one in found)
