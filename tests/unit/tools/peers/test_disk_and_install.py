"""The disk's rate, forgetting files, and steps of an installation that fail in words."""

import subprocess
import sys
from pathlib import Path

import pytest

from tools.peers.disk import direct_rate, forget
from tools.peers.install import NotInstalled, checked

ROOT = Path(__file__).parents[4]


def test_the_rate_of_a_file(tmp_path):
    path = tmp_path / "weights"
    path.write_bytes(bytes(17 << 20))  # no whole number of chunks
    rate = direct_rate(path, 1 << 30)
    assert rate is None or rate > 0


def test_forgetting_files_and_folders_leaves_them_alone(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a").write_text("kept")
    forget([tmp_path, tmp_path / "folder" / "a"])
    assert (tmp_path / "folder" / "a").read_text() == "kept"


def test_a_step_that_fails_says_why():
    with pytest.raises(NotInstalled, match=r"no such version$"):
        checked([sys.executable, "-c", "print('long story'); raise SystemExit('no such version')"])
    with pytest.raises(NotInstalled, match="no program tpiedge-no-such"):
        checked(["tpiedge-no-such"])


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--repeats", "0"], "'0' is no whole number above 0"),
        (["--peers", "ollama"], "'ollama' is none of llama.cpp"),
        (["--checkpoint", "/no/such"], "/no/such is no checkpoint"),
    ],
)
def test_what_cannot_be_meant(flags, words):
    command = [sys.executable, str(ROOT / "tools" / "bench_peers.py"), "offload", *flags]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert ended.returncode == 2
    assert words in ended.stderr or "cannot make a control group" in ended.stderr
    assert "Traceback" not in ended.stderr
