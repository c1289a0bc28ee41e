"""Packs in q8 and q4: whatever the pieces they were made of, the bytes are those of their units, one by one."""

import json
import math
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpiedge.errors import UserError
from tpiedge.kernels import quantise
from tpiedge.kernels.panels import PANEL
from tpiedge.kernels.quantise import dequantise_unit, quantise_unit
from tpiedge.pack import panel_reader, panel_writer, parent
from tpiedge.pack.child import PackRequest, RandomTensors
from tpiedge.pack.dtypes import bf16_from_f32, f32_from_bf16
from tpiedge.pack.export import export_safetensors
from tpiedge.pack.layout import ALIGN, BlobLayout, PanelLayout, Precision, RowLayout
from tpiedge.pack.manifest import MANIFEST_NAME, load_manifest
from tpiedge.pack.panel_writer import pieces
from tpiedge.pack.quality import QUALITY_NAME, load_quality
from tpiedge.pack.random_weights import RandomSource
from tpiedge.pack.reader import Pack, verify_pack
from tpiedge.pack.source import CheckpointSource
from tpiedge.pack.specs import BlobSpec, MatrixSpec, ModelSpec
from tpiedge.pack.storage import Storage
from tpiedge.pack.writer import write_pack

F32, BF16, Q8, Q4 = Precision
MakePack = Callable[..., Pack]
MakeSpec = Callable[..., ModelSpec]
MakeCheckpoint = Callable[..., tuple[CheckpointSource, dict[str, np.ndarray]]]


def as_f32(array: np.ndarray) -> np.ndarray:
    return f32_from_bf16(array) if array.dtype == np.uint16 else array.astype(np.float32)


def check_matrix(pack: Pack, key: int | str, spec: MatrixSpec, values_OI: np.ndarray) -> None:
    """Every unit holds its numbers, quantised alone, then zeros; or rows in bf16."""
    blob = np.fromfile(pack.blob_path(key), np.uint8)  # type: ignore[arg-type]
    matrix = pack.layout(key).matrix(spec.name)  # type: ignore[arg-type]
    if isinstance(matrix, RowLayout):
        for row in range(matrix.rows):
            stored = blob[matrix.row_offset(row) :][: 2 * matrix.cols].view(np.uint16)
            np.testing.assert_array_equal(stored, bf16_from_f32(as_f32(values_OI[row])))
        return
    assert isinstance(matrix, PanelLayout)
    for unit in range(matrix.units):
        first = unit * matrix.rows_per_unit
        rows = slice(first, first + matrix.unit_rows(unit))
        part = values_OI[:, rows] if spec.transposed else values_OI[rows]
        expected, _ = quantise_unit(np.ascontiguousarray(part), matrix.shape(unit))
        offset, length = matrix.span(unit, unit + 1)
        np.testing.assert_array_equal(blob[offset : offset + len(expected)], expected)
        assert not blob[offset + len(expected) : offset + length].any()


