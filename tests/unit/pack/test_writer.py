import errno
import os
import shutil
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tpiedge.errors import DiskFull, UserError
from tpiedge.lab.random_weights import RandomSource
from tpiedge.pack import writer
from tpiedge.pack.dtypes import STORED, convert
from tpiedge.pack.hashes import RECORD_BYTES
from tpiedge.pack.layout import RowLayout
from tpiedge.pack.reader import Pack, verify_pack
from tpiedge.pack.specs import ModelSpec, Precision
from tpiedge.pack.writer import BlobSink, write_pack

F32, BF16 = Precision.F32, Precision.BF16
MakeSpec = Callable[..., ModelSpec]
ReadMatrix = Callable[[Pack, int | str, str], np.ndarray]


def random_source(spec: ModelSpec, precision: Precision = F32) -> RandomSource:
    return RandomSource.for_spec(7, spec, STORED[precision])


@pytest.mark.parametrize("tile_bytes", [1 << 20, 3000])
@pytest.mark.parametrize("precision", [F32, BF16])
@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_written_matrices_equal_their_source(
    tmp_path, make_spec, make_checkpoint, read_matrix, dtype, precision, tile_bytes, monkeypatch
):
    monkeypatch.setattr(writer, "TILE_BYTES", tile_bytes)
    monkeypatch.setattr(writer, "STRIP_BYTES", tile_bytes)
    spec = make_spec(layers=1)
    source, arrays = make_checkpoint(spec, dtype)
    write_pack(spec, source, precision, tmp_path / "pack")
    source.close()
    pack = Pack.open(tmp_path / "pack")
    for key in pack.keys:
        for m in pack.layout(key).matrices:
            expected = arrays[m.source].T if m.transposed else arrays[m.source]
            stored = convert(np.ascontiguousarray(expected), dtype, precision)  # type: ignore[arg-type]
            bits = stored.view(f"<u{precision.bits // 8}")
            np.testing.assert_array_equal(read_matrix(pack, key, m.name), bits)
    verify_pack(pack)


def test_padding_is_zero(make_pack: Callable[..., Pack]) -> None:
    pack = make_pack(F32)
    blob = np.fromfile(pack.blob_path(0), np.uint8)
    for matrix in pack.layout(0).matrices:
        assert isinstance(matrix, RowLayout)
        for row in range(matrix.rows):
            offset = matrix.row_place(row)[0]
            blob[offset : offset + matrix.cols * 4] = 0
    for vector in pack.layout(0).vectors:
        blob[vector.offset : vector.offset + vector.nbytes] = 0
    assert not blob.any()


def test_repeated_layers_are_stored_once(tmp_path, make_spec, read_matrix):
    spec = make_spec(layers=5)
    write_pack(spec, random_source(spec), BF16, tmp_path / "pack", distinct_layers=2)
    pack = Pack.open(tmp_path / "pack")
    assert [pack.blob_id(layer) for layer in range(5)] == [pack.blob_id(layer % 2) for layer in range(5)]
    assert pack.unique_keys == ("embedding", 0, 1, "head")
    assert len(list((tmp_path / "pack" / "blobs").iterdir())) == 2 * 4
    assert not np.array_equal(read_matrix(pack, 0, "q"), read_matrix(pack, 1, "q"))


def test_identical_pack_is_reused_and_other_refused(tmp_path: Path, spec: ModelSpec) -> None:
    out = tmp_path / "pack"
    first = write_pack(spec, random_source(spec), F32, out)
    before = (out / "manifest.json").stat().st_mtime_ns
    second = write_pack(spec, random_source(spec), F32, out)
    assert (second.reused, second.nbytes) == (True, first.nbytes)
    assert (out / "manifest.json").stat().st_mtime_ns == before
    for other, precision in ((random_source(spec, BF16), BF16), (RandomSource.for_spec(8, spec, "F32"), F32)):
        with pytest.raises(UserError, match="holds a pack of something else"):
            write_pack(spec, other, precision, out)


