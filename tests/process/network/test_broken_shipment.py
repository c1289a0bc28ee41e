"""Something is lost while weights are on their way to a machine: it is seen and said, the others serve on where they
can, and the shipment is taken up again where it stopped."""

import contextlib
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import openai
import pytest

from tests.process.command import run_command, wait_for
from tests.process.network.bulky import (
    CONTEXT,
    PROMPT,
    TOKENS,
    build_bulky_model,
    fetched,
    held_bytes,
    reference_text,
    worker_of,
)
from tests.process.network.cluster import NetworkCluster
from tests.process.network.namespaces import Namespaces
from tests.process.serving.conftest import SLOW
from tests.process.serving.machines import Worker
from tests.process.serving.serving import START_S, words_of_loss

#: A share takes 8 s; where four faults are to hit it 20 s, so that the 24 % left after the last outlast a pause.
_MEGABITS, _SLOW_MEGABITS = 20, 8
#: Of what TCP, the encryption and other messages add, and of requests under way at the cut.
_OVERHEAD = 1.08
_SILENT = r"silent for (?:1\.[5-9]|[2-9]\.\d|\d\d+\.\d) s \(killed, frozen or cut off\)"
_LOST = dict.fromkeys(("frozen", "deaf"), _SILENT)
_LOST |= dict.fromkeys(("killed", "reset"), "its process ended or its connection broke")
#: Of its share, before the first fault and from one to the next: more than a layer, which is durable when complete.
_LAYER, _PROGRESS = 1 / 6, 0.19


