"""Machines are lost in the middle of answers: it is said within two seconds, the cluster heals, and answers pause, go
on, and are those without a fault, byte for byte. tests/simulation has every moment of an answer."""

import json
import re
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import httpx
import psutil
import pytest

from tests.deadlines import Meanwhile
from tests.process.command import wait_for
from tests.process.serving.machines import Worker
from tests.process.serving.serving import START_S, Serving, words_of_loss

# Two seconds on an idle machine: silence of 1.5 s, found at a heartbeat of 0.3 s, and the way to the client.
NOTICED_S = 3.0
SILENT = r"silent for (?:1\.[5-9]|[2-9]\.\d|\d\d+\.\d) s \(killed, frozen or cut off\)"
GONE = "its process ended or its connection broke"
LONG = 120
ANSWER_S = 90.0


def crash_node(cluster: Serving, victim: Worker) -> Callable[[], object]:
    node = victim.node
    return lambda: node.send_signal(signal.SIGSEGV)


def freeze(cluster: Serving, victim: Worker) -> Callable[[], object]:
    machine = victim.agent, victim.node
    return lambda: [process.suspend() for process in machine]


def kill_rank_zero(cluster: Serving, victim: Worker) -> Callable[[], object]:
    return cluster.rank_zero().kill


@pytest.fixture(scope="module")
def cluster(clusters) -> Serving:
    cluster = clusters("--min-workers", 2)
    cluster.start_master()
    for name in ("ann", "bob"):
        cluster.start_worker(name)
    return cluster


@pytest.fixture(scope="module")
def whole(cluster: Serving) -> str:
    cluster.wait_ready(3)
    return cluster.whole("Once", LONG)


@pytest.fixture
def victim(cluster: Serving, exact):
    """Rank 2. Afterwards the cluster is whole again, under the same master, and answers as ever."""
    cluster.wait_ready(3)
    master, held = cluster.master.pid, {name: one.weights() for name, one in cluster.workers.items()}
    rank_two = next(node["host"] for node in cluster.status()["nodes"] if node["rank"] == 2)
    yield cluster.workers[rank_two]
    cluster.wait_ready(3)
    exact(cluster)
    assert not [one.name for one in cluster.workers.values() if one.fetched_again(held[one.name])]
    assert psutil.Process(master).is_running()


@pytest.mark.fault(
    "P1", "in the middle of an answer: seen and said within 2 s; it pauses, goes on and is exact"
)
@pytest.mark.fault("P2", "the signal is said; the answer pauses, goes on and is exact")
@pytest.mark.fault(
    "P3",
    "longer: said to be killed, frozen or cut off; the answer goes on, and it is taken back when it moves again",
)
@pytest.mark.parametrize(
    ("aim", "words"),
    [
        (kill_rank_zero, words_of_loss(0, ".*killed by SIGKILL")),
        (crash_node, words_of_loss(2, ".*killed by SIGSEGV")),
        (freeze, words_of_loss(2, SILENT)),
    ],
)
def test_answer_stays_exact_when_a_node_is_lost(
    cluster: Serving, victim: Worker, whole: str, aim, words: str
) -> None:
    before, resumed = len(cluster.master.log), cluster.status()["totals"]["resumed"]
    with cluster.streaming("Once", LONG) as stream:
        with cluster.crawling():  # or it may have ended before anybody hears its beginning
            stream.wait_for_text(20)
            harm = aim(cluster, victim)
        meanwhile = Meanwhile()
        harm()
        try:
            took_s = wait_for(lambda: re.search(words, cluster.master.log[before:]), START_S)
            assert took_s < NOTICED_S * meanwhile.deadline_factor()
        finally:
            for process in (*victim.agent.children(recursive=True), victim.agent):
                process.resume()
        stream.join(ANSWER_S)
    assert (stream.error, stream.text) == (None, whole)
    assert cluster.status()["totals"]["resumed"] > resumed


@pytest.mark.fault(
    "P4", "all workers at once: answers and requests wait; back, the workers serve them, exactly"
)
@pytest.mark.fault(
    "P4", "where nothing can serve without a machine, the stream says meanwhile which one is waited for"
)
def test_answer_resumes_after_all_workers_are_lost(cluster: Serving, whole: str, exact) -> None:
    cluster.wait_ready(3)
    workers = list(cluster.workers.values())
    body = {"model": "demo", "prompt": "Once", "max_tokens": LONG, "temperature": 0, "ignore_eos": True}
    text, said, killed, later = "", list[str](), False, None
    asked = httpx.stream(
        "POST",
        f"{cluster.url}/v1/completions",
        json=body | {"stream": True},
        timeout=ANSWER_S,
        trust_env=False,
    )
    # It crawls until the kill, after which there are other nodes.
    with ThreadPoolExecutor(1) as thread, cluster.crawling(), asked as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                assert '"error"' not in line, (line, said)
                text += json.loads(line.removeprefix("data: "))["choices"][0]["text"]
            elif line.startswith(": ") and line != ": ping" and line not in said:
                said.append(line)
            if not killed and len(text) > 20:
                killed = True
                for worker in workers:
                    worker.agent.kill()
                    worker.process.wait()
            if later is None and said and re.match(r": waiting for \w+ \(.*\), \w+ \(", said[-1]):
                later = thread.submit(exact, cluster)
                cluster.wait_until(lambda status: status["queued"] == 2)
                assert cluster.ready().status_code == 503
                for worker in workers:
                    cluster.start_worker(worker.name, token=False)
        assert later is not None, said
        later.result(ANSWER_S)
    assert text == whole
    assert any(re.match(rf": (ann|bob) was lost: {GONE}", line) for line in said), said
    assert any(line.startswith(": waiting for ") for line in said)
    assert said[-1].endswith("; going on with the same machines")
