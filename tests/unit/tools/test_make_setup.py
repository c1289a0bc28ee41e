"""`make setup` says what it does; the interpreter in its hands is a script that installs nothing."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PARTS = [
    "setup: creating the virtual environment .venv with ./python",
    "setup: installing the dependencies, torch among them: some minutes the first time",
    "setup: compiling the native kernels and installing tpiedge",
]
KERNELS = (
    "setup: the native kernels did not compile (is there a C++ compiler?): no q8, no q4, slower f32 and bf16"
)
#: It writes down what it is asked for, and fails at what FAILS names.
INTERPRETER = """#!/bin/sh
echo "$*" >> asked
case "$*" in *"$FAILS"*) test -z "$FAILS" || { echo "the cause" >&2; exit 1; };; esac
case "$*" in
"-m venv .venv") mkdir -p .venv/bin && cp "$0" .venv/bin/python;;
*tomllib*) echo "torch>=2.6" "numpy>=1.26";;
*--editable*) test -z "$COMPILES" || touch tpiedge/kernels/_native.cpython-311-x86_64-linux-gnu.so;;
esac
"""

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="software: make is not there")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with the Makefile and what its `setup` looks at."""
    for name in ("Makefile", "pyproject.toml", "setup.py", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "tpiedge" / "kernels").mkdir(parents=True)
    interpreter = tmp_path / "python"
    interpreter.write_text(INTERPRETER)
    interpreter.chmod(0o755)
    return tmp_path


def setup(
    checkout: Path, python: str = "./python", *, fails: str = "", compiles: bool = True
) -> subprocess.CompletedProcess[str]:
    return run(
        checkout,
        "make",
        "setup",
        f"PYTHON={python}",
        FAILS=fails,
        COMPILES="1" if compiles else "",
        LC_ALL="C",
    )


def run(folder: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a command as if no other make had started this test."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    return subprocess.run(
        command, cwd=folder, env={**inherited, **variables}, capture_output=True, text=True, timeout=50
    )


def complaints(ended: subprocess.CompletedProcess[str]) -> list[str]:
    """What a failed setup says on standard error, without make's own line."""
    assert ended.returncode == 2
    lines = ended.stderr.splitlines()
    assert lines.pop().startswith("make: *** ")
    return lines


def test_every_part_is_said_before_it_begins_and_the_time_in_the_end(checkout: Path) -> None:
    ended = setup(checkout)
    assert (ended.returncode, ended.stderr) == (0, "")
    *parts, last = ended.stdout.splitlines()
    assert parts == PARTS
    assert re.fullmatch(r"setup: done after \d+ min \d+ s: 'make demo' shows it", last)
    first, second = [line for line in (checkout / "asked").read_text().splitlines() if "pip install" in line]
    quiet = "-m pip install --quiet --disable-pip-version-check --constraint constraints.txt"
    assert first == f"{quiet} torch>=2.6 numpy>=1.26"
    assert second == f"{quiet} --editable .[dev]"


def test_what_is_there_is_not_made_again(checkout: Path) -> None:
    setup(checkout)
    assert "setup:" not in setup(checkout).stdout
    os.utime(checkout / ".venv" / ".setup-done", (0, 0))
    assert setup(checkout).stdout.splitlines()[:-1] == PARTS[1:]


def test_kernels_that_did_not_compile_are_no_failure(checkout: Path) -> None:
    ended = setup(checkout, compiles=False)
    assert ended.returncode == 0
    assert ended.stdout.splitlines()[:-1] == [*PARTS, KERNELS]


@pytest.mark.parametrize(
    ("python", "fails"),
    [("./nowhere", ""), ("./python", "version_info")],
)
def test_no_fit_interpreter_is_one_line(checkout: Path, python: str, fails: str) -> None:
    ended = setup(checkout, python, fails=fails)
    assert complaints(ended) == [
        f"setup: {python} is no Python 3.11 or newer: PYTHON=/path/to/python make setup"
    ]
    assert ended.stdout == ""


def test_an_environment_that_cannot_be_made_is_one_line(checkout: Path) -> None:
    ended = setup(checkout, fails="-m venv")
    assert complaints(ended) == [
        "setup: './python -m venv .venv' failed (Debian, Ubuntu: apt install python3-venv; run it to see why)"
    ]
    assert ended.stdout.splitlines() == PARTS[:1]


@pytest.mark.parametrize(
    ("fails", "said"),
    [
        ("tomllib", "not all dependencies were installed, as pip says above: make setup tries again"),
        ("numpy", "not all dependencies were installed, as pip says above: make setup tries again"),
        ("--editable", "tpiedge was not installed, as pip says above: make setup tries again"),
    ],
)
def test_a_failed_installation_is_said_below_its_cause(checkout: Path, fails: str, said: str) -> None:
    ended = setup(checkout, fails=fails)
    assert complaints(ended) == ["the cause", f"setup: {said}"]
    assert not (checkout / ".venv" / ".setup-done").exists()
    assert setup(checkout).returncode == 0, "the next one succeeds"


def test_the_dependencies_are_those_of_the_project(checkout: Path) -> None:
    """Told by the interpreter that runs this test, from the Makefile's own line."""
    recipe = run(checkout, "make", "-n", "setup")
    found = re.search(r"dependencies=\$\((.*?)\) &&", recipe.stdout)
    assert found is not None
    command = found[1].replace(".venv/bin/python", sys.executable)
    told = run(checkout, "sh", "-c", command)
    named = {re.split("[<>=]", item)[0] for item in told.stdout.split()}
    assert {"torch", "click", "docker", "matplotlib", "pytest", "mypy"} <= named
    assert not any("tpiedge" in item for item in named)
