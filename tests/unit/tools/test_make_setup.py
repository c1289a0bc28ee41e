"""`make setup` says what it does; the interpreter in its hands is a script that installs nothing."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PARTS = [
    "setup: creating the virtual environment .venv with ./python",
    "setup: installing the dependencies, torch among them: some minutes the first time",
    "setup: meanwhile compiling the native kernels and installing tpiedge",
]
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
    """Returns the standard error of a failed setup without make's own line."""
    assert ended.returncode == 2
    lines = ended.stderr.splitlines()
    assert lines.pop().startswith("make: *** ")
    return lines


def test_setup_prints_each_step_and_the_total_time(checkout: Path) -> None:
    ended = setup(checkout)
    assert (ended.returncode, ended.stderr) == (0, "")
    *parts, last = ended.stdout.splitlines()
    assert parts == PARTS
    assert re.fullmatch(r"setup: done after \d+ min \d+ s: 'make demo' shows it", last)
    installed = {line for line in (checkout / "asked").read_text().splitlines() if "pip install" in line}
    quiet = "-m pip install --quiet --no-compile --disable-pip-version-check --constraint constraints.txt"
    assert installed == {f"{quiet} torch>=2.6 numpy>=1.26", f"{quiet} --no-deps --editable ."}


@pytest.mark.parametrize(
    ("fails", "said"),
    [
        ("tomllib", "not all dependencies were installed, as pip says above: make setup tries again"),
        ("numpy", "not all dependencies were installed, as pip says above: make setup tries again"),
        ("--editable", "tpiedge was not installed, as pip says above: make setup tries again"),
    ],
)
def test_failed_installation_error_follows_its_cause(checkout: Path, fails: str, said: str) -> None:
    ended = setup(checkout, fails=fails)
    assert complaints(ended) == ["the cause", f"setup: {said}"]
    assert not (checkout / ".venv" / ".setup-done").exists()
    assert setup(checkout).returncode == 0, "the next one succeeds"
