"""The way to a machine changes: it has another address, a router forgets it, or large packets vanish on the way."""

import re
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.process.command import run_command, wait_for
from tests.process.conftest import Exact
from tests.process.network.cluster import NetworkCluster
from tests.process.serving.serving import START_S, words_of_loss
from tpiedge.errors import ResourceError
from tpiedge.worker.wording import SMALL_MTU

_OTHER_ADDRESS = "10.213.7.77"
#: Routers at home forget what was idle for minutes.
_IDLE_S = 3
#: Shorter than the packets of a prompt's hidden states, longer than a heartbeat.
_LONGEST = 900


@pytest.mark.fault("P12", "lost, and taken back under its new address: a worker is known by its key")
def test_a_machine_whose_address_changes_is_taken_back(cluster: NetworkCluster, exact: Exact) -> None:
    worker = cluster.workers["worker1"]
    agent, name = worker.agent, cluster.node("worker1")["name"]
    epoch = cluster.status()["epoch"]
    with cluster.namespaces.readdressed("worker1", _OTHER_ADDRESS):
        epoch = check_taken_back(cluster, epoch, exact)
    check_taken_back(cluster, epoch, exact)
    assert worker.agent == agent
    assert cluster.node("worker1")["name"] == name


def check_taken_back(cluster: NetworkCluster, epoch: int, exact: Exact) -> int:
    cluster.wait_until(lambda status: status["epoch"] > epoch)
    status = cluster.wait_ready(3)
    exact(cluster)
    return int(status["epoch"])


@pytest.mark.fault(
    "P12", "a router forgets the connections, and later idle ones: seen, mended, and none is idle for long"
)
def test_cluster_recovers_when_a_router_forgets_connections(cluster: NetworkCluster, exact: Exact) -> None:
    epoch = cluster.status()["epoch"]
    with cluster.namespaces.forgetting("worker1", _IDLE_S):
        epoch = check_taken_back(cluster, epoch, exact)
        threading.Event().wait(3.0 * _IDLE_S)  # no request arrives meanwhile
        assert cluster.wait_ready(3)["epoch"] == epoch
        exact(cluster)
    cluster.wait_ready(3)
    exact(cluster)


@pytest.mark.fault("P11", "the loss is said with the node; once they pass, the answer goes on and is exact")
@pytest.mark.fault("P11", "where they vanish between a worker and the master, the worker says so")
def test_lost_large_packets_are_reported_and_survived(cluster: NetworkCluster, exact: Exact) -> None:
    """Heartbeats still pass."""
    before, worker = len(cluster.master.log), cluster.workers["worker1"]
    unsaid = worker.log.count(SMALL_MTU)
    # Of the links that break, another worker's may be told of first.
    said = words_of_loss(r"\d", ".*its connection broke and was made anew")
    with ThreadPoolExecutor(1) as thread:
        with cluster.namespaces.swallowing("worker1", _LONGEST):
            answer = thread.submit(exact, cluster)
            wait_for(lambda: re.search(said, cluster.master.log[before:]), START_S)
            wait_for(lambda: worker.log.count(SMALL_MTU) > unsaid, START_S)
        answer.result(START_S)
    cluster.wait_ready(3)
    exact(cluster)


@pytest.mark.fault("P11", "`tpiedge doctor --connect` finds it, and says MTU")
def test_doctor_detects_lost_large_packets(cluster: NetworkCluster) -> None:
    before = cluster.master.log
    with cluster.namespaces.inside("worker1"):
        well = run_command("doctor", "--connect", cluster.address)
        with cluster.namespaces.swallowing("worker1", _LONGEST):
            ill = run_command("doctor", "--connect", cluster.address)
    assert (well.status, ill.status) == (0, ResourceError.exit_code), well.out + ill.out
    assert re.search(r"^ok +large packets +they reach the master$", well.out, re.MULTILINE)
    assert re.search(r"^fail +large packets +lost on the way .* MTU", ill.out, re.MULTILINE)
    assert cluster.master.log == before
