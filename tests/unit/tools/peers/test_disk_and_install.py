"""The disk's rate, forgetting files, and steps of an installation that fail in words."""

import subprocess
import sys
from pathlib import Path

import pytest

from tools.peers import install
from tools.peers.disk import direct_rate, forget
from tools.peers.install import NotInstalled, build_llama, checked

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


def test_a_build_with_tiles_and_one_without(tmp_path, monkeypatch):
    """Each in a folder of its own, from sources whose tiles are mended once."""
    tiles = tmp_path / "sources" / "ggml" / "src" / "ggml-cpu" / "amx" / "mmq.cpp"
    tiles.parent.mkdir(parents=True)
    tiles.write_text("{ _tile_loadconfig(&tc); }")
    commands = []
    monkeypatch.setattr(install, "_llama_sources", lambda _folder: tmp_path / "sources")
    monkeypatch.setattr(install, "checked", commands.append)
    with_tiles = build_llama(tmp_path, "llama-server")
    without = build_llama(tmp_path, "llama-server", amx=False)
    assert (with_tiles.parts[-3:], without.parts[-3]) == (
        ("build-server", "bin", "llama-server"),
        "build-server-noamx",
    )
    configured = [" ".join(command) for command in commands[::2]]
    assert ["-mno-amx-tile" in line for line in configured] == [False, True]
    assert tiles.read_text().count("__asm__") == 1
    assert tiles.read_text().index("__asm__") < tiles.read_text().index("_tile_loadconfig")


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
