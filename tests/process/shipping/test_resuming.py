"""A transfer that ends at any point is resumed, and the bytes are those of the master."""

import random
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from tests.process.shipping.shares import check_equal, ended, held_bytes, share_bytes
from tpiedge.pack.shard_copy import ShardCopy
from tpiedge.pack.share import NodeShare
from tpiedge.pack.store import ShardStore
from tpiedge.shipping.fetcher import fetch

DEATHS = 40
POWER_CUTS = 6
#: Where it is no promise: generous.
LIMIT_S = 110.0


@pytest.mark.fault("F7", "resumed; what was verified is not sent again")
def test_shipment_killed_at_forty_offsets_is_resumed(master, start_worker, pack, whole, tmp_path):
    total = share_bytes(pack, whole)
    store = ShardStore(tmp_path / "store")
    mortal = start_worker(0, whole, store.folder, script="mortal.py", sync_bytes=1 << 18)
    held = 0
    for offset in sorted(random.Random(11).sample(range(1, total), DEATHS)):
        assert life(mortal, offset) == -signal.SIGKILL
        with store.open(master.identity) as copy:
            assert copy.verify(whole) == {}
            assert held <= (held := held_bytes(copy, whole)) <= offset  # nothing that was verified is lost
    assert held > total // 2
    before = master.shipped()
    assert ended(start_worker(0, whole, store.folder)) == {"ended": "done", "first": [held, total]}
    assert master.shipped() - before == total - held
    check_whole(store, master, whole)


def life(mortal: subprocess.Popen[str], end: int) -> int:
    mortal.stdin.write(f"{end}\n")
    mortal.stdin.flush()
    return int(mortal.stdout.readline())


@pytest.mark.fault("F7", "no byte counts as there that is not")
def test_shipment_resumes_after_a_power_cut_at_any_moment(master, pack, whole, tmp_path):
    total = share_bytes(pack, whole)
    cuts = sorted(random.Random(12).sample(range(1, total), POWER_CUTS))
    store = ShardStore(tmp_path / "store")
    disks: list[Path] = []

    def progress(done: int, _total: int) -> None:
        if len(disks) < POWER_CUTS and done >= cuts[len(disks)]:
            disks.append(disk_after_power_cut(store.folder, tmp_path / f"disk-{len(disks)}"))

    with master.spoke() as spoke:
        fetch(spoke, store, master.identity, whole.ranges, progress, sync_bytes=1 << 18).close()
        assert len(disks) == POWER_CUTS
        held = 0
        for disk in disks:
            rest = ShardStore(disk)
            with rest.open(master.identity) as copy:
                assert copy.verify(whole) == {}
                assert held <= (held := held_bytes(copy, whole)) < total
                fill_with_junk(copy)
            before = master.shipped()
            fetch(spoke, rest, master.identity, whole.ranges).close()
            assert master.shipped() - before == total - held
            check_whole(rest, master, whole)
    assert held > total // 2


def disk_after_power_cut(store: Path, copy: Path) -> Path:
    """Copies the store as a power cut would leave it. The marks are copied first: they describe only durable bytes."""
    marks = {path.name: path.read_bytes() for path in (store / "blobs").glob("*.present")}
    subprocess.run(["cp", "-a", "--sparse=always", store, copy], check=True)
    for path in (copy / "blobs").glob("*.present"):
        path.write_bytes(marks.get(path.name, b""))
    return copy


def fill_with_junk(copy: ShardCopy) -> None:
    """Overwrites unmarked parts: bytes that are not durable yet may have any value."""
    for layer in range(copy.pack.num_layers):
        ranges = list(copy.pack.layout(layer).ranges())
        marked = set(copy.presence(layer).present(ranges))
        with copy.pack.blob_path(layer).open("r+b") as file:
            for item in ranges:
                if item not in marked:
                    file.seek(item.offset)
                    file.write(random.Random(item.index).randbytes(item.length))


def check_whole(store: ShardStore, master, whole: NodeShare) -> None:
    with store.open(master.identity) as copy:
        assert copy.missing(whole) == copy.verify(whole) == {}
        check_equal(master.pack, copy.pack, whole)


def test_shipment_resumes_after_a_master_restart(master, pack, whole, tmp_path):
    half = threading.Event()
    resumed = threading.Event()

    def progress(done: int, total: int) -> None:
        if done > total // 2 and not half.is_set():
            half.set()
            resumed.wait(LIMIT_S)

    def restart() -> None:
        half.wait(LIMIT_S)
        master.close()
        master.start()
        resumed.set()

    thread = threading.Thread(target=restart)
    thread.start()
    try:
        with (
            master.spoke() as spoke,
            fetch(spoke, ShardStore(tmp_path), master.identity, whole.ranges, progress) as copy,
        ):
            assert copy.missing(whole) == copy.verify(whole) == {}
    finally:
        thread.join()
    assert master.shipped() < share_bytes(pack, whole)


@pytest.mark.fault("F8", "taken over")
def test_a_store_is_taken_over_from_a_killed_process(master, start_worker, whole, tmp_path):
    killed = start_worker(0, whole, tmp_path / "store", kill_at=8 << 20)
    waiting = start_worker(1, whole, tmp_path / "store")
    killed.wait(LIMIT_S)
    assert ended(waiting)["ended"] == "done"
    with ShardStore(tmp_path / "store").open(master.identity) as copy:
        assert copy.missing(whole) == copy.verify(whole) == {}