@pytest.fixture(scope="module")
def bulky(_leak_check: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_bulky_model(tmp_path_factory.mktemp("bulky") / "bulky")


@pytest.fixture(scope="module")
def bulky_text(bulky: Path, _session_cache: None) -> str:
    return reference_text(bulky)


@pytest.fixture
def cluster(namespaces: Namespaces, tmp_path: Path, bulky: Path) -> Iterator[NetworkCluster]:
    made = NetworkCluster(tmp_path, namespaces, "--min-workers", 2, "--context", CONTEXT, model=str(bulky))
    with contextlib.closing(made):
        yield made


def test_a_shipment_goes_on_where_it_was_cut(
    cluster: NetworkCluster, namespaces: Namespaces, bulky_text: str
) -> None:
    cluster.start_master()
    cluster.join("worker2")
    before = namespaces.received_bytes("worker1")
    with namespaces.slow("worker1", _MEGABITS):
        cluster.join("worker1")
        status = cluster.wait_until(lambda status: fetched(status) > 0.4)
        with namespaces.dropping("worker1"):
            _check_loss(cluster)
        again = cluster.wait_until(lambda status: fetched(status) > 0)
        assert fetched(again) >= fetched(status)
        cluster.wait_ready(3)
    share = worker_of(status)["fetch_total_bytes"]
    # Each time that a worker is lost, also because others compute, up to a layer was not durable and is sent again.
    lost = len(re.findall(words_of_loss(r"\d", ".*", "its preparation"), cluster.master.log))
    assert namespaces.received_bytes("worker1") - before < (_OVERHEAD + lost * _LAYER) * share
    assert cluster.ask(PROMPT, TOKENS) == bulky_text


def _check_loss(cluster: NetworkCluster) -> None:
    lost = cluster.wait_until(lambda status: worker_of(status)["state"] == "lost")
    assert re.fullmatch(_SILENT, worker_of(lost)["why"])
    words = words_of_loss(r"\d", _SILENT, "its preparation")
    wait_for(lambda: re.search(words, cluster.master.log), START_S)
    with pytest.raises(openai.InternalServerError, match="1 more worker needed"):
        cluster.ask(PROMPT, TOKENS)


@dataclass(frozen=True)
class Shipment:
    """A shipment to `worker`, which is on a slow link."""

    cluster: NetworkCluster
    worker: Worker

    def wait_for(self, part: float) -> None:
        self.cluster.wait_until(lambda status: fetched(status) > part)

    def check_resumed(self, held: int) -> None:
        status = self.cluster.wait_until(lambda status: fetched(status) > 0)
        assert worker_of(status)["fetched_bytes"] >= held


@pytest.fixture(scope="module")
def serving(
    namespaces: Namespaces, tmp_path_factory: pytest.TempPathFactory, bulky: Path
) -> Iterator[NetworkCluster]:
    cluster = NetworkCluster(
        tmp_path_factory.mktemp("serving"), namespaces, "--min-workers", 1, "--context", CONTEXT,
        model=str(bulky),
    )  # fmt: skip
    with contextlib.closing(cluster):
        cluster.start_master()
        cluster.join("worker2", bytes_per_s=SLOW)
        yield cluster


@pytest.fixture
def shipment(
    serving: NetworkCluster, namespaces: Namespaces, bulky_text: str, request: pytest.FixtureRequest
) -> Iterator[Shipment]:
    serving.wait_ready(2)
    with namespaces.slow("worker1", request.param):
        worker = serving.join("worker1", bytes_per_s=SLOW)
        shipment = Shipment(serving, worker)
        shipment.wait_for(_PROGRESS)
        yield shipment
    serving.wait_ready(3)
    assert serving.ask(PROMPT, TOKENS) == bulky_text
    forget(serving, worker)


def forget(cluster: NetworkCluster, worker: Worker) -> None:
    _administer(cluster, "revoke", worker)
    worker.process.wait()
    shutil.rmtree(worker.cache)
    shutil.rmtree(worker.state)
    del cluster.workers[worker.name]


def _administer(cluster: NetworkCluster, verb: str, worker: Worker) -> None:
    ended = run_command("nodes", verb, worker.name, TPIEDGE_STATE=str(cluster.state))
    assert ended.status == 0, ended.err


def kill(cluster: NetworkCluster) -> AbstractContextManager[None]:
    worker = cluster.workers["worker1"]
    worker.agent.kill()
    worker.process.wait()
    return _finally(lambda: cluster.join("worker1", token=False))


def freeze(cluster: NetworkCluster) -> AbstractContextManager[None]:
    agent = cluster.workers["worker1"].agent
    family = [*agent.children(recursive=True), agent]
    for process in family:
        process.suspend()
    return _finally(lambda: [process.resume() for process in family])


@contextlib.contextmanager
def _finally(heal: Callable[[], object]) -> Iterator[None]:
    try:
        yield
    finally:
        heal()


FAULTS: dict[str, Callable[[NetworkCluster], AbstractContextManager[None]]] = {
    "killed": kill,
    "frozen": freeze,
    "reset": lambda cluster: cluster.namespaces.resetting("worker1"),
    "deaf": lambda cluster: cluster.namespaces.dropping("worker1", sent=False),
}


@pytest.mark.parametrize("shipment", [_SLOW_MEGABITS], indirect=True)
@pytest.mark.fault("P1", "the others serve; the shipment goes on where it stopped")
def test_shipment_resumes_after_its_worker_is_lost(shipment: Shipment, bulky_text: str) -> None:
    cluster = shipment.cluster
    for number, name in enumerate(FAULTS, 1):
        shipment.wait_for(number * _PROGRESS)
        logged = len(cluster.master.log)
        with FAULTS[name](cluster):
            check_loss(cluster, _LOST[name])
            held = held_bytes(shipment.worker)
            assert cluster.ask(PROMPT, TOKENS) == bulky_text
        words = words_of_loss(r"\d", _LOST[name], "its preparation")
        assert re.search(words, cluster.master.log[logged:])
        assert held, name
        cluster.end_waits(cluster.wait_until(lambda status: worker_of(status)["state"] != "lost"))
        shipment.check_resumed(held)


def check_loss(cluster: NetworkCluster, words: str) -> None:
    lost = cluster.wait_until(lambda status: worker_of(status)["state"] == "lost")
    assert re.fullmatch(words, worker_of(lost)["why"])
    # The others serve on. (Beside other work another worker may have been silent for too long as well, and is back.)
    cluster.wait_until(lambda status: status["ready"])


@pytest.mark.parametrize("shipment", [_MEGABITS], indirect=True)
@pytest.mark.fault("P4", "rank 0, then the master: the shipment and the worker outlive both")
def test_shipment_survives_killed_rank_0_and_master(shipment: Shipment, namespaces: Namespaces) -> None:
    cluster, worker = shipment.cluster, shipment.worker
    agent = worker.agent
    with cluster.streaming(PROMPT, CONTEXT - TOKENS) as stream:
        check_rank_zero_lost(shipment)
        shipment.wait_for(2 * _PROGRESS)
        cluster.master.popen.kill()
        stream.join()
    assert stream.error is not None, "the answer went on after rank 0, and ended with the master"
    assert cluster.master.wait() == -signal.SIGKILL
    wait_for(lambda: "the master is silent; waiting for it" in worker.log, START_S)
    held = held_bytes(worker)
    assert held
    # The other worker is here first: were it this one, its share would be another at first.
    with namespaces.dropping("worker1"):
        cluster.start_master()
        cluster.wait_ready(2)
    shipment.check_resumed(held)
    assert agent.is_running()
    assert "the master is back" in worker.log


def check_rank_zero_lost(shipment: Shipment) -> None:
    before, held = len(shipment.cluster.master.log), held_bytes(shipment.worker)
    shipment.cluster.rank_zero().kill()
    said = words_of_loss(0, ".*killed by SIGKILL")
    wait_for(lambda: re.search(said, shipment.cluster.master.log[before:]), START_S)
    # (Where its link is slow, the others start anew without it first.)
    shipment.check_resumed(held)
