import os
import random
import shutil
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.pack.stored import ALL, SHAPE, adopt, content, flip, table_of, write
from tpiedge.errors import DiskFull, ProtocolError, UserError
from tpiedge.lab.random_weights import RandomSource
from tpiedge.pack.manifest import MANIFEST_NAME, manifest_bytes, pack_id
from tpiedge.pack.reader import Pack, verify_pack
from tpiedge.pack.shard_copy import ShardCopy
from tpiedge.pack.share import NodeShare, Share
from tpiedge.pack.specs import Precision
from tpiedge.pack.store import ShardStore, write_limit
from tpiedge.pack.writer import write_pack

SHARE = SHAPE.share(Share(2, 4), Share(0, 1))
OTHER = SHAPE.share(Share(0, 3), Share(1, 2))


@pytest.fixture
def pack(make_pack) -> Pack:
    return make_pack()


def fill(copy: ShardCopy, pack: Pack, share: NodeShare) -> None:
    for layer, ranges in copy.missing(share).items():
        for item in ranges:
            assert write(copy, layer, item, content(pack, layer, item))


@pytest.mark.parametrize("precision", [Precision.F32, Precision.Q4])
def test_filled_share_opens_as_a_sparse_pack(make_pack, tmp_path, precision):
    pack = make_pack(precision)
    with adopt(ShardStore(tmp_path / "store"), pack) as copy:
        wanted = copy.missing(SHARE)
        assert wanted == {i: list(pack.share_ranges(i, SHARE)) for i in (0, 1)}
        fill(copy, pack, SHARE)
        assert copy.missing(SHARE) == {}
        assert copy.verify(SHARE) == copy.verify(SHARE, fast=True) == {}
        assert len(copy.missing(OTHER)) == 2
        opened = Pack.open(copy.path)
    for layer in (0, 1):
        mine = {item.index for item in pack.share_ranges(layer, SHARE)}
        for item in pack.layout(layer).ranges():
            expected = content(pack, layer, item) if item.index in mine else bytes(item.length)
            assert content(opened, layer, item) == expected
    assert (
        os.stat(opened.blob_path("embedding")).st_blocks == os.stat(opened.blob_path("head")).st_blocks == 0
    )


def test_bytes_with_wrong_hash_are_not_marked_present(pack, tmp_path):
    with adopt(ShardStore(tmp_path / "store"), pack) as copy:
        item = copy.missing(SHARE)[0][1]
        wrong = bytearray(content(pack, 0, item))
        wrong[5] ^= 1
        assert not write(copy, 0, item, memoryview(wrong))
        assert item in copy.missing(SHARE)[0]
        assert write(copy, 0, item, content(pack, 0, item))
        assert item not in copy.missing(SHARE)[0]


def test_forged_manifests_and_tables_are_refused(pack, tmp_path):
    store = ShardStore(tmp_path / "store")
    manifest = manifest_bytes(pack.path)
    with pytest.raises(ProtocolError, match="not the one of the pack"):
        store.adopt_manifest(manifest + b" ", pack_id(manifest))
    with pytest.raises(UserError, match="not JSON"):
        store.adopt_manifest(b"{", pack_id(b"{"))
    with pytest.raises(ProtocolError, match="not the id"):
        store.open("../../etc")
    assert store.pack_ids == ()
    with adopt(store, pack, share=None) as copy:
        assert copy.missing_tables(SHARE) == [0, 1]
        table = bytearray(table_of(pack, 0))
        table[0] ^= 1
        for forged in (bytes(table), table_of(pack, 1), b""):
            with pytest.raises(ProtocolError, match="not the one of its blob"):
                copy.adopt_table(0, forged)
        assert copy.missing_tables(SHARE) == [0, 1]


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), crashes=st.sets(st.integers(0, 40), max_size=4))
def test_crash_leaves_only_valid_ranges_marked_present(pack, tmp_path, seed, crashes):
    """Ranges come in random order and batches; the folder is copied between steps as a crash would leave it."""
    random_of = random.Random(seed)
    folder = tmp_path / f"store-{seed}-{len(crashes)}"
    shutil.rmtree(folder, ignore_errors=True)
    snapshots: list[Path] = []
    steps = 0

    def step() -> None:
        nonlocal steps
        if steps in crashes:
            snapshots.append(tmp_path / f"{folder.name}-at-{steps}")
            shutil.rmtree(snapshots[-1], ignore_errors=True)
            shutil.copytree(folder, snapshots[-1], symlinks=True)
        steps += 1

    with adopt(ShardStore(folder), pack) as copy:
        todo = [(layer, item) for layer, ranges in copy.missing(SHARE).items() for item in ranges]
        random_of.shuffle(todo)
        for layer, item in todo:
            if random_of.random() < 0.2:
                copy.mark_missing({layer: [item]})
            data = content(pack, layer, item)
            cut = random_of.randrange(item.length)
            with copy.writer(layer, [item]) as writer:
                writer.write(data[:cut])
                step()
                writer.write(data[cut:])
                step()
                writer.commit(writer.pop_verified())
                step()
        assert copy.missing(SHARE) == {}
    for snapshot in snapshots:
        with ShardStore(snapshot).open(copy.id) as resumed:
            assert resumed.verify(SHARE) == {}
            fill(resumed, pack, SHARE)
            assert resumed.missing(SHARE) == resumed.verify(SHARE) == {}
        shutil.rmtree(snapshot)


