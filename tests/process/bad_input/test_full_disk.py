"""Verbs that write to a disk without room: one line, the documented status, and nothing half-written."""

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.process.bad_input.refusal import RESOURCE
from tests.process.command import run_command
from tests.process.serving.serving import HOST, free_ports


@pytest.fixture
def full(tmp_path):
    """A folder on a disk of its own without a free byte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("root: needed, with Linux, to mount a small disk")
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    mounted = subprocess.run(command, capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip(f"mounts: cannot mount a small disk: {mounted.stderr.decode().strip()}")
    try:
        with contextlib.suppress(OSError), (folder / "filling").open("wb", buffering=0) as filling:
            while True:
                filling.write(bytes(4096))
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def left(folder: Path) -> list[str]:
    """Files but those that stay empty: locks."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "filling")
    return [str(path) for path in files if path.stat().st_size or not path.name.endswith(".lock")]


@pytest.mark.parametrize(
    "words",
    [
        ("pack", "demo", "--cache", "FULL"),
        ("unpack", "demo-bf16", "FULL/out"),
        ("run", "demo", "--prompt", "x", "--max-tokens", 3, "--cache", "FULL"),
        ("run", "demo", "--prompt", "x", "--max-tokens", 3, "--trace", "FULL/trace.json"),
        ("token", "create", "--host", "192.0.2.1", "--state", "FULL"),
        ("shards", "limit", "1GB", "--cache", "FULL"),
        ("worker", "--connect", "127.0.0.1:1", "--state", "FULL"),
        ("master", "demo", "--state", "FULL", "--threads", 1),
        ("master", "demo", "--journal", "--state", "FULL", "--threads", 1),
    ],
    ids=lambda words: "-".join(map(str, words[:3])),
)
def test_a_full_disk(full, words):
    if words[0] == "master":
        ports = free_ports()
        words = (*words, "--listen", f"{HOST}:{ports}", "--http", f"{HOST}:{ports + 4}")
    if words[0] == "unpack":
        assert run_command("pack", "demo", "--precision", "bf16").status == 0
    ended = run_command(*(str(word).replace("FULL", str(full)) for word in words))
    assert ended.status == RESOURCE, ended.err
    line = ended.err.splitlines()[-1]
    assert re.fullmatch("tpiedge: (no space left for|the disk of) .*free some.*", line)
    assert left(full) == []
