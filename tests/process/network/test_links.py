"""Machines whose workers are linked with each other, or cannot be: every way to add up gives the same text."""

import re
from collections.abc import Callable, Iterator

import pytest

from tests.process.network.cluster import NetworkCluster
from tests.process.network.conftest import PROMPT, Exact
from tests.process.network.namespaces import Namespaces
from tests.process.serving.serving import words_of_loss

_LONG = 300
_APART = "nodes 1 and 2 cannot reach each other"
_BROKEN = re.compile(
    words_of_loss(r"\d", "it gave up, because " + words_of_loss(r"\d", "its connection broke.*", ".*"))
)
_QUARREL = re.compile(
    r"^the star for 10 minutes, because one worker's word stands against another's; .*broke"
)

Start = Callable[..., NetworkCluster]


@pytest.fixture
def start(namespaces: Namespaces, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    made: list[NetworkCluster] = []

    def begin(*options: object) -> NetworkCluster:
        folder = tmp_path_factory.mktemp("links")
        cluster = NetworkCluster(folder, namespaces, "--min-workers", 2, *options)
        made.append(cluster)
        cluster.start_master()
        for name in ("worker1", "worker2"):
            cluster.join(name)
        cluster.wait_ready(3)
        return cluster

    yield begin
    for cluster in made:
        cluster.close()


def ways(cluster: NetworkCluster) -> tuple[str, str, str]:
    status = cluster.status()
    return status["collective"], status["bulk_collective"], status["collective_why"]


@pytest.mark.fault("P9", "the answer pauses and goes on, then by the star, and is exact")
def test_a_link_between_workers_that_is_cut_leaves_the_star(start: Start, exact: Exact) -> None:
    cluster = start("--collective", "mesh")
    assert ways(cluster) == ("mesh", "mesh", "")
    exact(cluster)
    undisturbed = cluster.whole(PROMPT, _LONG)
    epoch = cluster.status()["epoch"]
    with (
        cluster.streaming(PROMPT, _LONG) as stream,
        cluster.namespaces.parted("worker1", "worker2"),
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
def test_a_link_that_breaks_while_nobody_asks_fails_no_request(start: Start, exact: Exact) -> None:
    cluster = start("--collective", "mesh")
    exact(cluster)
    epoch = cluster.status()["epoch"]
    with cluster.namespaces.parted("worker1", "worker2"):
        cluster.wait_until(lambda status: status["epoch"] > epoch and status["ready"])
        assert ways(cluster)[:2] == ("star", "star")
        exact(cluster)


@pytest.mark.fault("P9", "they serve by the star")
def test_workers_that_never_reach_each_other_serve(
    namespaces: Namespaces, start: Start, exact: Exact
) -> None:
    with namespaces.parted("worker1", "worker2"):
        cluster = start()
        assert ways(cluster) == ("star", "star", f"all goes by node 0: {_APART}")
        exact(cluster)