# Bytes of a piece and of a job: everything at once; units one by one; single panels; whatever is left over.
SIZES = [(16 << 20, 4 << 20), (60_000, 9_000), (100_000, 20_000), (1, 1), (9_000, 9_000)]


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("precision", [Q8, Q4])
@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_every_unit_is_quantised_alone(
    tmp_path: Path,
    make_spec: MakeSpec,
    make_checkpoint: MakeCheckpoint,
    dtype: str,
    precision: Precision,
    tied: bool,
    sizes: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(panel_writer, "PIECE_BYTES", sizes[0])
    monkeypatch.setattr(panel_writer, "_JOB_BYTES", sizes[1])
    monkeypatch.setattr(panel_writer, "_MAX_WAITING_BYTES", 3 * sizes[0])
    spec = make_spec(layers=1, tied=tied)
    source, arrays = make_checkpoint(spec, dtype)
    report = write_pack(spec, source, precision, tmp_path / "pack")
    source.close()
    pack = Pack.open(tmp_path / "pack")
    verify_pack(pack)
    assert report.nbytes == sum(path.stat().st_size for path in (pack.path / "blobs").iterdir())
    for key in pack.keys:
        for m in pack.blob_spec(key).matrices:
            check_matrix(pack, key, m, arrays[m.source])
        blob = np.fromfile(pack.blob_path(key), np.uint8)
        for v, place in zip(pack.blob_spec(key).vectors, pack.layout(key).vectors, strict=True):
            stored = blob[place.offset : place.offset + place.nbytes].view(np.float32)
            np.testing.assert_array_equal(stored, as_f32(arrays[v.source]))


def test_precisions_of_a_pack(make_pack: MakePack, tmp_path: Path) -> None:
    pack = make_pack(Q4)
    assert [pack.layout(key).precision for key in pack.keys] == [BF16, Q4, Q4, Q8]
    assert (pack.precision, pack.storage) == (Q4, Storage(Q4, BF16, Q8))
    manifest = json.loads((pack.path / MANIFEST_NAME).read_text())["manifest"]
    assert (manifest["precision"], manifest["precisions"]) == ("q4", {"embedding": "bf16", "head": "q8"})
    assert "search" not in manifest


def test_a_tied_matrix_is_stored_once_as_the_head(make_pack: MakePack) -> None:
    pack = make_pack(Q4, tied=True)
    assert [pack.layout(key).precision for key in pack.keys] == [Q8, Q4, Q4, Q8]
    key, name = pack.head_matrix
    assert pack.layout(key).matrix(name).precision is Q8


@pytest.mark.parametrize("precision", [F32, BF16])
def test_a_pack_that_is_not_quantised_has_the_manifest_of_before(
    make_pack: MakePack, precision: Precision
) -> None:
    pack = make_pack(precision)
    manifest = json.loads((pack.path / MANIFEST_NAME).read_text())["manifest"]
    assert list(manifest) == ["format", "version", "precision", "source", "distinct_layers", "spec", "blobs"]
    assert not (pack.path / QUALITY_NAME).exists()
    assert load_quality(pack.path) is None


def test_blobs_of_every_precision_have_names_of_their_own(tmp_path: Path, spec: ModelSpec) -> None:
    source = RandomSource.for_spec(7, spec, "BF16")
    ids = set()
    for precision in Precision:
        write_pack(spec, source, precision, tmp_path / precision.value)
        ids.add(Pack.open(tmp_path / precision.value).blob_id(0))
    assert len(ids) == 4


def test_another_storage_is_another_pack(tmp_path: Path, spec: ModelSpec) -> None:
    source, out = RandomSource.for_spec(7, spec, "BF16"), tmp_path / "pack"
    write_pack(spec, source, Q4, out)
    assert write_pack(spec, source, Storage.of(Q4, tied=False), out).reused
    for other in (Storage(Q4, BF16, Q4), Storage(Q4, Q8, Q8), Storage(Q4, BF16, Q8, search=False), Q8):
        with pytest.raises(UserError, match="holds a pack of something else"):
            write_pack(spec, source, other, out)


def test_any_storage_can_be_written(tmp_path: Path, spec: ModelSpec) -> None:
    storage = Storage(Q8, Q4, F32, search=False)
    write_pack(spec, RandomSource.for_spec(7, spec, "F32"), storage, tmp_path / "pack")
    pack = Pack.open(tmp_path / "pack")
    verify_pack(pack)
    assert pack.storage == storage
    assert [pack.layout(key).precision for key in pack.keys] == [Q4, Q8, Q8, F32]


# --- what it did to the numbers


def test_the_quality_is_that_of_the_stored_numbers(make_pack: MakePack) -> None:
    pack = make_pack(Q4)
    quality = load_quality(pack.path)
    assert quality is not None
    source = RandomSource.for_spec(7, pack.spec, "F32")
    by_name = {tensor.tensor: tensor for tensor in quality.tensors}
    assert by_name.keys() == {m.source for layer in pack.spec.layers for m in layer.matrices} | {
        "lm_head.weight"
    }
    for m in pack.spec.layers[1].matrices:
        values = source.read_rows(m.source, 0, m.source_shape[0]).astype(np.float64)
        found = by_name[m.source]
        matrix = pack.layout(1).matrix(m.name)
        assert isinstance(matrix, PanelLayout)
        with pack.blob_path(1).open("rb") as blob:
            stored = np.concatenate(list(panel_reader.dequantised_rows(matrix, blob.fileno(), Path())))
        ratio = 10 * math.log10((values**2).sum() / ((stored - values) ** 2).sum())
        assert found.error.sqnr_db == pytest.approx(ratio, abs=1e-3)
        assert (found.matrix, found.precision) == (m.name, Q4)
        assert 20.5 < ratio < 23.5
    assert 43 < by_name["lm_head.weight"].error.sqnr_db < 48
    record = quality.to_json()
    assert record["sqnr_db"] == pytest.approx(quality.total.sqnr_db, abs=1e-3)


def test_a_tensor_of_zeros_is_exact(tmp_path: Path, make_spec: MakeSpec) -> None:
    spec = make_spec(layers=1)
    write_pack(spec, RandomSource.for_spec(7, spec, "F32", std=0.0), Q4, tmp_path / "pack")
    quality = load_quality(tmp_path / "pack")
    assert quality is not None
    assert quality.to_json()["sqnr_db"] is None
    assert quality.tensors[0].error.sqnr_db == math.inf


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"tensors": [{}]}', '{"tensors": [{"precision": "q2"}]}', "{" * 99999]
)
def test_a_quality_that_cannot_be_read_is_none(make_pack: MakePack, text: str) -> None:
    pack = make_pack(Q4)
    (pack.path / QUALITY_NAME).write_text(text)
    assert load_quality(pack.path) is None or text == ""
    assert Pack.open(pack.path).storage == pack.storage


