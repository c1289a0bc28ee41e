import errno
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tpiedge.errors import DiskFull, ReadFault, ResourceError, UserError
from tpiedge.lab.random_weights import RandomSource
from tpiedge.pack.dtypes import STORED, convert
from tpiedge.pack.layout import BlobLayout, Precision, RowLayout
from tpiedge.pack.reader import Pack, verify_pack
from tpiedge.pack.sources.source import CheckpointSource
from tpiedge.pack.specs import BlobSpec, MatrixSpec, ModelSpec
from tpiedge.pack.writing import blob_writer
from tpiedge.pack.writing.blob_sink import BlobSink
from tpiedge.pack.writing.blob_writer import tiles, transpose
from tpiedge.pack.writing.target import lock_target
from tpiedge.pack.writing.writer import pack_bytes, write_pack

F32, BF16 = Precision.F32, Precision.BF16
MakeSpec = Callable[..., ModelSpec]
ReadMatrix = Callable[[Pack, int | str, str], np.ndarray]


def random_source(spec: ModelSpec, precision: Precision = F32) -> RandomSource:
    return RandomSource.for_spec(7, spec, STORED[precision])


@pytest.mark.parametrize("tile_bytes", [1 << 20, 3000])
@pytest.mark.parametrize("precision", [F32, BF16])
@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_every_number_arrives_in_its_place(
    tmp_path: Path,
    make_spec: MakeSpec,
    make_checkpoint: Callable[..., tuple[CheckpointSource, dict[str, np.ndarray]]],
    read_matrix: ReadMatrix,
    dtype: str,
    precision: Precision,
    tile_bytes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(blob_writer, "TILE_BYTES", tile_bytes)
    monkeypatch.setattr(blob_writer, "STRIP_BYTES", tile_bytes)
    spec = make_spec(layers=1)
    source, arrays = make_checkpoint(spec, dtype)
    write_pack(spec, source, precision, tmp_path / "pack")
    source.close()
    pack = Pack.open(tmp_path / "pack")
    for key in pack.keys:
        for m in pack.blob_spec(key).matrices:
            expected = arrays[m.source].T if m.transposed else arrays[m.source]
            stored = convert(np.ascontiguousarray(expected), dtype, precision)  # type: ignore[arg-type]
            bits = stored.view(f"<u{precision.bits // 8}")
            np.testing.assert_array_equal(read_matrix(pack, key, m.name), bits)
    verify_pack(pack)


def test_all_that_is_not_data_is_zero(make_pack: Callable[..., Pack]) -> None:
    pack = make_pack(F32)
    blob = np.fromfile(pack.blob_path(0), np.uint8)
    for matrix in pack.layout(0).matrices:
        assert isinstance(matrix, RowLayout)
        for row in range(matrix.rows):
            offset = matrix.row_offset(row)
            blob[offset : offset + matrix.cols * 4] = 0
    for vector in pack.layout(0).vectors:
        blob[vector.offset : vector.offset + vector.nbytes] = 0
    assert not blob.any()


@pytest.mark.parametrize("max_rows", [1, 7, 20, 45, 1000])
@pytest.mark.parametrize(("rows", "per_unit"), [(120, 20), (113, 20), (5, 20), (40, 20)])
def test_tiles_cover_a_matrix_in_order(rows: int, per_unit: int, max_rows: int) -> None:
    spec = BlobSpec((MatrixSpec("q", "s", rows, 60, per_unit),))
    matrix = BlobLayout.of(spec, F32).matrix("q")
    assert isinstance(matrix, RowLayout)
    next_row = stored = 0
    for tile in tiles(matrix, max_rows):
        assert tile.first_row == next_row
        assert 0 < tile.row_count <= max_rows
        next_row += tile.row_count
        stored += tile.units * tile.padded_rows
    assert (next_row, stored) == (rows, matrix.row_count(0, matrix.units))


def test_transpose() -> None:
    strip = np.arange(70 * 130, dtype=np.uint16).reshape(70, 130)
    turned = transpose(strip)
    assert turned.flags.c_contiguous
    np.testing.assert_array_equal(turned, strip.T)


def test_progress_ends_at_the_bytes_promised(tmp_path: Path, spec: ModelSpec) -> None:
    seen: list[tuple[int, int]] = []
    source = random_source(spec)
    report = write_pack(spec, source, F32, tmp_path / "a" / "pack", progress=lambda *at: seen.append(at))
    assert seen[-1] == (report.nbytes, report.nbytes) == (pack_bytes(spec, F32),) * 2
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert not report.reused


def test_repeated_layers_are_stored_once(
    tmp_path: Path, make_spec: MakeSpec, read_matrix: ReadMatrix
) -> None:
    spec = make_spec(layers=5)
    write_pack(spec, random_source(spec), BF16, tmp_path / "pack", distinct_layers=2)
    pack = Pack.open(tmp_path / "pack")
    assert [pack.blob_id(layer) for layer in range(5)] == [pack.blob_id(layer % 2) for layer in range(5)]
    assert pack.unique_keys == ("embedding", 0, 1, "head")
    assert len(list((tmp_path / "pack" / "blobs").iterdir())) == 2 * 4
    assert not np.array_equal(read_matrix(pack, 0, "q"), read_matrix(pack, 1, "q"))


@pytest.mark.parametrize("distinct", [0, 3, -1])
def test_distinct_layers_is_checked(tmp_path: Path, spec: ModelSpec, distinct: int) -> None:
    with pytest.raises(UserError, match="give a number from 1 to 2"):
        write_pack(spec, random_source(spec), F32, tmp_path / "pack", distinct_layers=distinct)


def test_layers_of_two_shapes_do_not_repeat(tmp_path: Path, spec: ModelSpec) -> None:
    odd = BlobSpec(spec.layers[1].matrices[:1])
    mixed = ModelSpec(spec.embedding, (spec.layers[0], odd), spec.head, {})
    with pytest.raises(UserError, match="layer 1 has another shape than layer 0"):
        write_pack(mixed, random_source(mixed), F32, tmp_path / "pack", distinct_layers=1)


def test_a_second_pack_of_the_same_is_reused(tmp_path: Path, spec: ModelSpec) -> None:
    out = tmp_path / "pack"
    first = write_pack(spec, random_source(spec), F32, out)
    before = (out / "manifest.json").stat().st_mtime_ns
    second = write_pack(spec, random_source(spec), F32, out)
    assert (second.reused, second.nbytes) == (True, first.nbytes)
    assert (out / "manifest.json").stat().st_mtime_ns == before
    with pytest.raises(UserError, match="holds a pack of something else"):
        write_pack(spec, random_source(spec, BF16), BF16, out)
    with pytest.raises(UserError, match="holds a pack of something else"):
        write_pack(spec, RandomSource.for_spec(8, spec, "F32"), F32, out)


def test_a_folder_of_other_things_is_left_alone(tmp_path: Path, spec: ModelSpec) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="is not a pack"):
        write_pack(spec, random_source(spec), F32, tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_wrong_shapes_are_named_before_anything_is_written(tmp_path: Path, spec: ModelSpec) -> None:
    source = RandomSource(1, {"model.embed_tokens.weight": (1003, 61)}, "F32")
    with pytest.raises(UserError, match=r"embed_tokens.weight has the shape \(1003, 61\).*\(1003, 60\)"):
        write_pack(spec, source, F32, tmp_path / "pack")
    assert list(tmp_path.iterdir()) == []


class FailingSource(RandomSource):
    """Fails at the last layer's last matrix."""

    def __init__(self, spec: ModelSpec, error: Exception) -> None:
        inner = RandomSource.for_spec(7, spec, "F32")
        super().__init__(7, inner._shapes, "F32")
        self.error = error

    def read_columns(self, name: str, first: int, count: int) -> np.ndarray:
        if name == "model.layers.1.down_proj.weight":
            raise self.error
        return super().read_columns(name, first, count)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ReadFault(Path("w"), 0, 1, "gone"), ReadFault),
        (OSError(errno.ENOSPC, "No space left on device"), DiskFull),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), DiskFull),
        (OSError(errno.EIO, "Input/output error"), ResourceError),
        (OSError(errno.EROFS, "Read-only file system"), UserError),
        (OSError(errno.EACCES, "Permission denied"), UserError),
        (KeyError("x"), KeyError),
    ],
)
@pytest.mark.parametrize("precision", [F32, Precision.Q4])
def test_a_failure_leaves_nothing(
    tmp_path: Path, spec: ModelSpec, precision: Precision, error: Exception, expected: type[Exception]
) -> None:
    with pytest.raises(expected):
        write_pack(spec, FailingSource(spec, error), precision, tmp_path / "pack")
    assert list(tmp_path.iterdir()) == []
    assert [t.name for t in threading.enumerate() if t.name.startswith("tpiedge")] == []


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


