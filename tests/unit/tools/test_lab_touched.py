"""Tests of the laboratory and of tools run when their subject or its imports changed."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools.lab_touched import BUILT_BY, ROOT, UNTOUCHED

FILES = {
    "tpiedge/lab/some.py": "from tpiedge.used import name\nfrom tpiedge import direct\nimport tests.helper\n",
    "tpiedge/used.py": "import tpiedge.further",
    "tpiedge/direct.py": "",
    "tpiedge/further.py": "",
    "tpiedge/serving.py": "",
    "tools/tool.py": "",
    "tests/helper.py": "",
    "tests/unit/lab/test_some.py": "",
    "tests/unit/test_serving.py": "",
    "docs/lab.md": "",
    ".ci/lab-passed": "not yet",
} | dict.fromkeys(BUILT_BY, "")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    shutil.copy(ROOT / "tools" / "lab_touched.py", tmp_path / "tools")
    git(tmp_path, "init", "--quiet")
    commit(tmp_path)
    assert asked(tmp_path, "--passed", head(tmp_path))[0] == 0
    assert (
        asked(tmp_path, "--passed", head(tmp_path))[0] == 0
    )  # not the file that says so keeps it from saying so
    commit(tmp_path)
    return tmp_path


def git(folder: Path, *words: str) -> None:
    subprocess.run(
        ["git", "-c", "user.name=x", "-c", "user.email=x@example.org", *words], cwd=folder, check=True
    )


def commit(folder: Path) -> None:
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--no-gpg-sign", "--message", "a change")


def head(folder: Path) -> str:
    command = ["git", "rev-parse", "HEAD"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


def asked(folder: Path, *words: str) -> tuple[int, str]:
    command = [sys.executable, str(folder / "tools" / "lab_touched.py"), *words]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    return ended.returncode, ended.stdout + ended.stderr


@pytest.mark.parametrize(("changed", "touched"), [
    ("tpiedge/lab/some.py", True), ("tpiedge/used.py", True), ("tpiedge/direct.py", True), ("tests/helper.py", True),
    ("tools/tool.py", True), ("tools/new.py", True), ("tests/unit/lab/test_some.py", True), ("pyproject.toml", True),
    ("tpiedge/__init__.py", True), ("tpiedge/used/__init__.py", True), ("configs/testbeds/pair.toml", True),
    ("tests/conftest.py", True), ("tests/process/conftest.py", True), ("tests/skips.py", True), (".ci/run", True),
    ("tpiedge/kernels/native/draw.cpp", True), ("tpiedge/model/demo/held_out.txt", True), ("docker/Dockerfile", True),
    ("tpiedge/serving.py", False), ("tpiedge/further.py", False), ("tests/unit/test_serving.py", False),
    ("docs/lab.md", False), ("README.md", False),
])  # fmt: skip
@pytest.mark.parametrize("committed", [False, True])
def test_what_is_imported_by_the_laboratory_counts(
    checkout: Path, changed: str, touched: bool, committed: bool
) -> None:
    assert asked(checkout)[0] == UNTOUCHED
    (checkout / changed).parent.mkdir(parents=True, exist_ok=True)
    (checkout / changed).write_text("'changed'")
    if committed:
        commit(checkout)
    assert asked(checkout)[0] == (0 if touched else UNTOUCHED)


@pytest.mark.parametrize("written", ["", "0123456789012345678901234567890123456789\n", "--help", None])
def test_a_commit_that_is_not_known_counts_as_changed(checkout: Path, written: str | None) -> None:
    passed = checkout / ".ci" / "lab-passed"
    passed.unlink()
    if written is not None:
        passed.write_text(written)
    status, words = asked(checkout)
    assert (status, "names no commit" in words) == (0, True)
