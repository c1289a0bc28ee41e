"""The page's scripts that need no page, tested by what runs scripts."""

import shutil
import subprocess
from pathlib import Path

import pytest

TESTS = sorted(path.name for path in Path(__file__).parent.glob("*.test.mjs"))
ROOT = Path(__file__).parents[3]
_LIMIT_S = 100
_OLDEST = 20


def node_version() -> int:
    if shutil.which("node") is None:
        return 0
    answer = subprocess.run(
        ["node", "--version"], capture_output=True, text=True, check=True, timeout=_LIMIT_S
    )
    return int(answer.stdout.removeprefix("v").partition(".")[0])


@pytest.mark.skipif(node_version() < _OLDEST, reason=f"node: there is no node of version {_OLDEST} or newer")
@pytest.mark.parametrize("tests", TESTS)
def test_page_modules_pass_their_node_tests(tmp_path: Path, tests: str) -> None:
    """Runs them in a copy whose package says what the server's media type says to a browser: these are modules."""
    for folder in ("tpiedge/page", "tests/unit/page"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    ended = subprocess.run(
        ["node", "--test", tmp_path / "tests/unit/page" / tests],
        capture_output=True,
        text=True,
        check=False,
        timeout=_LIMIT_S,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
