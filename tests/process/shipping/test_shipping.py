"""Shares of a pack travel from a master to workers over real sockets, whatever goes wrong on the way."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.process.shipping.conftest import SHAPE
from tests.process.shipping.shares import check_equal, ended, share_bytes
from tpiedge.errors import DiskFull, PeerError
from tpiedge.pack.reader import Pack
from tpiedge.pack.shard_copy import ranges_nbytes
from tpiedge.pack.share import Share
from tpiedge.pack.store import ShardStore
from tpiedge.shipping.fetcher import fetch
from tpiedge.shipping.server import ShipServer
from tpiedge.wire.codec import FLAT_BYTES
from tpiedge.wire.data import Fetch, FetchFailed, FileChunk

#: Where it is no promise: generous.
ANSWER_S = 60.0


def test_two_workers_at_once_get_their_shares_and_nothing_else(master, start_worker, pack, tmp_path):
    shares = [SHAPE.share(Share(0, 3), Share(2, 8)), SHAPE.share(Share(3, 8), Share(0, 2))]
    started = [start_worker(n, share, tmp_path / f"store-{n}") for n, share in enumerate(shares)]
    for number, process in enumerate(started):
        assert ended(process) == {"ended": "done", "first": [0, share_bytes(pack, shares[number])]}
        with ShardStore(tmp_path / f"store-{number}").open(master.identity) as copy:
            assert copy.missing(shares[number]) == copy.verify(shares[number]) == {}
            check_equal(pack, Pack.open(copy.path), shares[number])
    for number, share in enumerate(shares):
        assert master.hub.shipped[f"worker-{number}"] == share_bytes(pack, share)


def test_new_share_fetches_only_missing_parts(master, pack, tmp_path):
    store = ShardStore(tmp_path / "store")
    small, large = (SHAPE.share(Share(count), Share(4)) for count in (2, 4))
    with master.spoke() as spoke:
        fetch(spoke, store, master.identity, small.ranges).close()
        fetch(spoke, store, master.identity, large.ranges).close()
        fetch(spoke, store, master.identity, small.ranges).close()
    assert master.shipped() == share_bytes(pack, large)


class LyingServer(ShipServer):
    """Flips a bit of the `lies` first chunks of a blob."""

    lies = 1

    def _answer(self, request: Fetch) -> memoryview:
        frame = super()._answer(request)
        if request.part == "blob" and self.lies:
            self.lies -= 1
            frame[(FLAT_BYTES + len(frame)) // 2] ^= 8
        return frame


@pytest.mark.fault("F5", "found and fetched again")
def test_a_bit_flipped_on_the_way_is_fetched_again(master, pack, whole, tmp_path):
    master.close()
    master.start(LyingServer)
    with master.spoke() as spoke, fetch(spoke, ShardStore(tmp_path), master.identity, whole.ranges) as copy:
        assert copy.missing(whole) == copy.verify(whole) == {}
    assert share_bytes(pack, whole) < master.shipped() < share_bytes(pack, whole) + (1 << 20)


def test_repeatedly_damaged_shipment_is_given_up(master, whole, tmp_path):
    master.close()
    server = master.start(LyingServer)
    server.lies = 1 << 30
    store = ShardStore(tmp_path)
    with master.spoke() as spoke, pytest.raises(PeerError, match=r"of layer \d arrived damaged 3 times"):
        fetch(spoke, store, master.identity, whole.ranges)
    with store.open(master.identity) as copy:
        assert copy.verify(whole) == {}  # what is marked is good
        assert copy.missing(whole) != {}


def test_only_layers_of_served_packs_are_sent(master, pack):
    layer, size = pack.blob_id(0), pack.layout(0).nbytes
    served = master.identity
    refused = [
        (served, "blob", pack.blob_id("embedding"), 0, 4096),
        (served, "hashes", pack.blob_id("embedding"), 0, 4096),
        (served, "blob", pack.blob_id("head"), 0, 4096),
        (served, "blob", "../../../etc/passwd", 0, 1),
        (served, "blob", layer, size - 4095, 4096),
        (served, "blob", layer, size, 1),
        (served, "blob", layer, 0, 0),
        (served, "blob", layer, 0, (4 << 20) + 1),
        ("0" * 64, "manifest", "", 0, 4096),
    ]
    with master.spoke() as spoke:
        for number, (pack_id, part, blob, offset, length) in enumerate(refused):
            spoke.send(Fetch(1, number, pack_id, part, blob, offset, length))
            answer = spoke.recv(ANSWER_S)
            assert isinstance(answer.message, FetchFailed), (part, blob)
            assert answer.message.number == number
        spoke.send(Fetch(1, 99, served, "blob", layer, size - 4096, 4096))
        answer = spoke.recv(ANSWER_S)
        assert isinstance(answer.message, FileChunk)
        assert bytes(answer.tensor) == pack.blob_path(0).read_bytes()[-4096:]
    with master.spoke(1) as other, pytest.raises(PeerError, match="is not served here"):
        fetch(other, ShardStore(pack.path.parent / "none"), "0" * 64, SHAPE.whole.ranges)


def test_worker_that_does_not_read_delays_no_other(master, pack, whole, tmp_path):
    with master.spoke(1) as greedy, master.spoke(0) as spoke:
        # Far more than one may ask for; never reads.
        for number in range(100):
            greedy.send(Fetch(1, number, master.identity, "blob", pack.blob_id(number % 4), 0, 4 << 20))
        with fetch(spoke, ShardStore(tmp_path), master.identity, whole.ranges) as copy:
            assert copy.verify(whole) == {}
        got = 0
        while greedy.recv(1.0) is not None:
            got += 1
    assert 0 < got < 100, "the others were dropped"


@pytest.mark.fault("F8", "both get their shares")
def test_two_processes_share_a_store(master, start_worker, pack, whole, tmp_path):
    started = [start_worker(number, whole, tmp_path / "store") for number in range(2)]
    records = [ended(process) for process in started]
    assert [record["ended"] for record in records] == ["done", "done"]
    # The second waited, and found everything.
    assert master.shipped() == share_bytes(pack, whole)


@pytest.fixture
def small_disk(tmp_path: Path):
    """A disk of 24 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("root: needed, with Linux, to mount a small disk")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"mounts: cannot mount a small disk: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.fault("F6", "said in words; what is stored is valid")
