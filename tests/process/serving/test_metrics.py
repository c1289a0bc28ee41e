"""`GET /metrics` of a master with a worker: every node's counters come with the looks, and grow with the work."""

import re

import httpx
import pytest

from tests.process.command import wait_for
from tests.process.serving.serving import Serving

pytestmark = pytest.mark.usefixtures("serving_on")

LIMIT_S = 10.0
_LABELS = r'rank="(\d+)",node="[^"]+"|of="(\w+)",collective="mesh"|\w+="(\w+)"'
_LINE = re.compile(rf"tpiedge_(\w+)(?:\{{(?:{_LABELS})\}})? (\S+)")


def look(cluster: Serving) -> dict[tuple[str, str], float]:
    """The values by (metric, rank or other label)."""
    answer = httpx.get(f"{cluster.url}/metrics", trust_env=False, timeout=5.0)
    assert answer.status_code == 200
    lines = [line for line in answer.text.splitlines() if not line.startswith("#")]
    found = [_LINE.fullmatch(line) for line in lines]
    assert all(found)
    return {(match[1], match[2] or match[3] or match[4] or ""): float(match[5]) for match in found if match}


def test_every_node_tells_what_it_did(cluster: Serving) -> None:
    wait_for(lambda: {("node_steps_total", rank) for rank in "01"} <= look(cluster).keys(), LIMIT_S)
    before = look(cluster)
    assert (before["ready", ""], before["nodes", "ready"]) == (1.0, 2.0)
    assert (before["collective", "token"], before["collective", "chunk"]) == (1.0, 1.0)
    cluster.ask("Once upon a time", 8)

    def counted() -> bool:
        now = look(cluster)
        return all(
            now["node_steps_total", rank] > before["node_steps_total", rank]
            and now["node_tokens_total", rank] >= before["node_tokens_total", rank] + 8
            and now["node_sent_bytes_total", rank] > before["node_sent_bytes_total", rank]
            and now["node_ffn_seconds_total", rank] > before["node_ffn_seconds_total", rank]
            for rank in "01"
        )

    wait_for(counted, LIMIT_S)
    after = look(cluster)
    assert after["requests_total", "finished"] == before["requests_total", "finished"] + 1
    assert after["generated_tokens_total", ""] == before["generated_tokens_total", ""] + 8
    assert after["node_peak_rss_bytes", "1"] > 100e6
    assert after["requests_running", ""] == after["requests_waiting", ""] == 0
    assert after["cached_prompt_tokens_total", ""] <= after["prompt_tokens_total", ""]
    assert after["node_accepted_tokens_total", "0"] <= after["node_drafted_tokens_total", "0"]
    assert after["node_kv_pages_used", "0"] <= after["node_kv_pages", "0"]
