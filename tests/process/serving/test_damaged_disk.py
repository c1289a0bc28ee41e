"""A worker's disk lies, shrinks, fills up or hangs: what is damaged is fetched again, who cannot take part is left out
with the reason, and the cluster answers exactly."""

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.process.serving.conftest import SLOW
from tests.process.serving.disks import failing_disk, read_only
from tests.process.serving.machines import Worker
from tests.process.serving.serving import Serving, node_of, rank_of


@pytest.fixture(scope="module")
def cluster(clusters: Callable[..., Serving]) -> Serving:
    cluster = clusters("--min-workers", 1)
    cluster.start_master()
    cluster.start_worker("ann", bytes_per_s=SLOW)
    cluster.wait_ready(2)
    return cluster


def blobs(worker: Worker) -> list[Path]:
    found = [path for path in (worker.cache / "shards" / "blobs").iterdir() if len(path.name) == 64]
    return sorted(found, key=lambda path: path.stat().st_blocks, reverse=True)


def flip_a_bit(worker: Worker) -> None:
    with blobs(worker)[0].open("r+b") as file:
        start = os.lseek(file.fileno(), 0, os.SEEK_DATA)
        at = start + 4096 * 3
        (byte,) = os.pread(file.fileno(), 1, at)
        os.pwrite(file.fileno(), bytes([byte ^ 8]), at)
        os.fsync(file.fileno())


def delete(worker: Worker) -> None:
    for path in blobs(worker)[:2]:
        path.unlink()


HARMS = {"a bit flipped": flip_a_bit, "deleted": delete}


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.fault("F5", "found at the next load; only the damage is fetched again")
def test_cluster_recovers_from_damaged_shards_at_the_next_load(
    cluster: Serving, exact: Callable[[Serving], None], harm: str
) -> None:
    """The weights in memory serve on; the next load finds the damage, and only damaged parts are fetched."""
    cluster.wait_ready(2)
    worker = cluster.workers["ann"]
    HARMS[harm](worker)
    exact(cluster)
    worker.node.kill()
    cluster.wait_until(lambda status: not status["ready"])
    cluster.wait_ready(2)
    exact(cluster)


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """Less than the share of one of three."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() != 0:
        pytest.skip("root: needed to mount a small file system")
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=100k", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip(f"mounts: cannot mount a small file system here: {made.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.fault("F6", "told before the shipment; the others serve")
def test_worker_with_too_small_disk_gets_no_share(
    cluster: Serving, tiny_disk: Path, exact: Callable[[Serving], None]
) -> None:
    cluster.wait_ready(2)
    worker = cluster.start_worker("tiny", "--cache", tiny_disk, bytes_per_s=SLOW)
    cluster.wait_until(lambda status: any(node["host"] == "tiny" for node in status["nodes"]))
    cluster.wait_ready(2)
    exact(cluster)
    tiny = cluster.node("tiny")
    assert tiny["rank"] is None
    assert tiny["state"] in ("spare", "left out")
    assert "disk" in tiny["why"] or "plan" in tiny["why"]
    worker.process.end()
    del cluster.workers["tiny"]


@pytest.mark.fault("F6", "what is in memory serves on; then the worker is left out with the reason")
def test_worker_with_read_only_disk_is_left_out(cluster: Serving, exact: Callable[[Serving], None]) -> None:
    words = r"cannot write to the shard store .*: Read-only file system"

    def is_left_out(status: dict) -> bool:
        node = node_of(status, "bob")
        if node["state"] == "left out" and not re.search(words, node["why"]):
            cluster.end_waits(status)  # it waits because its node died
        return node["state"] == "left out" and bool(re.search(words, node["why"]))

    cluster.wait_ready(2)
    worker = cluster.start_worker("bob", bytes_per_s=SLOW)
    cluster.wait_ready(3)
    with read_only(worker.cache):
        exact(cluster)
        worker.node.kill()
        cluster.wait_until(is_left_out)
        cluster.wait_ready(2)
        exact(cluster)
        worker.process.end()
        cluster.start_worker("bob", token=False)
        assert worker.process.wait() == 2
    assert re.search(f"tpiedge: {words}", worker.log)
    assert "Traceback" not in worker.log
    del cluster.workers["bob"]


@pytest.mark.fault("F6", "a disk that hangs: the others begin without the worker, which comes when it moves")
def test_worker_with_hanging_disk_joins_when_it_recovers(clusters, tmp_path: Path, exact):
    """Writes block without an error."""
    cluster = clusters("--min-workers", 2)
    cluster.start_master()
    with failing_disk(cluster.folder / "eve-cache", tmp_path / "image") as disk:
        eve = cluster.start_worker("eve", bytes_per_s=SLOW)
        cluster.wait_until(lambda status: "1 more worker needed" in status["reason"])
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
