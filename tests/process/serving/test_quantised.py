"""A model in q4 served over HTTP: a worker fetches its share of the panels, and computes in int8."""

import json

import pytest

from tests.process.command import run_command
from tests.process.serving.conftest import PROMPT, TOKENS
from tests.process.serving.machines import PANELS_SLOWER, SPEED

SHARES = "2,1"


@pytest.fixture(scope="module")
def expected(_session_cache) -> str:
    """The text of two local nodes with the same shares: the same sums, so the same bits."""
    ended = run_command(
        "run", "--model", "demo", "--precision", "q4", "--nodes", 2, "--shares", SHARES, "--raw", "--prompt", PROMPT,
        "--max-tokens", TOKENS, "--temperature", 0, "--threads", 1, "--json",
    )  # fmt: skip
    assert ended.status == 0, ended.err
    text: str = json.loads(ended.out)["text"]
    assert len(text) > 40
    return text


def test_a_worker_takes_part(clusters, exact):
    cluster = clusters("--shares", SHARES, "--precision", "q4", bytes_per_s=SPEED)
    cluster.start_master()
    cluster.start_worker("ann")
    status = cluster.wait_ready(2)
    assert [node["rank"] for node in status["nodes"]] == [0, 1]
    assert [node["speed"] for node in status["nodes"]] == [SPEED / PANELS_SLOWER] * 2
    exact(cluster)
    exact(cluster)
