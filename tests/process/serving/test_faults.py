"""Whatever is lost, and whenever: it is noticed within two seconds, the cluster heals, and the answer that runs pauses,
goes on, and is the one without a fault, byte for byte."""

import contextlib
import json
import re
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import httpx
import psutil
import pytest

from tests.patience import Meanwhile
from tests.process import faulty
from tests.process.command import wait_for
from tests.process.serving.machines import Worker
from tests.process.serving.serving import START_S, Serving, words_of_loss

# Two seconds on an idle machine: silence of 1.5 s, found at a heartbeat of 0.3 s, and the way to the client.
NOTICED_S = 3.0
SILENT = r"silent for (?:1\.[5-9]|[2-9]\.\d|\d\d+\.\d) s \(killed, frozen or cut off\)"
KILLED = "killed by SIGKILL"
GONE = "its process ended or its connection broke"
#: An answer that brings nothing for so long waits; a step takes a tenth of it.
STALL_S = 0.3
LONG_PROMPT = list(range(10, 960))
LONG = 600
ANSWER_S = 90.0


@dataclass(frozen=True)
class Fault:
    """Of one worker or rank 0. `aim` finds what is harmed, which takes a while, and returns what harms it, which does
    not; `heal` what does not heal by itself; `words` of the error."""

    aim: Callable[[Serving, Worker], Callable[[], object]]
    heal: Callable[[Serving, Worker], None]
    words: str

    def harm(self, cluster: Serving, victim: Worker) -> None:
        self.aim(cluster, victim)()


def kill_agent(cluster: Serving, victim: Worker) -> Callable[[], object]:
    agent = victim.agent

    def harm() -> None:
        agent.kill()
        victim.process.wait()

    return harm


def kill_node(cluster: Serving, victim: Worker) -> Callable[[], object]:
    return victim.node.kill


def crash_node(cluster: Serving, victim: Worker) -> Callable[[], object]:
    node = victim.node
    return lambda: node.send_signal(signal.SIGSEGV)


def freeze(cluster: Serving, victim: Worker) -> Callable[[], object]:
    """As a laptop whose lid is closed."""
    machine = victim.agent, victim.node
    return lambda: [process.suspend() for process in machine]


def kill_rank_zero(cluster: Serving, victim: Worker) -> Callable[[], object]:
    return cluster.rank_zero().kill


def nothing(cluster: Serving, victim: Worker) -> None:
    """The cluster heals by itself."""


def start_again(cluster: Serving, victim: Worker) -> None:
    cluster.start_worker(victim.name, token=False)


def thaw(cluster: Serving, victim: Worker) -> None:
    for process in (*victim.agent.children(), victim.agent):
        process.resume()


CRASHED_NODE = Fault(crash_node, nothing, words_of_loss(2, ".*killed by SIGSEGV"))
FAULTS = {
    "agent killed": Fault(kill_agent, start_again, words_of_loss(2, GONE)),
    "node killed": Fault(kill_node, nothing, words_of_loss(2, f".*{KILLED}")),
    "worker frozen": Fault(freeze, thaw, words_of_loss(2, SILENT)),
    "rank 0 killed": Fault(kill_rank_zero, nothing, words_of_loss(0, f".*{KILLED}")),
}


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> dict[str, faulty.Fault]:
    """By the name of the worker, which begins no step then."""
    folder = tmp_path_factory.mktemp("held")
    return {name: faulty.Fault("held", folder / name) for name in ("ann", "bob")}


@pytest.fixture(scope="module")
def cluster(clusters, held: dict[str, faulty.Fault]) -> Serving:
    cluster = clusters("--min-workers", 2)
    cluster.start_master()
    for name, fault in held.items():
        cluster.start_worker(name, program=fault.program)
    return cluster


@pytest.fixture
def fault(request) -> Fault:
    return FAULTS[request.param]


@pytest.fixture(scope="module")
def whole(cluster: Serving) -> str:
    """The long answer without a fault."""
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


@contextlib.contextmanager
def harmed(
    cluster: Serving, fault: Fault, victim: Worker, harm: Callable[[], object] | None = None
) -> Iterator[None]:
    """The fault comes, is noticed and said; it is healed at the end. `harm`: where it was aimed before."""
    before, harm = len(cluster.master.log), harm or fault.aim(cluster, victim)
    meanwhile = Meanwhile()
    harm()
    try:
        took_s = wait_for(lambda: re.search(fault.words, cluster.master.log[before:]), START_S)
        assert took_s < NOTICED_S * meanwhile.patience()
        yield
    finally:
        fault.heal(cluster, victim)


def goes_on(cluster: Serving, fault: Fault, victim: Worker, whole: str) -> None:
    """The fault comes in the middle of an answer."""
    before = resumed(cluster)
    with cluster.streaming("Once", LONG) as stream:
        with cluster.crawling():  # or it may have ended before anybody hears its beginning
            stream.wait_for_text(20)
            harm = fault.aim(cluster, victim)
        with harmed(cluster, fault, victim, harm):
            pass
        stream.join(ANSWER_S)
    assert (stream.error, stream.text) == (None, whole)
    assert resumed(cluster) > before


def resumed(cluster: Serving) -> int:
    """How often an answer has gone on in another epoch."""
    return cluster.status()["totals"]["resumed"]