def test_a_flipped_bit_is_found_forgotten_and_refilled(pack, tmp_path):
    with adopt(ShardStore(tmp_path / "store"), pack) as copy:
        fill(copy, pack, SHARE)
        item = copy.pack.layout(1).matrix("gate").ranges(0, 1).__next__()
        flip(copy.pack.blob_path(1), item.offset + 7)
        bad = {1: [item]}
        assert copy.verify(SHARE) == copy.verify(SHARE, fast=True) == bad
        copy.mark_missing(bad)
        assert copy.missing(SHARE) == bad
        fill(copy, pack, SHARE)
        assert copy.verify(SHARE) == {}


def test_deleted_or_truncated_shard_files_count_as_missing(pack, tmp_path):
    store = ShardStore(tmp_path / "store")
    with adopt(store, pack) as copy:
        fill(copy, pack, SHARE)
        os.truncate(copy.pack.blob_path(0), 4096)
        copy.pack.blob_path(1).unlink()
        assert len(copy.verify(SHARE)) == 2  # and never zeros for weights
    with store.open(copy.id) as copy:
        assert [*copy.missing(SHARE)] == [0, 1]
        fill(copy, pack, SHARE)
        copy.presence(0).path.write_bytes(b"\xff")
        (copy.pack.blob_path(1).parent / f"{copy.pack.blob_id(1)}.hashes").write_bytes(b"damaged")
        assert [*copy.missing(SHARE)] == [0, 1]
        assert copy.missing_tables(SHARE) == [1]


def test_a_local_pack_is_linked_and_never_changed(pack, tmp_path):
    store = ShardStore(tmp_path / "store")
    original = pack.blob_path(0).read_bytes()
    linked = pack.blob_path(1).rename(tmp_path / "data.v1")
    pack.blob_path(1).symlink_to(linked)
    (tmp_path / "data.v1.hashes").write_bytes(table_of(pack, 1))
    with adopt(store, pack, share=None) as copy:
        assert copy.import_from(pack) == 2
        assert copy.import_from(pack) == 0
        assert copy.missing(ALL) == copy.verify(ALL) == {}
        assert store.usage().held_bytes < 100_000
        assert copy.pack.blob_path(0).samefile(pack.blob_path(0))
        item = copy.pack.layout(0).matrix("q").ranges(0, 1).__next__()
        copy.mark_missing({0: [item]})
        assert write(copy, 0, item, content(pack, 0, item))
        assert not copy.pack.blob_path(0).samefile(pack.blob_path(0))
        assert copy.missing(ALL) == copy.verify(ALL) == {}
    store.remove(copy.id)
    assert pack.blob_path(0).read_bytes() == original
    verify_pack(pack)


def test_shared_blobs_are_deleted_with_their_last_pack(make_pack, tmp_path):
    first = make_pack(distinct=1, layers=2)
    second_folder = tmp_path / "second"
    shutil.copytree(first.path, second_folder)
    text = (second_folder / MANIFEST_NAME).read_bytes()
    (second_folder / MANIFEST_NAME).write_bytes(text + b"\n")  # another id, the same blobs
    second = Pack.open(second_folder)
    store = ShardStore(tmp_path / "store")
    with adopt(store, first) as copy:
        fill(copy, first, SHARE)
    with adopt(store, second) as copy:
        assert copy.missing(SHARE) == {}
    assert len(store.usage().packs) == 2
    kept = store.remove(pack_id(manifest_bytes(first.path))[:10])
    assert kept not in store.pack_ids
    with store.open(pack_id(manifest_bytes(second.path))) as copy:
        assert copy.missing(SHARE) == copy.verify(SHARE) == {}
        with pytest.raises(UserError, match="in use"):
            store.remove(copy.id)
    store.remove(copy.id)
    assert list((tmp_path / "store" / "blobs").iterdir()) == []
    with pytest.raises(UserError, match="0 packs"):
        store.remove("ab")


