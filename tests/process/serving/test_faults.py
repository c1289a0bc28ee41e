"""Whatever is lost, and whenever: the running request ends in words within two seconds, and the cluster heals."""

import contextlib
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import openai
import psutil
import pytest

from tests.process.command import wait_for
from tests.process.serving.machines import Worker
from tests.process.serving.serving import Serving, unfinished, words_of_loss

# Two seconds on an idle machine: silence of 1.5 s, found at a heartbeat of 0.3 s, and the way to the client.
NOTICED_S = 3.0
SILENT = r"silent for (?:1\.[5-9]|[2-9]\.\d|\d\d+\.\d) s \(killed, frozen or cut off\)"
KILLED = "killed by SIGKILL"
#: An answer that brings nothing for so long waits; a step takes a tenth of it.
STALL_S = 0.3
LONG_PROMPT = list(range(10, 960))


@dataclass(frozen=True)
class Fault:
    """`harm` one worker or rank 0, `heal` what does not heal by itself; `words` of the error."""

    harm: Callable[[Serving, Worker], None]
    heal: Callable[[Serving, Worker], None]
    words: str


def kill_agent(cluster: Serving, victim: Worker) -> None:
    victim.agent.kill()
    victim.process.wait()


def kill_node(cluster: Serving, victim: Worker) -> None:
    victim.node.kill()


def crash_node(cluster: Serving, victim: Worker) -> None:
    victim.node.send_signal(signal.SIGSEGV)


def freeze(cluster: Serving, victim: Worker) -> None:
    """As a laptop whose lid is closed."""
    node = victim.node
    victim.agent.suspend()
    node.suspend()


def freeze_node(cluster: Serving, victim: Worker) -> None:
    """The others wait for it inside an all-reduce."""
    victim.node.suspend()


def kill_rank_zero(cluster: Serving, victim: Worker) -> None:
    cluster.rank_zero().kill()


def nothing(cluster: Serving, victim: Worker) -> None:
    """The cluster heals by itself."""


def start_again(cluster: Serving, victim: Worker) -> None:
    cluster.start_worker(victim.name, token=False)


def thaw(cluster: Serving, victim: Worker) -> None:
    for process in (*victim.agent.children(), victim.agent):
        process.resume()


CRASHED_NODE = Fault(crash_node, nothing, words_of_loss(2, ".*killed by SIGSEGV"))
FROZEN_NODE = Fault(freeze_node, nothing, words_of_loss(2, SILENT))
FAULTS = {
    "agent killed": Fault(kill_agent, start_again, words_of_loss(2, SILENT)),
    "node killed": Fault(kill_node, nothing, words_of_loss(2, f".*{KILLED}")),
    "worker frozen": Fault(freeze, thaw, words_of_loss(2, SILENT)),
    "rank 0 killed": Fault(kill_rank_zero, nothing, words_of_loss(0, f".*{KILLED}")),
}


@pytest.fixture(scope="module")
def cluster(clusters) -> Serving:
    cluster = clusters("--min-workers", 2)
    cluster.start_master()
    cluster.start_worker("ann")
    cluster.start_worker("bob")
    return cluster


@pytest.fixture(params=FAULTS)
def fault(request) -> Fault:
    return FAULTS[request.param]


@pytest.fixture
def victim(cluster: Serving, fault: Fault, exact):
    """Rank 2. Afterwards the cluster is whole again, under the same master, and answers as ever."""
    cluster.wait_ready(3)
    master = cluster.master.pid
    rank_two = next(node["host"] for node in cluster.status()["nodes"] if node["rank"] == 2)
    victim = cluster.workers[rank_two]
    yield victim
    fault.heal(cluster, victim)
    cluster.wait_ready(3)
    exact(cluster)
    assert psutil.Process(master).is_running()


