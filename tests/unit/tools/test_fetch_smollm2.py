"""The tool that fetches a model tells what it takes, and makes no folder of a flag."""

import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[3] / "tools" / "fetch_smollm2.py"


@pytest.mark.parametrize(("flag", "status"), [("--help", 0), ("--zebra", 2)])
def test_a_flag_is_no_folder(tmp_path: Path, flag: str, status: int) -> None:
    ended = subprocess.run(
        [sys.executable, TOOL, flag], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == status
    assert "usage: fetch_smollm2.py" in ended.stdout + ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_there_is_not_fetched_again(tmp_path: Path) -> None:
    file = tmp_path / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    file.parent.mkdir()
    file.touch()
    ended = subprocess.run(
        [sys.executable, TOOL, file.parent], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, f"{file}\n", "")


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    ended = subprocess.run(
        [sys.executable, TOOL, file], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 2
    assert ended.stderr.endswith(f"no folder can be made at {file}: File exists\n")
