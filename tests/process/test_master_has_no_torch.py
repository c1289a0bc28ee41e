"""The process that the user starts stays light: torch lives in the nodes only."""

import json
import os
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
print(status, *sorted(name for name in sys.modules if "." not in name), file=sys.stderr)
"""
HEAVY = {"torch", "transformers", "scipy", "huggingface_hub", "safetensors"}
# What verbs need to do their work, and not to say what they are. (All have msgspec and psutil.)
WORKING = HEAVY | {
    "asyncio", "cryptography", "gguf", "httpx", "jinja2", "matplotlib", "numpy", "starlette",
    "tokenizers", "uvicorn", "zmq",
}  # fmt: skip


def run(*arguments, without=HEAVY, **variables):
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, *map(str, arguments)],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    status, *modules = ended.stderr.splitlines()[-1].split()
    assert (status, without & set(modules)) == ("0", set()), ended.stderr
    assert "click" in modules
    return ended.stdout


def test_a_whole_run_loads_no_torch(references):
    found = references("llama-gqa-odd")
    ids = ",".join(map(str, found.prompt_ids))
    run_arguments = ("--nodes", 2, "--threads", 1, "--prompt-ids", ids, "--max-tokens", 4, "--json")
    record = json.loads(run("run", "--model", found.folder, *run_arguments))
    assert record["token_ids"] == list(found.greedy_ids[:4])


def test_packing_and_unpacking_load_no_torch(references, tmp_path):
    run("pack", references("llama-gqa-odd").folder, "--out", tmp_path / "pack", "--verify")
    run("unpack", tmp_path / "pack", tmp_path / "back", without=HEAVY - {"safetensors"})


@pytest.mark.parametrize("arguments", [("--help",), ("completion", "bash")])
def test_help_and_completion_load_no_heavy_library(arguments):
    run(*arguments, without=WORKING)


def test_shell_completion_loads_no_torch():
    line = "tpiedge run --model de"
    shown = run(_TPIEDGE_COMPLETE="bash_complete", COMP_WORDS=line, COMP_CWORD="3")
    assert "plain,demo" in shown.splitlines()
