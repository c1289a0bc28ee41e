"""Every parser of foreign bytes: what was once found, some inputs that are the same in every run, and some new ones."""

import json
import secrets
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import settings

from tests.fuzz.parsers import PARSERS

_TOOL = Path(__file__).parents[2] / "tools" / "fuzz.py"
_INPUTS = 500
_LIMIT_S = 250.0


def fuzz(parser: str, *options: object) -> dict[str, object]:
    """Returns the report of the command; fails if it has findings, and names them."""
    command = [sys.executable, _TOOL, "--parser", parser, *options]
    ended = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=_LIMIT_S, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return dict(json.loads(ended.stdout))


def fresh_seed() -> int:
    """Returns the usual one in `.ci/run`, which asks hypothesis for the same examples each time."""
    return 1 if settings.get_current_profile_name() == "ci" else secrets.randbits(32)


@pytest.mark.parametrize("parser", list(PARSERS))
def test_every_fuzzed_input_is_parsed_or_refused(parser: str, tmp_path: Path) -> None:
    for seed in {1, fresh_seed()}:
        report = fuzz(parser, "--inputs", _INPUTS, "--seed", seed, "--findings", tmp_path)
        assert report["inputs"] == _INPUTS
        assert report["in_order"] > 0, "not even a first input"