def test_wrong_shapes_are_named_before_anything_is_written(tmp_path: Path, spec: ModelSpec) -> None:
    source = RandomSource(1, {"model.embed_tokens.weight": (1003, 61)}, "F32")
    with pytest.raises(UserError, match=r"embed_tokens.weight has the shape \(1003, 61\).*\(1003, 60\)"):
        write_pack(spec, source, F32, tmp_path / "pack")
    assert list(tmp_path.iterdir()) == []


def test_partial_folders_of_dead_processes_are_removed(tmp_path: Path, spec: ModelSpec) -> None:
    stale = tmp_path / "pack.partial-0badcafe"
    stale.mkdir()
    (stale / "blob").write_bytes(b"half")
    other = tmp_path / "pack2.partial-0badcafe"
    other.mkdir()
    mine = tmp_path / "pack.partial-results"
    mine.mkdir()
    write_pack(spec, random_source(spec), F32, tmp_path / "pack")
    assert {entry.name for entry in tmp_path.iterdir()} == {"pack", other.name, mine.name}


def test_second_packer_waits_and_reuses_the_pack(tmp_path: Path, spec: ModelSpec) -> None:
    out = tmp_path / "pack"
    in_source, go_on = threading.Event(), threading.Event()

    class SlowSource(RandomSource):
        def read(self, *args: object, **named: object) -> np.ndarray:
            in_source.set()
            assert go_on.wait(30)
            return super().read(*args, **named)

    slow = SlowSource.for_spec(7, spec, "F32")
    first = threading.Thread(target=write_pack, args=(spec, slow, F32, out))
    first.start()
    assert in_source.wait(30)
    with pytest.raises(UserError, match="another process is writing"):
        write_pack(spec, random_source(spec), F32, out, lock_timeout_s=0.0)
    reports = []
    second = threading.Thread(target=lambda: reports.append(write_pack(spec, random_source(spec), F32, out)))
    second.start()
    go_on.set()
    first.join(30)
    second.join(30)
    assert [report.reused for report in reports] == [True]
    assert [entry.name for entry in tmp_path.iterdir()] == ["pack"]


def test_full_disk_is_reported_before_writing(tmp_path, spec, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(DiskFull, match=r"is full: 2\.2 MB are needed in all, 1\.0 kB are free"):
        write_pack(spec, random_source(spec), F32, tmp_path / "pack")
    assert list(tmp_path.iterdir()) == []


def test_sink_works_without_o_direct(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, refusals = os.write, []

    def refuse_first(fd: int, data: memoryview) -> int:
        if not refusals:
            refusals.append(fd)
            raise OSError(errno.EINVAL, "Invalid argument")
        return write(fd, data[:5000])

    monkeypatch.setattr(os, "write", refuse_first)
    content = os.urandom(3 * 4096)
    with BlobSink(tmp_path / "blob", [3 * 4096]) as sink:
        sink.write(memoryview(content))
        sink.finish()
    assert (tmp_path / "blob").read_bytes() == content


@pytest.mark.parametrize("given", [0, 1, 4096, 3 * 4096, 5 * 4096])
def test_sink_refuses_wrong_number_of_bytes(tmp_path: Path, given: int) -> None:
    def fill() -> None:
        with BlobSink(tmp_path / "blob", [4096, 3 * 4096]) as sink:
            sink.write(memoryview(bytes(given)))
            sink.finish()

    with pytest.raises(ValueError, match="fewer bytes than"):
        fill()


def test_sink_keeps_only_hash_records_in_memory(tmp_path: Path) -> None:
    data = memoryview(bytes(1000 * 4096))
    with BlobSink(tmp_path / "blob", [4096] * 5000) as sink:
        tracemalloc.start()
        for _ in range(5):
            sink.write(data)
        table = sink.finish()
        kept = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
    assert len(table) == 5000 * RECORD_BYTES
    assert kept < 1 << 20
