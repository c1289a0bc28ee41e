"""A worker's disk breaks under it: what is lost is said with the cause, and the next plan does without the machine."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.serving.disks import failing_disk, read_only
from tests.process.serving.machines import Worker
from tests.process.serving.serving import Serving, node_of, rank_of

#: So slow, as they say, that more machines are better.
SLOW = 1e4
READ_ONLY = r"cannot write to the shard store .*: Read-only file system"


@pytest.fixture(scope="module")
def cluster(clusters) -> Serving:
    """The master and one honest worker."""
    cluster = clusters("--min-workers", 1)
    cluster.start_master()
    cluster.start_worker("ann", bytes_per_s=SLOW)
    return cluster


@pytest.fixture
def victim(cluster: Serving, request: pytest.FixtureRequest) -> Iterator[Worker]:
    """Takes part, on a machine of its own."""
    cluster.wait_ready(2)
    worker = cluster.start_worker(request.node.name, bytes_per_s=SLOW)
    yield worker
    cluster.workers.pop(worker.name).process.end()


def check_left_out(cluster: Serving, worker: Worker, words: str, exact) -> None:
    """It stays a worker, and the others serve."""

    def is_left_out(status: dict) -> bool:
        node = node_of(status, worker.name)
        if node["state"] == "left out" and not re.search(words, node["why"]):
            cluster.end_waits(status)  # it waits because its node died
        return node["state"] == "left out" and bool(re.search(words, node["why"]))

    cluster.wait_until(is_left_out)
    cluster.wait_ready(2)
    exact(cluster)
    assert worker.agent.is_running()


@pytest.mark.fault("F6", "what is in memory serves on; then the worker is left out with the reason")
def test_a_disk_becomes_read_only(cluster: Serving, victim: Worker, exact):
    """What is in memory serves on."""
    cluster.wait_ready(3)
    with read_only(victim.cache):
        exact(cluster)
        victim.node.kill()
        check_left_out(cluster, victim, READ_ONLY, exact)
        victim.process.end()
        cluster.start_worker(victim.name, token=False)
        assert victim.process.wait() == 2
        assert re.search(f"tpiedge: {READ_ONLY}", victim.log)
        assert "Traceback" not in victim.log


@pytest.mark.fault("F6", "a disk that hangs: the others begin without the worker, which comes when it moves")
def test_a_disk_hangs(clusters, tmp_path: Path, exact):
    """Nothing can be written to it, and nobody is told so."""
    cluster = clusters("--min-workers", 2)
    cluster.start_master()
    with failing_disk(cluster.folder / "eve-cache", tmp_path / "image") as disk:
        eve = cluster.start_worker("eve", bytes_per_s=SLOW)
        cluster.wait_until(lambda status: "1 of 2 workers here" in status["reason"])
        with disk.hanging():
            cluster.start_worker("ann", bytes_per_s=SLOW)
            cluster.wait_until(lambda status: "preparing 3 nodes" in status["reason"])
            cluster.start_worker("bob", bytes_per_s=SLOW)
            status = cluster.wait_ready(3)
            assert rank_of(status, "eve") is None
            exact(cluster)
        cluster.wait_ready(4)
        exact(cluster)
        eve.process.end()