def broken_stream(cluster: Serving, harm: Callable[[], None], patience: float) -> str:
    """What the client is told when `harm` comes in the middle of an answer."""
    with cluster.client() as client:
        stream = client.completions.create(
            model="demo",
            prompt="Once",
            max_tokens=1000,
            temperature=0,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        for _ in range(10):
            next(stream)
        harm()
        started = time.monotonic()
        with pytest.raises(openai.APIError) as caught:
            list(unfinished(stream))
    assert time.monotonic() - started < NOTICED_S * patience
    return caught.value.message


@pytest.mark.fault("P1", "seen within 2 s, said in the log and by `/ready`, mended by itself")
def test_idle(cluster: Serving, fault: Fault, victim: Worker, patience: float):
    before = len(cluster.master.log)
    fault.harm(cluster, victim)
    started = time.monotonic()
    cluster.wait_until(lambda status: not status["ready"])
    assert time.monotonic() - started < NOTICED_S * patience
    assert cluster.ready().status_code == 503
    wait_for(lambda: re.search(fault.words, cluster.master.log[before:]), NOTICED_S)


@pytest.mark.fault("P1", "503 with the node and the cause within 2 s; the next answer is exact")
def test_during_prefill(cluster: Serving, fault: Fault, victim: Worker, patience: float):
    with cluster.client() as client, ThreadPoolExecutor(1) as thread:
        answer = thread.submit(
            client.completions.create,
            model="demo",
            prompt=LONG_PROMPT,
            max_tokens=20,
            temperature=0,
            stream=True,
        )
        cluster.wait_until(lambda status: status["running"] == 1)
        fault.harm(cluster, victim)
        started = time.monotonic()
        # No stream has begun, so the error is the answer.
        with pytest.raises(openai.APIStatusError) as caught:
            answer.result()
    assert time.monotonic() - started < NOTICED_S * patience
    assert caught.value.status_code == 503
    assert re.search(fault.words, caught.value.message)


@pytest.mark.fault("P1", "the stream ends in an error within 2 s; the next answer is exact")
@pytest.mark.fault("P3", "longer, with its agent: lost, and taken back with its weights when it moves again")
def test_during_decode(cluster: Serving, fault: Fault, victim: Worker, patience: float):
    assert re.search(fault.words, broken_stream(cluster, lambda: fault.harm(cluster, victim), patience))


@pytest.mark.parametrize("fault", [CRASHED_NODE], ids=["node crashed"])
@pytest.mark.fault("P2", "the stream ends in an error that names the signal")
def test_a_crash(cluster: Serving, fault: Fault, victim: Worker, patience: float):
    assert re.search(fault.words, broken_stream(cluster, lambda: fault.harm(cluster, victim), patience))


@pytest.mark.parametrize("fault", [Fault(freeze, thaw, "")], ids=["worker frozen"])
@pytest.mark.fault("P3", "of a second: the answer is whole, in the same epoch")
def test_a_freeze_of_a_second_is_only_slow(cluster: Serving, fault: Fault, victim: Worker):
    """Whatever this machine is busy with counts as silence too, so one of three answers has to come through."""
    with cluster.streaming("Once", 400) as stream:
        stream.join(60)
    whole = stream.text
    for _ in range(3):
        cluster.wait_ready(3)
        epoch = cluster.status()["epoch"]
        with cluster.streaming("Once", 400) as stream:
            fault.harm(cluster, victim)
            threading.Event().wait(1.0)  # it is the fault itself that takes as long
            fault.heal(cluster, victim)
            stream.join(60)
        if stream.error is None:
            break
    assert stream.error is None
    assert stream.text == whole
    assert cluster.status()["epoch"] == epoch


@pytest.mark.parametrize("fault", [FROZEN_NODE], ids=["node frozen"])
@pytest.mark.fault("P3", "longer: the stream ends in an error that says killed, frozen or cut off")
def test_inside_an_all_reduce(cluster: Serving, fault: Fault, victim: Worker, patience: float):
    """The agent lives, its node does not move: the others wait for it."""
    assert re.search(fault.words, broken_stream(cluster, lambda: fault.harm(cluster, victim), patience))


@pytest.mark.parametrize("fault", ["node killed", "rank 0 killed"], indirect=True)
@pytest.mark.fault("P1", "the stream ends in an error within 2 s; the next answer is exact")
def test_killed_inside_an_all_reduce(cluster: Serving, fault: Fault, victim: Worker, patience: float):
    """The other worker holds it up, so that the victim waits in it."""
    (other,) = (worker for worker in cluster.workers.values() if worker is not victim)
    node = other.node
    with cluster.streaming("Once", 1000) as stream:
        node.suspend()
        try:
            stream.wait_until_it_stalls(STALL_S)
            fault.harm(cluster, victim)
            started = time.monotonic()
        finally:
            node.resume()
        stream.join()
    assert stream.ended_at - started < NOTICED_S * patience
    assert re.search(fault.words, str(stream.error))


@pytest.mark.fault(
    "P4", "all workers at once: 503 while there are too few; back, they serve under the same master"
)
def test_all_workers_at_once(cluster: Serving, exact) -> None:
    cluster.wait_ready(3)
    workers = list(cluster.workers.values())
    with cluster.streaming("Once", 1000) as stream:
        for worker in workers:
            kill_agent(cluster, worker)
        stream.join()
    assert re.search(words_of_loss(r"\d", SILENT), str(stream.error))
    cluster.wait_until(lambda status: "0 of 2 workers here" in status["reason"])
    with pytest.raises(openai.APIStatusError, match="0 of 2 workers here") as caught:
        cluster.ask("Once", 1)
    assert caught.value.status_code == 503
    for worker in workers:
        start_again(cluster, worker)
    cluster.wait_ready(3)
    exact(cluster)


@contextlib.contextmanager
def slowed_down(node: psutil.Process) -> Iterator[None]:
    """It gets a fifth of its time, as a machine that is too hot."""
    over = threading.Event()

    def slow_down() -> None:
        while not over.is_set():
            node.suspend()
            over.wait(0.08)
            node.resume()
            over.wait(0.02)

    thread = threading.Thread(target=slow_down)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.fault("P17", "answers are exact and slower, by the same plan; nobody is lost")
def test_a_worker_that_becomes_five_times_slower(cluster: Serving, exact) -> None:
    epoch = cluster.wait_ready(3)["epoch"]
    with slowed_down(cluster.workers["ann"].node):
        exact(cluster)
    assert cluster.wait_ready(3)["epoch"] == epoch