def test_repeated_layers_are_reported_once(make_pack: MakePack) -> None:
    pack = make_pack(Q4, 1, layers=3)
    quality = load_quality(pack.path)
    assert quality is not None
    assert len(quality.tensors) == 7 + 1
    assert len({pack.blob_id(layer) for layer in range(3)}) == 1


# --- numbers that cannot be quantised


class WrongSource(RandomSource):
    """One number of one tensor is another."""

    def __init__(self, spec: ModelSpec, name: str, row: int, col: int, number: float) -> None:
        super().__init__(7, RandomSource.for_spec(7, spec, "F32")._shapes, "F32")
        self.name, self.row, self.col, self.number = name, row, col, number

    def read_rows(self, name: str, first: int, count: int) -> np.ndarray:
        values = super().read_rows(name, first, count)
        if name == self.name and first <= self.row < first + count:
            values[self.row - first, self.col] = self.number
        return values

    def read_block(self, name: str, first_row: int, rows: int, first_col: int, cols: int) -> np.ndarray:
        values = super().read_block(name, first_row, rows, first_col, cols)
        row, col = self.row - first_row, self.col - first_col
        if name == self.name and 0 <= row < rows and 0 <= col < cols:
            values[row, col] = self.number
        return values


@pytest.mark.parametrize("sizes", [(16 << 20, 4 << 20), (1, 1)])
@pytest.mark.parametrize(
    ("name", "row", "col"),
    [
        ("model.layers.0.gate_proj.weight", 150, 3),
        ("model.layers.1.down_proj.weight", 55, 199),
        ("lm_head.weight", 1002, 59),
    ],
)
@pytest.mark.parametrize(
    ("number", "reason"),
    [(math.nan, "has a weight that is not a finite number"), (1e30, r"has a weight of 1e\+30, too large")],
)
def test_a_number_that_cannot_be_quantised_is_named(
    tmp_path: Path,
    spec: ModelSpec,
    name: str,
    row: int,
    col: int,
    number: float,
    reason: str,
    sizes: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(panel_writer, "PIECE_BYTES", sizes[0])
    monkeypatch.setattr(panel_writer, "_JOB_BYTES", sizes[1])
    with pytest.raises(UserError, match=f"^tensor {re.escape(name)}, row {row} {reason}") as caught:
        write_pack(spec, WrongSource(spec, name, row, col, number), Q4, tmp_path / "pack")
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []
    assert [t.name for t in threading.enumerate() if t.name.startswith("tpiedge")] == []


# --- pieces


matrices = st.builds(
    MatrixSpec,
    name=st.just("q"),
    source=st.just("s"),
    rows=st.integers(1, 700),
    cols=st.integers(1, 700),
    rows_per_unit=st.integers(1, 200),
    transposed=st.booleans(),
)


@settings(deadline=None)
@given(matrices, st.sampled_from([2, 4]))
def test_pieces_cover_a_matrix_in_order(spec: MatrixSpec, itemsize: int) -> None:
    matrix = BlobLayout.of(BlobSpec((spec,)), Q4).matrix("q")
    assert isinstance(matrix, PanelLayout)
    limit, panel_writer.PIECE_BYTES = panel_writer.PIECE_BYTES, 40_000
    try:
        found = list(pieces(matrix, itemsize))
    finally:
        panel_writer.PIECE_BYTES = limit
    unit = output = 0
    for piece in found:
        assert (piece.unit, piece.first_output) == (unit, output)
        assert output % PANEL == 0
        whole = matrix.shape(unit)
        if piece.units > 1 or (output, piece.outputs) == (0, whole.outputs):
            unit += piece.units
        else:
            output += piece.outputs
            if output == whole.outputs:
                unit, output = unit + 1, 0
        taken = piece.units * piece.outputs * whole.inputs * itemsize
        assert taken <= 40_000 or (piece.units == 1 and piece.outputs <= PANEL)
    assert (unit, output) == (matrix.units, 0)


# --- back to a checkpoint


@pytest.mark.parametrize("part_bytes", [4 << 20, 1])
@pytest.mark.parametrize("precision", [Q8, Q4])
@pytest.mark.parametrize("tied", [False, True])
def test_a_checkpoint_of_what_is_stored(
    make_pack: MakePack,
    tmp_path: Path,
    precision: Precision,
    tied: bool,
    part_bytes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from safetensors import safe_open

    monkeypatch.setattr(panel_reader, "_PART_BYTES", part_bytes)
    pack = make_pack(precision, tied=tied)
    (file,) = export_safetensors(pack, tmp_path / "out")
    with safe_open(file, "pt") as opened:
        names = set(opened.keys())
        dtypes = {name: str(opened.get_tensor(name).dtype) for name in names}
        found = {name: opened.get_tensor(name).float().numpy() for name in names}
    embedding = dtypes.pop("model.embed_tokens.weight")
    assert embedding == ("torch.float32" if tied else "torch.bfloat16")
    assert set(dtypes.values()) == {"torch.float32"}
    for key in pack.keys:
        for m in pack.blob_spec(key).matrices:
            assert found[m.source].shape == m.source_shape
            matrix = pack.layout(key).matrix(m.name)
            if not isinstance(matrix, PanelLayout):
                check_matrix(pack, key, m, found[m.source])
                continue
            blob = np.fromfile(pack.blob_path(key), np.uint8)
            for unit in range(matrix.units):
                offset, length = matrix.span(unit, unit + 1)
                expected = dequantise_unit(blob[offset : offset + length], matrix.shape(unit))
                first = unit * matrix.rows_per_unit
                rows = slice(first, first + matrix.unit_rows(unit))
                part = found[m.source][:, rows] if m.transposed else found[m.source][rows]
                np.testing.assert_array_equal(part, expected)


# --- manifests of strangers


def rewrite(pack: Path, change: Callable[[dict[str, object]], object]) -> None:
    """Change the manifest and give it the right checksum."""
    import hashlib

    path = pack / MANIFEST_NAME
    body = json.loads(path.read_text())["manifest"]
    change(body)
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    path.write_text(json.dumps({"checksum": hashlib.sha256(text.encode()).hexdigest(), "manifest": body}))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"precision": "q3"}, "unknown precision 'q3'"),
        ({"precision": ["q4"]}, "unknown precision"),
        ({"precision": None}, "unknown precision"),
        ({"precisions": {"head": "q3"}}, "unknown precision 'q3'"),
        ({"precisions": {"head": {}}}, "unknown precision"),
        ({"precisions": {"layers": "q4"}}, "not those of the embedding and the head"),
        ({"precisions": "q4"}, "not those of the embedding and the head"),
        ({"precisions": ["head"]}, "not those of the embedding and the head"),
        ({"search": 1}, "search is not true or false"),
        ({"precision": "bf16"}, "layers in bf16 go with"),
        (
            {"precision": "f32", "precisions": {"embedding": "f32", "head": "f32"}, "search": False},
            "layers in f32",
        ),
        # Sizes tell these from the truth; equal sizes, the table of hashes.
        ({"precision": "q8"}, r"bytes instead of"),
        ({"precisions": {"embedding": "q8", "head": "q8"}}, r"bytes instead of"),
    ],
)
def test_a_manifest_is_not_believed(make_pack: MakePack, change: dict[str, object], complaint: str) -> None:
    pack = make_pack(Q4)
    rewrite(pack.path, lambda body: body.update(change))
    with pytest.raises(UserError, match=complaint):
        Pack.open(pack.path)


