"""The way to a machine changes: the machine has another address, or large packets vanish on the way."""

import re
import sys
import time
from collections.abc import Callable

import openai
import pytest

from tests.process.network.cluster import NetworkCluster
from tests.process.network.observed import PROMPT, TOKENS
from tests.process.serving.serving import words_of_loss

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="system: network namespaces are Linux's")

_OTHER_ADDRESS = "10.213.7.77"
_BACK_S = 30.0
#: Shorter than the packets of a prompt's hidden states, longer than a heartbeat.
_LONGEST = 900
#: The kernel gives up after 6 s.
_ENDED_S = 20.0

Exact = Callable[[NetworkCluster], None]


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
    """In a new epoch, whose number it returns."""
    cluster.wait_until(lambda status: status["epoch"] > epoch, _BACK_S)
    status = cluster.wait_ready(3, _BACK_S)
    exact(cluster)
    return int(status["epoch"])


@pytest.mark.fault(
    "P11", "the request ends in an error that names the node; once they pass, the cluster answers exactly"
)
def test_large_packets_that_vanish_end_the_request_in_words(cluster: NetworkCluster, exact: Exact) -> None:
    """Heartbeats pass, so nobody is silent."""
    with cluster.namespaces.swallowing("worker1", _LONGEST):
        started = time.monotonic()
        with pytest.raises(openai.APIStatusError) as caught:
            cluster.ask(PROMPT, TOKENS)
        assert time.monotonic() - started < _ENDED_S
    assert caught.value.status_code == 503
    # Of the links that break, another worker's may be told of first.
    assert re.search(words_of_loss(r"\d", ".*its connection broke and was made anew"), caught.value.message)
    cluster.wait_ready(3, _BACK_S)
    exact(cluster)
