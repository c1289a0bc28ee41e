"""Who takes part: machines that come during an answer, machines that are missing, machines that are too small."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import openai
import pytest

from tests.process.command import wait_for
from tests.process.faulty import Fault
from tests.process.serving.conftest import PROMPT, TOKENS
from tests.process.serving.serving import START_S, Serving, node_of, rank_of

SLOW = 1e4
LONG = 400
FAST = 1e12
RESOURCE = 4


@pytest.fixture
def clusters(tmp_path: Path) -> Iterator[Callable[..., Serving]]:
    """As everywhere here, but ended with the test: they would take the processors from each other."""
    made: list[Serving] = []

    def make(*options: object, **more: object) -> Serving:
        made.append(Serving(tmp_path / f"cluster-{len(made)}", *options, **more))
        return made[-1]

    yield make
    for cluster in made:
        cluster.close()


def test_what_a_loss_would_need_is_on_the_disks_before_it(clusters, exact):
    """Workers fetch it while nobody asks; the plan after the loss then fetches nothing."""
    cluster = clusters("--min-workers", 1, "--precision", "q4", bytes_per_s=SLOW)
    cluster.start_master()
    for name in ("ann", "zoe"):
        cluster.start_worker(name, bytes_per_s=SLOW)
    cluster.wait_ready(3)
    status = cluster.wait_until(
        lambda status: all(node["stocked"] for node in status["nodes"] if node["host"])
    )
    before, written = node_of(status, "zoe"), cluster.workers["zoe"].weights()
    assert 0 < before["disk_bytes"] < sum(size for size, *_ in written.values())
    cluster.workers["ann"].agent.kill()
    status = cluster.wait_until(lambda now: now["ready"] and now["epoch"] > status["epoch"])
    after = node_of(status, "zoe")
    assert after["weight_bytes"] > before["weight_bytes"], "it took over a part of what was lost"
    assert cluster.workers["zoe"].weights() == written
    assert cluster.ask(PROMPT, TOKENS)


@pytest.mark.fault(
    "P17", "one that stays slow gets less, in the middle of an answer, which pauses and is exact"
)
def test_a_worker_that_stays_slow_gets_a_smaller_part(clusters, tmp_path: Path):
    slow = Fault("slow", tmp_path / "slow")
    cluster = clusters("--min-workers", 2, "--precision", "q4", "--speculate", "off", bytes_per_s=SLOW)
    cluster.start_master()
    cluster.start_worker("ann", bytes_per_s=SLOW, program=slow.program)
    cluster.start_worker("zoe", bytes_per_s=SLOW)
    before = cluster.wait_ready(3)
    undisturbed = cluster.whole(PROMPT, LONG)

    def has_less(now: dict) -> bool:
        old, new = node_of(before, "ann"), node_of(now, "ann")
        slower = now["epoch"] > before["epoch"] and "times as long as it measured" in new["why"]
        return slower and new["weight_bytes"] < old["weight_bytes"]

    with cluster.streaming(PROMPT, LONG) as stream:
        slow.begin()
        cluster.wait_until(has_less, 2 * START_S)
        assert not stream.ended_at
        slow.end()
        stream.join(START_S)
    assert (stream.error, stream.text) == (None, undisturbed)


def test_a_worker_that_is_not_needed_is_told_and_what_it_is_told_to_type_takes_it_in(clusters, exact):
    """It adds next to nothing to such a fast master."""
    cluster = clusters(bytes_per_s=FAST)
    cluster.start_master()
    ann = cluster.start_worker("ann", bytes_per_s=FAST)
    why = (
        r"a token takes about [\d.]+ m?s with it and [\d.]+ m?s without it \(12 exchanges a token; its link's "
        r"round trip takes [\d.]+ m?s\); the master's (--min-workers 1) takes it in\n"
    )
    spare = rf"this machine is not needed now: {why}"
    wait_for(lambda: re.search(spare, ann.log), START_S)
    wait_for(lambda: re.search(rf"ann waits as a spare: {why}", cluster.master.log), START_S)
    assert cluster.node("ann")["spare"] == "slower"

    assert cluster.master.end() == 0
    cluster.options = tuple(re.search(spare, ann.log)[1].split())
    cluster.start_master()
    cluster.wait_ready(2)
    assert "now computing as one of 2 machines\n" in ann.log
    assert len(re.findall(spare, ann.log)) == 1
    exact(cluster)


def parts(status: dict, *names: str) -> list[int]:
    """Tiles of the FFN of each of them."""
    return [node_of(status, name)["ffn"][1] - node_of(status, name)["ffn"][0] for name in names]


def with_a_spare(cluster: Serving) -> None:
    """ann and bob have the parts of --shares, and eve none."""
    cluster.start_master()
    for name in ("ann", "bob", "eve"):
        cluster.start_worker(name)
        cluster.wait_until(lambda status, name=name: any(node["host"] == name for node in status["nodes"]))
    status = cluster.wait_until(
        lambda status: status["ready"] and node_of(status, "eve")["spare"] == "shares"
    )
    assert parts(status, "ann", "bob", "eve") == [1, 2, 0]


def test_places_outlast_the_master_in_whatever_order_the_workers_return(clusters, exact):
    """ann is away, and eve stands in for it: so it is after a start of all of them, until ann is back."""
    cluster = clusters("--shares", "1,1,2", "--spare", "off")
    with_a_spare(cluster)
    ann, bob, eve = (cluster.workers[name] for name in ("ann", "bob", "eve"))
    ann.agent.kill()
    ann.process.wait()
    cluster.wait_until(lambda status: status["ready"] and rank_of(status, "eve") is not None)
    written = bob.weights(), eve.weights()
    assert cluster.master.end() == 0
    for worker in (bob, eve):
        assert worker.process.end() == 0

    cluster.start_master()
    for name in ("eve", "bob"):
        cluster.start_worker(name, token=False)
        cluster.wait_until(lambda status, name=name: any(node["host"] == name for node in status["nodes"]))
    status = cluster.wait_ready(3)
    assert parts(status, "bob", "eve") == [2, 1]
    exact(cluster)
    assert (bob.weights(), eve.weights()) == written
    cluster.start_worker("ann", token=False)
    status = cluster.wait_until(lambda status: status["ready"] and rank_of(status, "ann") is not None)
    assert parts(status, "ann", "bob", "eve") == [1, 2, 0]
    exact(cluster)
    assert (bob.weights(), eve.weights()) == written


@pytest.mark.fault("P15", "refused with what is needed and where")
def test_too_little_memory_is_refused_with_numbers(clusters):
    """Workers could help: it waits for some."""
    cluster = clusters("--memory", "400M", "--kv-tokens", 65536)
    cluster.start_master()
    status = cluster.wait_until(lambda status: "needs at least" in status["reason"])
    ready = cluster.ready()
    assert ready.status_code == 503
    assert ready.headers["retry-after"]
    assert ready.json()["ready"] is False
    assert "says why" in ready.json()["reason"]
    assert re.search(
        r"needs at least [\d.]+ MB \(.*\) but may use 400\.0 MB; raise its memory limit or shorten",
        status["reason"],
    )
    with pytest.raises(openai.APIStatusError) as caught:
        cluster.ask(PROMPT, TOKENS)
    assert caught.value.status_code == 503
    assert status["reason"] in caught.value.message


def test_a_worker_whose_memory_holds_no_share_ends_and_says_what_to_type(clusters, exact):
    """The master says it, too, and serves when the worker comes with what it was told to offer."""
    cluster = clusters("--min-workers", 1)
    cluster.start_master()
    ann = cluster.start_worker("ann", "--memory", "100MB")
    assert ann.process.wait() == RESOURCE
    words = (
        r"it offers 100\.0 MB, but the least that works for demo is (\d+) MB: "
        r"start it again with --memory \1MB or more\n"
    )
    last = ann.log.splitlines(keepends=True)[-1]
    told = re.fullmatch(rf"tpiedge: this machine cannot be used: {words}", last)
    assert told, ann.log
    wait_for(lambda: re.search(rf"ann cannot be used: {words}", cluster.master.log), START_S)
    assert re.fullmatch(words, cluster.node("ann")["why"] + "\n")

    ann.options = ("--memory", f"{told[1]}MB")
    cluster.start_worker("ann", token=False)
    cluster.wait_ready(2)
    exact(cluster)


@pytest.mark.fault("F8", "both serve exactly")
def test_two_masters_share_a_cache(clusters, tmp_path, exact):
    """Both start at once on an empty cache: the model is packed once, and both serve it."""
    cache = tmp_path / "cache"
    pair = [clusters(cache=cache) for _ in range(2)]
    for cluster in pair:
        cluster.start_master(wait=False)
    for cluster in pair:
        wait_for(cluster.answers, START_S)
        cluster.wait_ready(1)
        exact(cluster)
    assert sum(len(re.findall(r"packing demo as \w+: .* in", cluster.master.log)) for cluster in pair) == 1
    assert len(list((cache / "packs").iterdir())) == 1


@pytest.mark.fault("P15", "what memory does not hold streams from disk")
def test_machines_that_are_too_small_together_stream(clusters, exact):
    """Program 344.7 MB, up to 3.1 MB of KV cache each; the layers of 4.9 MB and the head of 0.8 MB do not fit."""
    cluster = clusters("--memory", "350MB", "--min-workers", 1)
    cluster.start_master()
    cluster.start_worker("ann", "--memory", "350MB", "--pin", "none", "--window", 2, "--io", "buffered")
    status = cluster.wait_ready(2)
    # One or both, by how fast each was measured to read.
    reasons = [node["why"] for node in status["nodes"]]
    assert any(re.search(r"; [\d.]+ MB of them stream from its disk$", reason) for reason in reasons), reasons
    for _ in range(2):
        exact(cluster)
