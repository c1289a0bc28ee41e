"""Whether tests of the laboratory and of tools run goes by what they are about, and by nothing that was forgotten."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools.lab_touched import BUILT_BY, ROOT, about

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
    (tmp_path / ".ci").mkdir()
    asked(tmp_path, "--passed")
    commit(tmp_path)
    return tmp_path


def git(folder: Path, *words: str) -> None:
    subprocess.run(
        ["git", "-c", "user.name=x", "-c", "user.email=x@example.org", *words], cwd=folder, check=True
    )


def commit(folder: Path) -> None:
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--no-gpg-sign", "--message", "a change")


def asked(folder: Path, *words: str) -> tuple[int, str]:
    command = [sys.executable, str(folder / "tools" / "lab_touched.py"), *words]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    return ended.returncode, ended.stdout + ended.stderr


@pytest.mark.parametrize(("changed", "touched"), [
    ("tpiedge/lab/some.py", True), ("tpiedge/used.py", True), ("tpiedge/direct.py", True), ("tests/helper.py", True),
    ("tools/tool.py", True), ("tools/new.py", True), ("tests/unit/lab/test_some.py", True), ("pyproject.toml", True),
    ("tpiedge/serving.py", False), ("tpiedge/further.py", False), ("tests/unit/test_serving.py", False),
    ("docs/lab.md", False), ("README.md", False),
])  # fmt: skip
@pytest.mark.parametrize("committed", [False, True])
def test_what_is_imported_by_the_laboratory_counts(
    checkout: Path, changed: str, touched: bool, committed: bool
) -> None:
    assert asked(checkout)[0] == 1
    (checkout / changed).write_text("'changed'")
    if committed:
        commit(checkout)
    assert asked(checkout)[0] == (0 if touched else 1)


def test_what_is_gone_counts(checkout: Path) -> None:
    (checkout / "tools/tool.py").unlink()
    assert asked(checkout)[0] == 0


@pytest.mark.parametrize("written", ["", "0123456789012345678901234567890123456789\n", "--help", None])
def test_a_commit_that_is_not_known_counts_as_changed(checkout: Path, written: str | None) -> None:
    passed = checkout / ".ci" / "lab-passed"
    passed.unlink()
    if written is not None:
        passed.write_text(written)
    status, words = asked(checkout)
    assert (status, "names no commit" in words) == (0, True)


def test_what_is_not_committed_did_not_pass(checkout: Path) -> None:
    before = (checkout / ".ci" / "lab-passed").read_text()
    (checkout / "tools/new.py").touch()
    status, words = asked(checkout, "--passed")
    assert (status, "tools/new.py" in words) == (1, True)
    assert (checkout / ".ci" / "lab-passed").read_text() == before


def test_of_this_project_it_is_a_part() -> None:
    found = about(ROOT, ())
    assert {
        "tpiedge/local/launch.py",
        "tools/lab_touched.py",
        "tests/process/command.py",
        "setup.py",
    } <= found
    assert "tpiedge/api/app.py" not in found