def test_the_second_packer_waits_and_finds_it_done(tmp_path: Path, spec: ModelSpec) -> None:
    out = tmp_path / "pack"
    in_source, go_on = threading.Event(), threading.Event()

    class SlowSource(RandomSource):
        def read_vector(self, name: str) -> np.ndarray:
            in_source.set()
            assert go_on.wait(30)
            return super().read_vector(name)

    slow = SlowSource(7, random_source(spec)._shapes, "F32")
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


def test_the_lock_survives_its_own_removal(tmp_path: Path) -> None:
    target = tmp_path / "pack"
    for _ in range(3):
        with lock_target(target, 1.0):
            assert (tmp_path / ".pack.lock").exists()
    assert list(tmp_path.iterdir()) == []


def test_too_little_space_is_said_before_writing(
    tmp_path: Path, spec: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(DiskFull, match=r"is full: 2\.2 MB are needed in all, 1\.0 kB are free"):
        write_pack(spec, random_source(spec), F32, tmp_path / "pack")
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fills_up(
    make_disk: Callable[[str], Path], spec: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_disk = make_disk("1m")
    monkeypatch.setattr("tpiedge.pack.writing.writer.check_free_space", lambda folder, needed: None)
    with pytest.raises(DiskFull, match="is full"):
        write_pack(spec, random_source(spec), F32, small_disk / "pack")
    assert list(small_disk.iterdir()) == []


def test_sink_refuses_too_many_and_too_few_bytes(tmp_path: Path) -> None:
    with BlobSink(tmp_path / "blob", [4096, 4096]) as sink:
        sink.write(memoryview(bytes(4096)))
        with pytest.raises(ValueError, match="fewer"):
            sink.finish()
    with BlobSink(tmp_path / "blob", [4096]) as sink:
        sink.write(memoryview(bytes(8192)))
        with pytest.raises(ValueError, match="more"):
            sink.finish()


def test_sink_without_o_direct(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


_MEMORY_PROBE = """
import sys, re
from pathlib import Path
from tpiedge.pack.layout import *
from tpiedge.pack.specs import *
from tpiedge.pack.sources.source import CheckpointSource, SourceTensor
from tpiedge.pack.writing.writer import write_pack

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024

class T:
    def __init__(self, rows, cols):
        self.file, self.dtype, self.offset = Path(sys.argv[1]), "F32", 0
        self.shape, self.nbytes = (rows, cols), rows * cols * 4

rows, cols = int(sys.argv[3]), int(sys.argv[4])
down = MatrixSpec("down", "down", cols, rows, 128, True)
spec = ModelSpec(BlobSpec((MatrixSpec("embedding", "e", 8, 8, 8),)), (BlobSpec((down,)),), BlobSpec(), {})
source = CheckpointSource({"e": T(8, 8), "down": T(rows, cols)})
before = peak()
write_pack(spec, source, Precision(sys.argv[5]), Path(sys.argv[2]))
source.close()
print(peak() - before)
"""


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["f32", "bf16", "q8", "q4"])
def test_a_transposed_tensor_of_600_mb_passes_through_256_mb(tmp_path: Path, precision: str) -> None:
    rows, cols = 5120, 29696
    with (tmp_path / "w").open("wb") as file:
        file.truncate(rows * cols * 4)
    arguments = [str(tmp_path / "w"), str(tmp_path / "pack"), str(rows), str(cols), precision]
    root = str(Path(blob_writer.__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", _MEMORY_PROBE, *arguments],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": root},
    )
    assert float(done.stdout) < 256