def test_least_recently_used_pack_is_evicted(make_spec, tmp_path):
    packs = []
    for seed in range(3):
        source = RandomSource.for_spec(seed, make_spec(), "F32")
        report = write_pack(make_spec(), source, Precision.F32, tmp_path / f"pack-{seed}")
        packs.append(Pack.open(report.path))
    store = ShardStore(tmp_path / "store")
    for age, pack in enumerate(packs):
        with adopt(store, pack) as copy:
            fill(copy, pack, SHARE)
        os.utime(copy.path / "in-use", (time.time() - 1000 + age,) * 2)
    ids = [pack_id(manifest_bytes(pack.path)) for pack in packs]
    used = store.usage()
    assert {pack.id for pack in used.packs} == set(ids)
    assert used.held_bytes == ShardStore(tmp_path / "store").usage().held_bytes > 0
    limited = ShardStore(tmp_path / "store", used.held_bytes + 50_000)
    limited.make_room(40_000)
    assert set(limited.pack_ids) == set(ids)
    with limited.open(ids[0]):
        limited.make_room(100_000)
        assert set(limited.pack_ids) == {ids[0], ids[2]}
        with pytest.raises(DiskFull, match=r"shards rm.*shards limit"):
            limited.make_room(used.held_bytes + 50_000)
        assert limited.pack_ids == (ids[0],)
    with pytest.raises(DiskFull, match="the disk of the shard store"):
        store.make_room(1 << 60)


def test_store_limit_is_persisted(tmp_path):
    assert ShardStore(tmp_path).limit_bytes is None
    write_limit(tmp_path, 5_000_000)
    assert ShardStore(tmp_path).limit_bytes == 5_000_000
    assert ShardStore(tmp_path, 7).limit_bytes == 7
    write_limit(tmp_path, None)
    assert ShardStore(tmp_path).limit_bytes is None


@pytest.mark.parametrize("damage", ["another pack's", "one byte", "nothing"])
def test_damaged_manifest_in_store_can_be_adopted_again(pack, make_spec, tmp_path, damage):
    source = RandomSource.for_spec(8, make_spec(), "F32")
    other = write_pack(make_spec(), source, Precision.F32, tmp_path / "other").path
    store = ShardStore(tmp_path / "store")
    with adopt(store, pack) as copy:
        fill(copy, pack, SHARE)
        path = copy.path / MANIFEST_NAME
        good = path.read_bytes()
        path.write_bytes(
            {"another pack's": manifest_bytes(other), "one byte": good[:-1] + b" ", "nothing": b""}[damage]
        )
        assert not store.has(copy.id)
        with pytest.raises(UserError, match="is in use: end the worker"):
            store.adopt_manifest(good, copy.id)
    with pytest.raises(UserError, match=f"has no whole pack {copy.id[:12]}"):
        store.open(copy.id)
    with adopt(store, pack) as healed:
        assert store.has(healed.id)
        fill(healed, pack, SHARE)
        assert healed.missing(SHARE) == healed.verify(SHARE) == {}


def test_pack_of_another_version_is_refused_kept_and_evicted(pack, tmp_path):
    """The store of a newer or an older tpiedge has the same blobs."""
    store = ShardStore(tmp_path / "store")
    with adopt(store, pack) as copy:
        fill(copy, pack, SHARE)
    text = manifest_bytes(pack.path).replace(b'"version": 1', b'"version": 9')
    other = pack_id(text)
    with pytest.raises(
        UserError, match="not a pack of version 1 to 3: pack again with this tpiedge, or install"
    ):
        store.adopt_manifest(text, other)
    assert store.pack_ids == (copy.id,)
    shutil.copytree(store.folder / "packs" / copy.id, store.folder / "packs" / other, symlinks=True)
    (store.folder / "packs" / other / MANIFEST_NAME).write_bytes(text)
    with pytest.raises(UserError, match="not a pack of version 1 to 3"):
        store.open(other)
    found = {one.id: one for one in store.usage().packs}
    assert (found[other].precision, found[other].held_bytes) == ("?", found[copy.id].held_bytes)
    store.remove(copy.id)
    with adopt(store, pack) as again:
        assert again.missing(SHARE) == {}, "its blobs were those of the other, too"
        with pytest.raises(DiskFull):
            store.make_room(1 << 60)
        assert store.pack_ids == (copy.id,)
        assert again.missing(SHARE) == {}
