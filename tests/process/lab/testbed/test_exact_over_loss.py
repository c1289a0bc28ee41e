"""Real connections that lose 5 % of their packets, late and unevenly, give the answer of one node and lose no node."""

import functools
import json
from pathlib import Path
from typing import Any

import pytest

from tests.process.command import run_command
from tests.process.lab.testbed.beds import left_of, why_no_testbed, written

REASON = why_no_testbed()
# Alone: losses in a row leave little of the deadline after which a node counts as lost.
pytestmark = [
    pytest.mark.skipif(REASON is not None, reason=str(REASON)),
    pytest.mark.timeout(240),
    pytest.mark.alone,
]

LIMIT_S = 100.0
_TRIES = 3
ASK = (
    "run", "--model", "demo", "--raw", "--prompt", "Once upon a time", "--max-tokens", 4, "--temperature", 0,
    "--threads", 1, "--json",
)  # fmt: skip
LOSSY = """
[defaults]
up_latency = "1 ms"
up_jitter = "1 ms"
up_loss = "5 %"
[[router]]
name = "router"
"""


def lossy(folder: Path, bed: str, devices: int) -> str:
    """The file of so many devices, all alike. Between any two: 1 to 2 ms and 5 % loss each way."""
    tables = [f'[[device]]\nname = "device{rank}"\nuplink = "router"\n' for rank in range(devices)]
    return written(folder, bed, LOSSY + "".join(tables))


def answer(*arguments: object) -> dict[str, Any]:
    ended = run_command(*ASK, *arguments, limit_s=LIMIT_S)
    assert ended.status == 0, ended.err
    record: dict[str, Any] = json.loads(ended.out)
    return record


@functools.cache
def tokens_of_one_node() -> tuple[int, ...]:
    tokens = tuple(answer()["token_ids"])
    assert len(tokens) == 4
    return tokens


@pytest.mark.parametrize("way", ["mesh", "two-shot"])
@pytest.mark.fault("P10", "the answer is exact")
def test_four_devices_answer_exactly_over_lossy_links(bed: str, tmp_path: Path, way: str) -> None:
    """A link whose first packets are lost again and again is given up, and all goes over the star: seldom."""
    testbed = lossy(tmp_path, bed, 4)
    used: list[str] = []
    while way not in used and len(used) < _TRIES:
        found = answer("--testbed", testbed, "--collective", way)
        assert len(found["nodes"]) == 4
        assert tuple(found["token_ids"]) == tokens_of_one_node()
        assert left_of(bed) == []
        used.append(found["plan"]["collective"])
        assert used[-1] == found["plan"]["bulk_collective"]
        assert used[-1] in (way, "star")
    assert way in used
