"""The memory that an input may take is its own, and a process that dies leaves its last words."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

_PROGRAM = """
import json, sys
from pathlib import Path
from tests.fuzz import campaign
from tests.fuzz.parser import Parser

kept = []

def read(data):
{body}

campaign.PARSERS = {{"made-up": Parser("made-up", lambda folder: read, lambda: [b"x"], (ValueError,))}}
report = campaign.Campaign("made-up", 1, Path(sys.argv[1])).run({inputs})
found = {{kind: path.with_suffix(".txt").read_text() for kind, path in report.findings.items()}}
print(json.dumps([report.inputs, found]))
"""
_LIMIT_S = 100.0


def campaign(folder: Path, body: str, inputs: int) -> dict[str, str]:
    """Kind -> text of what is found where `body` reads the inputs."""
    program = _PROGRAM.format(body=body, inputs=inputs)
    ended = subprocess.run(
        [sys.executable, "-c", program, folder],
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert ended.returncode == 0, ended.stderr
    done, findings = json.loads(ended.stdout)
    assert done == inputs
    return dict(findings)


GARBAGE = """
    block = bytearray(8 << 20)
    try:
        raise ValueError("no")
    except ValueError as error:
        found = error
    raise found
"""
FREED = """
    blocks = [bytes(100_000) for _ in range(500)]
    kept.append(bytes(1000))
"""


@pytest.mark.parametrize("body", [GARBAGE, FREED], ids=["what keeps itself", "what was freed"])
def test_memory_held_from_earlier_inputs_is_not_counted(tmp_path: Path, body: str) -> None:
    """Forty tokenizers that errors still held ended the process at an input that was in order."""
    assert campaign(tmp_path, body, 300) == {}


@pytest.mark.parametrize(
    ("body", "inputs", "found"),
    [
        ("    bytearray(65 << 20)", 3, "MemoryError"),
        ("    while True: pass", 2, "TooSlow"),
        ("    kept.append(bytearray(100_000))", 2002, "memory is not given back"),
        ("    raise KeyError(data)", 3, "KeyError"),
        ("    raise ValueError('a' * 2000)", 3, "not one short line"),
    ],
)
def test_parser_faults_are_reported_by_kind(tmp_path: Path, body: str, inputs: int, found: str) -> None:
    (kind,) = campaign(tmp_path, body, inputs)
    assert kind.startswith(found)


def test_crashed_process_is_reported_with_its_last_output(tmp_path: Path) -> None:
    body = "    import os; os.write(2, b'a' * 3000 + b'out of luck'); os.abort()"
    ((kind, text),) = campaign(tmp_path, body, 4).items()
    assert kind == "the process ended with -6"
    assert text.rstrip().endswith("out of luck")
    assert len(text) < 2100
