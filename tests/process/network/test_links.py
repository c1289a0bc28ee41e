"""Machines whose workers are linked with each other, or cannot be: every way to add up gives the same text."""

import contextlib
import re
from collections.abc import Iterator

import pytest

from tests.process.conftest import PROMPT, Exact
from tests.process.network.cluster import NetworkCluster
from tests.process.network.namespaces import Namespaces
from tests.process.serving.serving import words_of_loss

_LONG = 100
_APART = "mesh is not possible: nodes 1 and 2 cannot reach each other"
_BROKEN = re.compile(
    words_of_loss(r"\d", "it gave up, because " + words_of_loss(r"\d", "its connection broke.*", ".*"))
)
_QUARREL = re.compile(r"^star for 10 minutes, because two workers contradict each other; .*broke")


@pytest.fixture(scope="module")
def partitioned(namespaces: Namespaces, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NetworkCluster]:
    """Starts a cluster whose workers cannot reach each other, and mends that."""
    folder = tmp_path_factory.mktemp("links")
    cluster = NetworkCluster(folder, namespaces, "--min-workers", 2, "--collective", "mesh")
    with contextlib.closing(cluster):
        with namespaces.partitioned("worker1", "worker2"):
            cluster.start_master()
            for name in ("worker1", "worker2"):
                cluster.join(name)
            cluster.wait_ready(3)
        yield cluster


def ways(cluster: NetworkCluster) -> tuple[str, str, str]:
    status = cluster.status()
    return status["collective"], status["bulk_collective"], status["collective_why"]


@pytest.mark.fault("P9", "they serve by the star")
def test_workers_without_links_to_each_other_serve_by_star(partitioned: NetworkCluster, exact: Exact) -> None:
    assert ways(partitioned) == ("star", "star", _APART)
    exact(partitioned)


@pytest.fixture
def cluster(partitioned: NetworkCluster) -> NetworkCluster:
    """Starts the master anew, for which no workers contradict each other."""
    partitioned.master.end()
    partitioned.start_master()
    partitioned.wait_ready(3)
    assert ways(partitioned) == ("mesh", "mesh", "")
    return partitioned


@pytest.mark.fault("P9", "the answer pauses and goes on, then by the star, and is exact")
def test_cut_link_between_workers_switches_to_star(cluster: NetworkCluster, exact: Exact) -> None:
    undisturbed = cluster.whole(PROMPT, _LONG)
    epoch = cluster.status()["epoch"]
    with (
        cluster.streaming(PROMPT, _LONG) as stream,
        cluster.namespaces.partitioned("worker1", "worker2"),
    ):
        cluster.wait_until(lambda _: _BROKEN.search(cluster.master.log) is not None)
        stream.join()
        assert (stream.error, stream.text) == (None, undisturbed)
        status = cluster.wait_ready(3)
        assert status["epoch"] > epoch
        *chosen, why = ways(cluster)
        assert chosen == ["star", "star"]
        assert _QUARREL.search(why), why
        assert f"all-reduces go by star: {why}" in cluster.master.log
        exact(cluster)


@pytest.mark.fault("P9", "found while nobody asks; no request fails")
def test_link_that_breaks_while_idle_fails_no_request(cluster: NetworkCluster, exact: Exact) -> None:
    exact(cluster)
    epoch = cluster.status()["epoch"]
    with cluster.namespaces.partitioned("worker1", "worker2"):
        cluster.wait_until(lambda status: status["epoch"] > epoch and status["ready"])
        assert ways(cluster)[:2] == ("star", "star")
        exact(cluster)