def test_two_precisions_of_one_matrix_are_refused(make_pack: MakePack) -> None:
    pack = make_pack(Q4, tied=True)
    rewrite(pack.path, lambda body: body.update(precisions={"embedding": "q8", "head": "q4"}))
    with pytest.raises(UserError, match="two precisions for an embedding that is the head"):
        Pack.open(pack.path)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=4)
    | st.sampled_from([p.value for p in Precision]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["embedding", "head", "x"]), inner, max_size=3)
    ),
    max_leaves=5,
)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(["precision", "precisions", "search"]), json_values))
def test_any_fields_are_a_storage_or_an_error(fields: dict[str, object]) -> None:
    try:
        found = Storage.from_json(fields)  # type: ignore[arg-type]
    except UserError:
        return
    assert Storage.from_json(found.to_json()) == found


def test_a_wrong_identity_is_noticed(make_pack: MakePack) -> None:
    """Layers of q8 and an embedding of q8 under the names of others' bytes."""
    pack = make_pack(Q8)
    manifest = load_manifest(pack.path)
    rewrite(pack.path, lambda body: body["blobs"].update(layers=[manifest.head] * 2))  # type: ignore[attr-defined]
    with pytest.raises(UserError, match="one blob two layouts"):
        Pack.open(pack.path)


