import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.unit.pack.stored import ALL, adopt, content, write
from tpiedge.errors import DiskFull, ReadFault, ResourceError, TpiedgeError, UserError
from tpiedge.lab.random_weights import RandomSource
from tpiedge.pack.hashes import HashTable
from tpiedge.pack.manifest import MANIFEST_NAME, load_manifest, manifest_bytes, pack_id
from tpiedge.pack.reader import Pack, verify_pack
from tpiedge.pack.shard_copy import ShardCopy
from tpiedge.pack.source import TensorSource
from tpiedge.pack.specs import Precision
from tpiedge.pack.store import ShardStore
from tpiedge.pack.writer import write_pack

MakePack = Callable[..., Pack]
MakeCheckpoint = Callable[..., tuple[TensorSource, dict[str, np.ndarray]]]

#: A regular file whose first byte cannot be read: nothing is mapped there.
BROKEN = Path("/proc/self/mem")
FAULTS = [
    (errno.ENOSPC, DiskFull, "is full"),
    (errno.EDQUOT, DiskFull, "is full"),
    (errno.EIO, ResourceError, "failed while it was written"),
    (errno.EROFS, UserError, "Read-only file system"),
]


def fail(monkeypatch: pytest.MonkeyPatch, name: str, code: int, after: int = 0) -> None:
    """`os.NAME` raises, from the call after so many on."""
    original, calls = getattr(os, name), iter(range(10**9))

    def wrapped(*arguments: object) -> object:
        if next(calls) >= after:
            raise OSError(code, os.strerror(code))
        return original(*arguments)

    monkeypatch.setattr(os, name, wrapped)


@pytest.mark.parametrize("part", ["manifest", "table", "blob"])
def test_read_error_names_the_pack_file(make_pack: MakePack, part: str) -> None:
    pack = make_pack()
    blob = pack.blob_path(0)
    path = {"manifest": pack.path / MANIFEST_NAME, "table": blob.with_suffix(".hashes"), "blob": blob}[part]
    path.unlink()
    path.symlink_to(BROKEN)
    read = {
        "manifest": lambda: load_manifest(pack.path),
        "table": lambda: HashTable.load(path, pack.layout(0), pack.blob_id(0)),
        "blob": lambda: verify_pack(pack),
    }[part]
    with pytest.raises(TpiedgeError, match=f"{path}: Input/output error") as caught:
        read()
    assert isinstance(caught.value, UserError if part == "manifest" else ReadFault)


def test_short_reads_give_the_same_bytes(spec, make_pack, make_checkpoint, monkeypatch):
    pack = make_pack()
    source, arrays = make_checkpoint(spec)
    preadv = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, into, at: preadv(fd, [into[0][:1009]], at))
    verify_pack(pack)
    name = "model.layers.0.q_proj.weight"
    np.testing.assert_array_equal(source.read(name), arrays[name])
    np.testing.assert_array_equal(source.read(name, cols=range(7, 27)), arrays[name][:, 7:27])
    source.close()


@pytest.mark.parametrize("after", [0, 1, 7, 20])
def test_a_checkpoint_whose_disk_fails_leaves_no_pack(tmp_path, spec, make_checkpoint, monkeypatch, after):
    source, _ = make_checkpoint(spec)
    fail(monkeypatch, "preadv", errno.EIO, after)
    with pytest.raises(ReadFault, match=r"at offset \d+ of .*weights: Input/output error"):
        write_pack(spec, source, Precision.F32, tmp_path / "out" / "pack")
    source.close()
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("act", ["truncated", "touched", "replaced", "deleted"])
def test_checkpoint_changed_while_packing_leaves_no_pack(tmp_path, spec, make_checkpoint, act):
    source, _ = make_checkpoint(spec)
    weights, other = tmp_path / "weights", tmp_path / "other"
    other.write_bytes(b"x" * weights.stat().st_size)
    change = {
        "truncated": lambda: os.truncate(weights, 5000),
        "touched": lambda: os.utime(weights, ns=(1, 1)),
        "replaced": lambda: other.replace(weights) if other.exists() else None,
        "deleted": lambda: weights.unlink(missing_ok=True),
    }[act]

    words = {"truncated": "the file ends before", "deleted": "cannot open .*weights"}
    with pytest.raises(TpiedgeError, match=words.get(act, "was changed while it was packed")):
        write_pack(spec, source, Precision.F32, tmp_path / "out" / "pack", progress=lambda *_: change())
    source.close()
    assert list((tmp_path / "out").iterdir()) == []