def test_disk_full_during_shipment_leaves_a_valid_store(master, pack, whole, small_disk):
    store = ShardStore(small_disk / "store")
    other = small_disk / "other"

    def progress(done: int, _total: int) -> None:
        if done and not other.exists():
            other.write_bytes(bytes(14 << 20))

    with master.spoke() as spoke:
        with pytest.raises(DiskFull, match="free some"):
            fetch(spoke, store, master.identity, whole.ranges, progress)
        other.unlink()
        with store.open(master.identity) as copy:
            assert copy.verify(whole) == {}
            left = ranges_nbytes(copy.missing(whole))
            assert 0 < left < share_bytes(pack, whole)
        with fetch(spoke, store, master.identity, whole.ranges) as copy:
            assert copy.missing(whole) == copy.verify(whole) == {}


@pytest.mark.thin
def test_shards_command_lists_limits_and_removes_packs(tpiedge, master, whole, tmp_path):
    cache = ("--cache", tmp_path)
    store = ShardStore(tmp_path / "shards")
    with master.spoke() as spoke, fetch(spoke, store, master.identity, whole.ranges):
        assert "in use" in tpiedge("shards", "ls", *cache).out
        refused = tpiedge("shards", "rm", master.identity[:8], *cache)
        assert (refused.status, "end the worker" in refused.err) == (2, True)
    limited = tpiedge("shards", "limit", "20MB", *cache)
    assert (limited.status, limited.err) == (0, "shards may take at most 20.0 MB\n")
    usage = json.loads(tpiedge("shards", "ls", "--json", *cache).out)
    assert usage["limit_bytes"] == 20_000_000
    assert [pack["id"] for pack in usage["packs"]] == [master.identity]
    assert usage["packs"][0]["held_bytes"] == usage["packs"][0]["full_bytes"] > 16e6
    assert tpiedge("shards", "rm", master.identity[:8], *cache).out == f"removed {master.identity[:12]}\n"
    assert tpiedge("shards", "limit", "none", *cache).status == 0
    ended = tpiedge("shards", "ls", *cache)
    assert (ended.out, ended.err) == ("", "0 B used\n")