@pytest.mark.fault("P1", "seen within 2 s, said in the log and by `/ready`, mended by itself")
@pytest.mark.parametrize("fault", ["agent killed"], indirect=True)
def test_idle(cluster: Serving, fault: Fault, victim: Worker):
    epoch = cluster.status()["epoch"]
    with harmed(cluster, fault, victim):
        if fault.heal is not nothing:
            cluster.wait_until(lambda status: not status["ready"])
            assert cluster.ready().status_code == 503
    cluster.wait_until(lambda status: status["ready"] and status["epoch"] > epoch)


@pytest.mark.fault("P1", "before the first token: the answer comes later, and is exact")
@pytest.mark.parametrize("fault", ["node killed"], indirect=True)
def test_during_prefill(cluster: Serving, fault: Fault, victim: Worker):
    def answer() -> str:
        with cluster.client() as client:
            stream = client.completions.create(
                model="demo",
                prompt=LONG_PROMPT,
                max_tokens=20,
                temperature=0,
                stream=True,
                extra_body={"ignore_eos": True},
            )
            return "".join(chunk.choices[0].text for chunk in stream)

    whole = answer()
    with ThreadPoolExecutor(1) as thread:
        with cluster.crawling():  # or it may have ended before anybody looks
            disturbed = thread.submit(answer)
            cluster.wait_until(lambda status: status["running"] == 1)
            harm = fault.aim(cluster, victim)
        with harmed(cluster, fault, victim, harm):
            pass
        assert disturbed.result(ANSWER_S) == whole


@pytest.mark.fault("P1", "in the middle of an answer: it pauses, goes on and is exact")
@pytest.mark.fault(
    "P3",
    "longer: said to be killed, frozen or cut off; the answer goes on, and it is taken back when it moves again",
)
@pytest.mark.parametrize("fault", ["rank 0 killed", "worker frozen"], indirect=True)
def test_during_decode(cluster: Serving, fault: Fault, victim: Worker, whole: str):
    goes_on(cluster, fault, victim, whole)


@pytest.mark.parametrize("fault", [CRASHED_NODE], ids=["node crashed"])
@pytest.mark.fault("P2", "the signal is said; the answer pauses, goes on and is exact")
def test_a_crash(cluster: Serving, fault: Fault, victim: Worker, whole: str):
    goes_on(cluster, fault, victim, whole)


@pytest.mark.parametrize("fault", ["node killed"], indirect=True)
@pytest.mark.fault("P1", "inside an all-reduce: the answer pauses, goes on and is exact")
def test_killed_inside_an_all_reduce(
    cluster: Serving, fault: Fault, victim: Worker, whole: str, held: dict[str, faulty.Fault]
):
    """The other worker holds it up, so that the victim waits in it; and is heard, so that it is not lost itself."""
    (other,) = (name for name in cluster.workers if name != victim.name)
    before, harm = resumed(cluster), fault.aim(cluster, victim)
    with cluster.streaming("Once", LONG) as stream:
        with held[other].holding():
            stream.wait_until_it_stalls(STALL_S)
            with harmed(cluster, fault, victim, harm):
                pass
        stream.join(ANSWER_S)
    assert (stream.error, stream.text) == (None, whole)
    assert resumed(cluster) > before


@pytest.mark.fault(
    "P4", "all workers at once: answers and requests wait; back, the workers serve them, exactly"
)
def test_all_workers_at_once(cluster: Serving, whole: str, exact) -> None:
    cluster.wait_ready(3)
    workers = list(cluster.workers.values())
    with cluster.streaming("Once", LONG) as stream, ThreadPoolExecutor(1) as thread:
        with cluster.crawling():  # or it may have ended before all are killed
            for worker in workers:
                kill_agent(cluster, worker)()
        cluster.wait_until(lambda status: "0 of 2 workers here" in status["reason"])
        later = thread.submit(exact, cluster)
        cluster.wait_until(lambda status: status["queued"] == 2)
        assert cluster.ready().status_code == 503
        for worker in workers:
            start_again(cluster, worker)
        stream.join(ANSWER_S)
        later.result(ANSWER_S)
    assert stream.error is None
    assert stream.text == whole


@pytest.mark.fault(
    "P4", "where nothing can serve without a machine, the stream says meanwhile which one is waited for"
)
def test_a_stream_says_who_is_waited_for_and_that_it_goes_on(
    cluster: Serving, victim: Worker, whole: str
) -> None:
    body = {
        "model": "demo",
        "prompt": "Once",
        "max_tokens": LONG,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    waits = f": waiting for {victim.name}: 1 of 2 workers here: waiting for 1 more; {victim.name}: {GONE}"
    text, said, killed, missed = "", list[str](), False, True
    asked = httpx.stream(
        "POST", f"{cluster.url}/v1/completions", json=body, timeout=ANSWER_S, trust_env=False
    )
    with cluster.crawling(), asked as answer:  # until the kill, after which there are other nodes
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                assert '"error"' not in line, (line, said)
                text += json.loads(line.removeprefix("data: "))["choices"][0]["text"]
            elif line.startswith(": ") and line != ": ping" and line not in said:
                said.append(line)
            if not killed and len(text) > 20:
                kill_agent(cluster, victim)()
                killed = True
            if killed and missed and waits in said:
                start_again(cluster, victim)
                missed = False
    assert text == whole
    assert f": {victim.name} was lost: {GONE}" in said[: said.index(waits)]
    assert said[-1].endswith("; going on with the same machines")
