import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.skips import NEEDS

ROOT = Path(__file__).parents[2]
TESTS = """
import pytest

@pytest.mark.skipif(True, reason="root: to mount")
@pytest.mark.parametrize("number", [1, 2])
def test_marked(number): ...

def test_docker():
    pytest.skip("docker: no engine")

@pytest.fixture
def namespace():
    pytest.skip("namespaces: none")

def test_fixture(namespace): ...
"""


@pytest.fixture
def outcome(tmp_path: Path):
    """Runs tests with options; returns the output and the status."""

    def run(text: str, *options: str) -> tuple[str, int]:
        (tmp_path / "test_some.py").write_text(text)
        command = [sys.executable, "-m", "pytest", "-p", "tests.skips", *options, tmp_path]
        ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=50)
        return ended.stdout + ended.stderr, ended.returncode

    # To import the plugins takes a second.
    environment = {"PYTEST_ADDOPTS": f"--rootdir={tmp_path} -c {tmp_path}/none.ini"}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    (tmp_path / "none.ini").write_text("")
    return run


def test_skip_reasons_are_summarised_once(outcome):
    told, status = outcome(TESTS)
    assert status == 0
    assert "2 skipped: root: to mount\n" in told
    assert "1 skipped: docker: no engine\n1 skipped: namespaces: none\n" in told


def test_skip_of_a_required_need_fails(outcome):
    told, status = outcome(TESTS, "--require=root,namespaces")
    assert status == 1
    assert "1 skipped, 3 errors" in told
    assert "skipped, though --require names root: root: to mount" in told
    assert "skipped, though --require names namespaces: namespaces: none" in told


def test_skipped_module_with_a_required_need_fails(outcome):
    told, status = outcome(
        'import pytest\npytest.importorskip("nowhere", reason="software: nowhere")', "--require=software"
    )
    assert status != 0
    assert "skipped, though --require names software" in told


def test_skip_without_a_known_need_fails(outcome):
    told, status = outcome('import pytest\ndef test_one():\n    pytest.skip("not today")')
    assert status == 1
    assert "skipped without a need of tests/skips.py: not today" in told


def test_unknown_required_need_is_refused(outcome):
    told, status = outcome(TESTS, "--require=rot")
    assert status == 4
    assert "--require rot: there are only native, compiler, root" in told


def test_all_skip_reasons_in_the_tests_name_a_need():
    """Also of tests that are skipped on other systems only."""
    unnamed = [
        f"{path.relative_to(ROOT)}: {reason}"
        for text, path in ((path.read_text(), path) for path in ROOT.glob("tests/**/*.py"))
        for reason in reasons(ast.parse(text) if "skip" in text else ast.Module([], []))
        if reason.partition(":")[0] not in NEEDS
    ]
    assert unnamed == []


def reasons(tree: ast.Module) -> Iterator[str]:
    """Literal ones of `pytest.skip`, `pytest.mark.skipif` and `pytest.importorskip`."""
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            continue
        if call.func.attr in ("skip", "skipif", "importorskip"):
            given = [word.value for word in call.keywords if word.arg == "reason"]
            if call.func.attr == "skip":
                given += call.args
            for reason in given:
                start = reason.values[0] if isinstance(reason, ast.JoinedStr) else reason
                if isinstance(start, ast.Constant):
                    yield start.value
