import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools.touched import BUILT_BY, ROOT

FILES = {
    "tpiedge/lab/some.py": "from tpiedge.used import name\nfrom tpiedge import direct\nimport tests.unit.helper\n",
    "tpiedge/used.py": "import tpiedge.further",
    "tpiedge/direct.py": "",
    "tpiedge/further.py": "",
    "tpiedge/serving.py": "",
    "tools/tool.py": "",
    "tests/unit/helper.py": "",
    "tests/unit/lab/test_some.py": "",
    "tests/unit/test_serving.py": "",
    "docs/lab.md": "",
    ".ci/passed": "not yet",
} | dict.fromkeys(BUILT_BY, "")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    shutil.copy(ROOT / "tools" / "touched.py", tmp_path / "tools")
    git(tmp_path, "init", "--quiet")
    commit(tmp_path)
    assert run(tmp_path, "--passed", head(tmp_path))[0] == 0
    assert (
        run(tmp_path, "--passed", head(tmp_path))[0] == 0
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


def run(folder: Path, *words: str) -> tuple[int, str, str]:
    command = [sys.executable, str(folder / "tools" / "touched.py"), *words]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    return ended.returncode, ended.stdout.strip(), ended.stderr


ALL = "lab or not lab"
NONE = "not lab and not native and not page"
LAB = "not native and not page"


@pytest.mark.parametrize(("changed", "marks"), [
    ("tpiedge/lab/some.py", LAB), ("tpiedge/used.py", LAB), ("tpiedge/direct.py", LAB), ("tests/unit/helper.py", LAB),
    ("tools/tool.py", LAB), ("tools/new.py", LAB), ("tests/unit/lab/test_some.py", LAB), ("pyproject.toml", ALL),
    ("tpiedge/__init__.py", LAB), ("tpiedge/used/__init__.py", LAB), ("configs/testbeds/pair.toml", LAB),
    ("tests/conftest.py", ALL), ("tests/process/conftest.py", ALL), ("tests/skips.py", ALL), (".ci/run", ALL),
    ("tpiedge/kernels/native/draw.cpp", "not page"), ("tpiedge/model/demo/held_out.txt", LAB),
    ("docker/Dockerfile", LAB), ("tests/native/draw.cpp", "not lab and not page"),
    ("tpiedge/page/scripts/some.js", "not lab and not native"), ("tpiedge/api/some.py", "not lab and not native"),
    ("tests/browsing/some.py", "not lab and not native"),
    ("tpiedge/serving.py", NONE), ("tpiedge/further.py", NONE), ("tests/unit/test_serving.py", NONE),
    ("docs/lab.md", NONE), ("README.md", NONE),
])  # fmt: skip
@pytest.mark.parametrize("committed", [False, True])
def test_changed_file_selects_its_test_marks(
    checkout: Path, changed: str, marks: str, committed: bool
) -> None:
    assert run(checkout)[:2] == (0, NONE)
    (checkout / changed).parent.mkdir(parents=True, exist_ok=True)
    (checkout / changed).write_text("'changed'")
    if committed:
        commit(checkout)
    assert run(checkout)[:2] == (0, marks)


@pytest.mark.parametrize("written", ["", "0123456789012345678901234567890123456789\n", "--help", None])
def test_unknown_passed_commit_selects_all_tests(checkout: Path, written: str | None) -> None:
    passed = checkout / ".ci" / "passed"
    passed.unlink()
    if written is not None:
        passed.write_text(written)
    status, marks, words = run(checkout)
    assert (status, marks, "names no commit" in words) == (0, ALL, True)
