"""A process starter that leaves standard files closed, and one that lets others write what is made, do no harm."""

import json
import os
import stat
import subprocess

from tests.process.command import COMMAND


def test_run_with_closed_stdin_and_stderr_makes_private_files(tmp_path):
    words = [
        "run",
        "demo",
        "--prompt",
        "Hi",
        "--max-tokens",
        "2",
        "--json",
        "--trace",
        tmp_path / "trace.json",
    ]
    ended = subprocess.run(
        ["sh", "-c", 'umask 0; exec "$0" "$@" <&- 2>&-', COMMAND, *words],
        stdout=subprocess.PIPE,
        env=os.environ | {"TPIEDGE_CACHE": str(tmp_path / "cache"), "TPIEDGE_STATE": str(tmp_path / "state")},
        timeout=110,
        check=False,
    )
    assert ended.returncode == 0
    assert json.loads(ended.stdout)["text"]
    made = [tmp_path / "trace.json", tmp_path / "cache", *(tmp_path / "cache").rglob("*")]
    assert len(made) > 5
    assert not [path for path in made if stat.S_IMODE(path.stat().st_mode) & 0o077]
