"""The process that the user starts stays light: torch lives in the nodes only."""

import json
import subprocess
import sys

import pytest

# Runs a whole command in the process and tells which heavy modules it has loaded by then.
PROGRAM = """
import sys
from tpiedge.cli.main import main

sys.argv[0] = "tpiedge"
try:
    main()
except SystemExit as end:
    status = end.code
heavy = {"torch", "transformers", "scipy", "huggingface_hub", "safetensors"} & set(sys.modules)
print(status, sorted(heavy), file=sys.stderr)
"""


def run(*arguments):
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert ended.stderr.splitlines()[-1] == "0 []", ended.stderr
    return ended.stdout


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_whole_run_loads_no_torch(references, nodes):
    found = references("llama-gqa-odd")
    ids = ",".join(map(str, found.prompt_ids))
    run_arguments = ("--nodes", nodes, "--threads", 1, "--prompt-ids", ids, "--max-tokens", 4, "--json")
    record = json.loads(run("run", "--model", found.folder, *run_arguments))
    assert record["token_ids"] == list(found.greedy_ids[:4])


def test_packing_and_unpacking_load_no_torch(references, tmp_path):
    run("pack", references("llama-gqa-odd").folder, "--out", tmp_path / "pack", "--verify")
    run("unpack", tmp_path / "pack", tmp_path / "back")


def test_help_loads_no_torch():
    assert "--shares" in run("run", "--help")