def test_truncated_checkpoint_error_names_first_missing_byte(spec, make_checkpoint, tmp_path):
    source, _ = make_checkpoint(spec)
    name = "model.embed_tokens.weight"
    source.read(name, range(1))
    os.truncate(tmp_path / "weights", 13 + 100)
    with pytest.raises(ReadFault, match="the file ends before") as caught:
        source.read(name)
    assert f"at offset 113 of {tmp_path / 'weights'}" in str(caught.value)
    source.close()


@pytest.mark.parametrize("after", [0, 2])
@pytest.mark.parametrize("call", ["write", "fsync"])
@pytest.mark.parametrize(("code", "kind", "words"), FAULTS)
def test_a_pack_that_cannot_be_written_leaves_nothing(
    tmp_path, spec, monkeypatch, code, kind, words, call, after
):
    fail(monkeypatch, call, code, after)
    source = RandomSource.for_spec(7, spec, "F32")
    with pytest.raises(kind, match=words) as caught:
        write_pack(spec, source, Precision.F32, tmp_path / "pack")
    assert type(caught.value) is kind
    assert str(tmp_path) in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def copy(make_pack: MakePack, tmp_path: Path) -> Iterator[tuple[ShardCopy, Pack]]:
    """An empty copy in a shard store, and its original."""
    pack = make_pack()
    with adopt(ShardStore(tmp_path / "store"), pack) as opened:
        yield opened, pack


@pytest.mark.parametrize("call", ["pwrite", "fsync"])
@pytest.mark.parametrize(("code", "kind", "words"), FAULTS)
def test_failed_shard_write_leaves_shard_missing(copy, monkeypatch, code, kind, words, call):
    """Above all: bytes that never became durable do not count."""
    shards, pack = copy
    before = shards.missing(ALL)
    item = before[0][0]
    data = content(pack, 0, item)
    with monkeypatch.context() as patch:
        fail(patch, call, code)
        with pytest.raises(kind, match=words) as caught:
            write(shards, 0, item, data)
    assert type(caught.value) is kind
    assert shards.missing(ALL) == before
    assert write(shards, 0, item, data)
    assert shards.missing(ALL) != before


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("root: needed to mount a file system")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_full_and_read_only_disks_are_reported(disk, spec, make_pack, monkeypatch):
    source = RandomSource.for_spec(7, spec, "F32")
    monkeypatch.setattr("tpiedge.pack.writer.check_free_space", lambda folder, needed: None)
    write_pack(spec, source, Precision.F32, disk / "pack")
    with pytest.raises(DiskFull, match="is full"):
        write_pack(spec, source, Precision.F32, disk / "other")
    assert [entry.name for entry in disk.iterdir()] == ["pack"]
    store, manifest = ShardStore(disk / "store"), manifest_bytes(make_pack().path)
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    for act in (
        lambda: ShardStore(disk / "new"),
        lambda: store.adopt_manifest(manifest, pack_id(manifest)),
        lambda: store.make_room(1),
    ):
        with pytest.raises(UserError, match=r"cannot write to the shard store .*: Read-only file system"):
            act()
    pack = Pack.open(disk / "pack")
    verify_pack(pack)
    with pytest.raises(UserError, match=f"cannot write to {disk}: Read-only file system"):
        write_pack(spec, source, Precision.F32, disk / "other")
