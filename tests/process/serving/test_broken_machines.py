"""A worker's disk breaks under it, or its memory runs out: what is lost is said with the cause, the next plan does
without the machine, and nothing is tried for ever."""

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.command import wait_for
from tests.process.serving.conftest import NO_LIMIT
from tests.process.serving.disks import FailingDisk, failing_disk, read_only
from tests.process.serving.machines import Worker
from tests.process.serving.serving import Serving, node_of, rank_of
from tpiedge.host.memory_group import MemoryGroup

#: So slow, as they say, that more machines are better.
SLOW = 1e4
READ_ONLY = r"cannot write to the shard store .*: Read-only file system"
LONG_PROMPT = list(range(10, 960))
#: Beside its agent; importing torch takes more.
HALF_A_NODE = 60 << 20
NOTICED_S = 90.0
MARGIN = 1 << 20


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


@pytest.fixture
def disk(cluster: Serving, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FailingDisk]:
    """Of the victim."""
    with failing_disk(cluster.folder / f"{request.node.name}-cache", tmp_path / "image") as made:
        yield made


@pytest.mark.fault("F6", "what is in memory serves on; then the worker is left out with the reason")
def test_a_disk_cannot_be_read(cluster: Serving, disk: FailingDisk, victim: Worker, exact):
    """What is in memory serves on."""
    cluster.wait_ready(3)
    # Whatever the next plan is, nothing is written.
    cluster.wait_until(lambda status: node_of(status, victim.name)["stocked"])
    blobs = [path for path in (victim.cache / "shards" / "blobs").iterdir() if len(path.name) == 64]
    largest = max(blobs, key=lambda path: path.stat().st_blocks)
    with largest.open("rb") as file:
        start = os.lseek(file.fileno(), 0, os.SEEK_DATA)
    with disk.failing_from(largest, start):
        exact(cluster)
        victim.node.kill()
        check_left_out(cluster, victim, "cannot read .*: Input/output error", exact)


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


def try_limit(group: MemoryGroup, nbytes: int) -> bool:
    """False where more is taken and cannot be given back."""
    with contextlib.suppress(OSError):
        group.limit(nbytes)
        return True
    return False


def check_too_small(cluster: Serving, group: MemoryGroup, victim: Worker, exact) -> None:
    """It has told how little it has, and is idle until it has more."""
    agent = victim.agent
    cluster.wait_until(lambda status: "it offers " in node_of(status, victim.name)["why"])
    cluster.wait_ready(2)
    exact(cluster)
    group.limit(NO_LIMIT)
    cluster.wait_ready(3)
    exact(cluster)
    assert victim.agent == agent


@pytest.mark.fault("P6", "one that a worker has no memory for: answered without it")
def test_memory_runs_out_in_prefill(cluster: Serving, group: MemoryGroup, victim: Worker, exact):
    """Or just before: what it has would do for short prompts only."""
    group.members_file.write_text(str(victim.agent.pid))
    cluster.wait_ready(3)
    # What the kernel cannot take back, and a little more; what stands by may take more between the two.
    wait_for(lambda: try_limit(group, group.held_bytes + MARGIN), NOTICED_S)
    with cluster.client() as client:
        stream = client.completions.create(
            model="demo", prompt=LONG_PROMPT, max_tokens=20, temperature=0, stream=True
        )
        assert list(stream)[-1].choices[0].finish_reason
    check_too_small(cluster, group, victim, exact)
    assert group.use().oom_kills <= 2, "it is not tried again and again"


@pytest.mark.fault("P2", "where there is too little for a node, none is started again and again")
def test_memory_is_too_little_for_a_node(cluster: Serving, group: MemoryGroup, victim: Worker, exact):
    group.members_file.write_text(str(victim.agent.pid))
    cluster.wait_ready(3)
    victim.node.kill()
    low = victim.agent.memory_info().rss + HALF_A_NODE
    wait_for(lambda: try_limit(group, low), NOTICED_S)
    check_too_small(cluster, group, victim, exact)
    assert group.use().oom_kills <= 2, "it is not tried again and again"
