import json
import re

import httpx
import pytest

from tests.process.command import Ended, gone, wait_for
from tests.process.conftest import PROMPT, TOKENS
from tests.process.faulty import Fault
from tests.process.serving.serving import START_S, Serving, rank_of

SLOW = 1e4
LONG = 120
USER = 2


def computed(cluster: Serving) -> float:
    """Positions that rank 0 of this epoch has computed, once it has been asked."""
    counts: list[float] = []

    def known(_status: dict) -> bool:
        text = httpx.get(f"{cluster.url}/metrics", trust_env=False, timeout=START_S).text
        counts[:] = [
            float(value)
            for value in re.findall(r'^tpiedge_node_tokens_total{[^}]*node="master"[^}]*} (.*)$', text, re.M)
        ]
        return bool(counts) and counts[0] > 0

    cluster.wait_until(known)
    return counts[0]


@pytest.mark.fault("P18", "it is drained: the answer pauses once the others are ready, goes on and is exact")
def test_drain_keeps_answer_exact_and_undo_restores_worker(clusters, tmp_path, here):
    slow = Fault("slow", tmp_path / "slow")
    # So slow that what a machine computes counts, and not the noise of its round trips.
    cluster = clusters("--min-workers", 1, "--precision", "q4", "--speculate", "off")
    cluster.start_master()

    def nodes(*words: object) -> Ended:
        return here("nodes", *words, TPIEDGE_STATE=str(cluster.state))

    cluster.start_worker("ann", bytes_per_s=SLOW, program=slow.program)
    bob = cluster.start_worker("bob", bytes_per_s=SLOW)
    cluster.wait_ready(3)
    with cluster.streaming(PROMPT, LONG) as undisturbed:
        undisturbed.join(START_S)
    node = bob.node
    slow.begin()  # so that it runs until the others are ready
    with cluster.streaming(PROMPT, LONG) as stream:
        ended = nodes("drain", "bob")
        slow.end()
        assert (ended.status, ended.out.count("\n")) == (0, 1), ended.err
        assert re.search(r"bob \(w-\w+\) is drained and may be switched off", ended.out)
        stream.join(START_S)
    assert (stream.error, stream.text) == (None, undisturbed.text)
    assert cluster.status()["totals"]["resumed"] >= 1
    cluster.wait_ready(2)
    assert 0 < computed(cluster) < LONG, "prompt and answer were computed anew"
    wait_for(
        lambda: not list(cluster.state.rglob("pages/parked/*")), START_S
    )  # keys and values do not stay on disk
    wait_for(lambda: gone(node), START_S)
    assert bob.agent.is_running()
    assert (cluster.node("bob")["state"], rank_of(cluster.status(), "bob")) == ("drained", None)
    words = "this machine is drained: safe to switch off; 'tpiedge nodes drain w-"
    wait_for(lambda: words in bob.log, START_S)
    wait_for(lambda: "bob is drained: safe to switch off" in cluster.master.log, START_S)

    refused = nodes("drain", "ann")
    assert refused.status == USER
    assert refused.err.startswith(
        "tpiedge: cannot drain ann: the others cannot serve without it: 1 more worker needed"
    )
    assert json.loads(nodes("drain", "bob", "--json").out)["state"] == "drained"

    assert nodes("drain", "bob", "--undo").status == 0
    cluster.wait_ready(3)
    assert undisturbed.text.startswith(cluster.ask(PROMPT, TOKENS))

    assert nodes("drain", "bob").status == 0
    assert bob.process.end() == 0
    cluster.start_worker("bob", token=False)
    cluster.wait_ready(3)
