"""Every tool runs: in its shortest form, or, where that takes other software, a network or minutes, up to --help."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.process.command import Ended

ROOT = Path(__file__).parents[3]
TOOLS = ROOT / "tools"
LIMIT_S = 300

#: What each tool is run with; in it PACK is a pack of the demo model, and OUT a folder of the test's own.
SHORTEST = {
    "bench_api": "demo --streams 1 --tokens 4 --requests 2 --connections 2 --looks 2 --repeats 1",
    "bench_grammars": "demo --schemas 2 --cache OUT",
    "bench_journal": "--tokens 200 --repeats 1",
    "bench_metrics": "--tokens 500 --repeats 1",
    "bench_shapes": "--packs OUT --shapes tinyllama --precision q4 --nodes 1 --tokens 1",
    "bench_speculation": "PACK --cases resident --tokens 4 --repeats 1 --threads 1",
    "bench_node_start": "PACK --repeats 1 --threads 1",
    "demo_held_out": "OUT/text",
    "fuzz": "--inputs 2 --findings OUT",
    "make_golden": "--check",
    "make_reference": "--check",
    "record_terminal": "OUT/script.toml OUT/session.svg",
}

#: Why another one is only asked what it is; or, after "test: ", what runs it, or, after "part: ", whose part it is.
OTHERS = {
    "abuse": "test: tests/process/test_abuse.py",
    "bench_decode_cost": "four clusters of three machines",
    "bench_pause": "a cluster of three machines",
    "bench_peers": "llama.cpp, accelerate and AirLLM are built and installed",
    "bench_view": "a cluster that is looked at for many answers",
    "check_chat": "transformers, and minutes: the model is the one that fetch_model fetches",
    "check_docs": "test: Makefile",
    "check_lm_eval": "lm-eval is installed, and a master runs",
    "check_words": "test: tests/unit/tools/test_check_words.py",
    "converse": "a network: the model is the one that fetch_model fetches",
    "demo_corpus": "part: train_demo_model",
    "demo_facts": "part: demo_corpus",
    "demo_stories": "part: demo_corpus",
    "demo_words": "part: demo_corpus",
    "fetch_model": "a network",
    "figures": "part: bench_api",
    "grammar_flood": "part: bench_grammars",
    "touched": "test: tests/unit/tools/test_touched.py",
    "install": "test: tests/unit/tools/test_install.py",
    "make_checkpoint": "test: tests/unit/tools/test_make_checkpoint.py",
    "make_faults": "test: tests/unit/tools/test_documents.py",
    "nemesis": "test: tests/process/serving/test_nemesis_tool.py",
    "photograph_page": "a browser, and a master that runs",
    "plot_network": "test: tests/unit/tools/test_plot_network.py",
    "predict_speed": "test: tests/unit/tools/test_predict_speed.py",
    "record_acceptance": "a network: the model is the one that fetch_model fetches",
    "record_clients": "a network: the clients are installed",
    "streaming": "part: converse",
    "train_demo_model": "transformers, and minutes",
    "uninstall": "test: tests/unit/tools/test_uninstall.py",
    "vendor_page": "a network",
}

ELSEWHERE = [name for name, why in OTHERS.items() if why.startswith(("test: ", "part: "))]

HELP = """
import runpy, sys
for name in sys.argv[1:]:
    sys.argv = [name, "--help"]
    try:
        runpy.run_module(f"tools.{name}", run_name="__main__")
    except SystemExit as ended:
        assert not ended.code, name
"""

SCRIPT = """
[[steps]]
type = "echo so"
"""


def tools() -> list[str]:
    files = {path.stem for path in TOOLS.glob("*.py")}
    return sorted(files | {path.parent.name for path in TOOLS.glob("*/__main__.py")})


def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", f"tools.{name}", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=False,
    )


@pytest.mark.thin
def test_every_tool_is_listed() -> None:
    """A new one needs one: here it is seen that it still runs."""
    assert tools() == sorted([*SHORTEST, *OTHERS])


@pytest.mark.thin
@pytest.mark.parametrize("name", ELSEWHERE)
def test_tool_run_elsewhere_is_named_in_that_file(name: str) -> None:
    kind, _, where = OTHERS[name].partition(": ")
    path = ROOT / where if kind == "test" else TOOLS / f"{where}.py"
    assert name in path.read_text()


@pytest.mark.thin
@pytest.mark.parametrize("name", tools())
def test_tool_said_to_run_by_its_path_finds_its_packages(name: str) -> None:
    """Run by its path, a tool's own folder is on sys.path and that of the packages is not."""
    text = next(
        path for path in (TOOLS / f"{name}.py", TOOLS / name / "__main__.py") if path.exists()
    ).read_text()
    needs = re.search(r"^(from|import) (tests|tools)\b", text, re.MULTILINE)
    assert f"python tools/{name}.py" not in text or not needs or "sys.path.insert" in text


def test_tools_not_run_here_print_their_help() -> None:
    """All run in one process: most of their time is that of the same imports."""
    names = [name for name in OTHERS if name not in ELSEWHERE]
    ended = subprocess.run(
        [sys.executable, "-c", HELP, *names], capture_output=True, text=True, timeout=LIMIT_S, cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)}, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("usage: ") == len(names)


@pytest.mark.parametrize("name", SHORTEST)
def test_tool_succeeds_in_its_shortest_run(name: str, tmp_path: Path, here: Callable[..., Ended]) -> None:
    pack = ""
    if "PACK" in SHORTEST[name]:
        assert here("pack", "demo", "--out", tmp_path / "pack").status == 0
        pack = str(tmp_path / "pack")
    (tmp_path / "script.toml").write_text(SCRIPT)
    words = SHORTEST[name].replace("PACK", pack).replace("OUT", str(tmp_path)).split()
    ended = run(name, *words)
    assert ended.returncode == 0, ended.stdout + ended.stderr