def test_damage_is_found_in_its_unit(make_pack: MakePack) -> None:
    pack = make_pack(Q4)
    offset, length = pack.layout(1).matrix("down").span(1, 2)
    assert length % ALIGN == 0
    with pack.blob_path(1).open("r+b") as blob:
        blob.seek(offset + length - 1)
        blob.write(b"\x01")
    with pytest.raises(Exception, match="unit 1 of down"):
        verify_pack(pack)


# --- the process


def test_an_interrupted_child_leaves_nothing(tmp_path: Path) -> None:
    layers = tuple(BlobSpec((MatrixSpec("q", f"q{layer}", 32768, 4096, 128),)) for layer in range(8))
    spec = ModelSpec(BlobSpec((MatrixSpec("embedding", "e", 128, 64, 128),)), layers, BlobSpec(), {})
    request = PackRequest(spec, RandomTensors(1), Q4, tmp_path / "pack")
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "tpiedge.pack.child"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=parent._environment(),
    )
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(json.dumps(request.to_json()).encode() + b"\n")
    child.stdin.flush()
    assert json.loads(child.stdout.readline())["event"] == "progress"
    child.send_signal(signal.SIGTERM)
    out, _ = child.communicate(timeout=60)
    assert json.loads(out.splitlines()[-1])["kind"] == "Cancelled"
    assert list(tmp_path.iterdir()) == []


_PEAK = """
import re, sys
from pathlib import Path
from tpiedge.pack.child import main

status = main()
print(int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024)
sys.exit(status)
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("native", ["1", "0"])
@pytest.mark.parametrize("transposed", [False, True])
def test_the_child_keeps_below_256_mb(tmp_path: Path, transposed: bool, native: str) -> None:
    """As a whole process, with shapes of which a unit or a row is much larger than any model's."""
    rows, cols, per_unit = (256, 65536, 128) if transposed else (256, 262144, 128)
    layer = BlobSpec((MatrixSpec("q", "q", rows, cols, per_unit, transposed),))
    embedding = BlobSpec((MatrixSpec("embedding", "e", 128, 64, 128),))
    spec = ModelSpec(embedding, (layer,), BlobSpec(), {})
    request = PackRequest(spec, RandomTensors(1), Q4, tmp_path / "pack")
    environment = parent._environment() | ({"TPIEDGE_NATIVE": "0"} if native == "0" else {})
    child = subprocess.Popen(
        [sys.executable, "-c", _PEAK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    )
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(json.dumps(request.to_json()).encode() + b"\n")
    child.stdin.flush()  # and left open: its end would end the child
    lines = child.stdout.read().splitlines()
    child.communicate()
    assert json.loads(lines[-2])["event"] == "done"
    assert float(lines[-1]) < 256
    verify_pack(Pack.open(tmp_path / "pack"), fast=True)


def test_numpy_alone_writes_the_same_pack(
    tmp_path: Path, spec: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = RandomSource.for_spec(7, spec, "BF16")
    write_pack(spec, source, Q4, tmp_path / "one")
    monkeypatch.setattr(quantise, "_native_quantise", lambda: None)
    write_pack(spec, source, Q4, tmp_path / "two")
    one, two = ((tmp_path / name / MANIFEST_NAME).read_bytes() for name in ("one", "two"))
    assert one == two
