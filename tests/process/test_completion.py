"""What bash offers behind `source <(tpiedge completion bash)`."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.process.command import COMMAND

SHELL = shutil.which("bash")
pytestmark = [pytest.mark.thin, pytest.mark.skipif(SHELL is None, reason="software: there is no bash")]

# The words of the line are the arguments, the last of them is being typed. compopt works only while somebody types.
SCRIPT = """
compopt() { echo "compopt $*"; }
source <(tpiedge completion bash)
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
_tpiedge_completion tpiedge
printf '%s\\n' "${COMPREPLY[@]}"
"""


def offered(cache: Path, *words: str) -> list[str]:
    """The lines of bash's answer to the line that is typed; nothing may be written beside them."""
    variables = {"PATH": f"{Path(COMMAND).parent}:{os.environ['PATH']}", "TPIEDGE_CACHE": str(cache)}
    ended = subprocess.run(
        [str(SHELL), "-c", SCRIPT, "bash", "tpiedge", *words],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout.split()


def test_names_and_paths(tmp_path: Path) -> None:
    """tests/unit/cli/test_names_completed.py has the verbs and the states of a cache."""
    pack = tmp_path / "packs" / "my-own-pack"
    pack.mkdir(parents=True)
    (pack / "manifest.json").write_text(json.dumps("damaged"))
    paths = ["compopt", "-o", "default"]
    assert offered(tmp_path, "run", "--model", "my") == [*paths, "my-own-pack"]
    assert offered(tmp_path, "run", "--model", "./") == paths
