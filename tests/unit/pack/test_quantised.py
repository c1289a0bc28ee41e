import json
import math
import re
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.unit.pack.conftest import build_spec
from tests.unit.pack.stored import as_f32, check_matrix
from tpiedge.errors import ProtocolError, UserError
from tpiedge.lab.random_weights import RandomSource
from tpiedge.pack import export, panel_writer
from tpiedge.pack.files import OpenFile
from tpiedge.pack.grids import check_exponents, grid_exponents
from tpiedge.pack.layout import PanelLayout, Storage
from tpiedge.pack.manifest import MANIFEST_NAME
from tpiedge.pack.panel_writer import QUALITY_NAME, load_quality
from tpiedge.pack.reader import Pack, verify_pack
from tpiedge.pack.source import TensorSource
from tpiedge.pack.specs import ModelSpec, Precision
from tpiedge.pack.writer import write_pack

F32, BF16, Q8, Q4, *_ = Precision
MakePack = Callable[..., Pack]
MakeSpec = Callable[..., ModelSpec]
MakeCheckpoint = Callable[..., tuple[TensorSource, dict[str, np.ndarray]]]


# Everything at once; some units; units one by one. A job is a quarter of a piece.
@pytest.mark.parametrize("piece_bytes", [16 << 20, 100_000, 1])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("precision", [Q8, Q4])
@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_every_unit_is_quantised_alone(
    tmp_path, make_spec, make_checkpoint, dtype, precision, tied, piece_bytes, monkeypatch
):
    monkeypatch.setattr(panel_writer, "PIECE_BYTES", piece_bytes)
    spec = make_spec(layers=1, tied=tied)
    source, arrays = make_checkpoint(spec, dtype)
    report = write_pack(spec, source, precision, tmp_path / "pack")
    source.close()
    pack = Pack.open(tmp_path / "pack")
    verify_pack(pack)
    assert report.nbytes == sum(path.stat().st_size for path in (pack.path / "blobs").iterdir())
    for key in pack.keys:
        for m in pack.layout(key).matrices:
            check_matrix(pack, key, m, arrays[m.source])
        blob = np.fromfile(pack.blob_path(key), np.uint8)
        for v in pack.layout(key).vectors:
            stored = blob[v.offset : v.offset + v.nbytes].view(np.float32)
            np.testing.assert_array_equal(stored, as_f32(arrays[v.source]))


def test_q4_pack_has_bf16_embedding_and_q8_head(make_pack: MakePack, tmp_path: Path) -> None:
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
def test_unquantised_manifest_keeps_its_original_fields(make_pack, precision):
    pack = make_pack(precision)
    manifest = json.loads((pack.path / MANIFEST_NAME).read_text())["manifest"]
    assert list(manifest) == ["format", "version", "precision", "source", "distinct_layers", "spec", "blobs"]
    assert not (pack.path / QUALITY_NAME).exists()
    assert load_quality(pack.path) is None


def test_pack_of_other_storage_is_not_reused(tmp_path: Path, spec: ModelSpec) -> None:
    source, out = RandomSource.for_spec(7, spec, "BF16"), tmp_path / "pack"
    write_pack(spec, source, Q4, out)
    assert write_pack(spec, source, Storage.of(Q4, tied=False), out).reused
    for other in (Storage(Q4, BF16, Q4), Storage(Q4, Q8, Q8), Storage(Q4, BF16, Q8, search=False), Q8):
        with pytest.raises(UserError, match="holds a pack of something else"):
            write_pack(spec, source, other, out)


class WrongSource(RandomSource):
    """One number of one tensor is another."""

    wrong: tuple[str, int, int, float]

    def read(self, name: str, *part: range) -> np.ndarray:
        values, (wrong, row, col, number) = super().read(name, *part), self.wrong
        if name == wrong and part and row in part[0] and col in part[1]:
            values[row - part[0].start, col - part[1].start] = number
        return values


@pytest.mark.parametrize("piece_bytes", [16 << 20, 1])
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
    tmp_path, spec, name, row, col, number, reason, piece_bytes, monkeypatch
):
    monkeypatch.setattr(panel_writer, "PIECE_BYTES", piece_bytes)
    source = WrongSource.for_spec(7, spec, "F32")
    source.wrong = name, row, col, number
    with pytest.raises(UserError, match=f"^tensor {re.escape(name)}, row {row} {reason}") as caught:
        write_pack(spec, source, Q4, tmp_path / "pack")
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []
    assert [t.name for t in threading.enumerate() if t.name.startswith("tpiedge")] == []


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
        values = source.read(m.source).astype(np.float64)
        found = by_name[m.source]
        matrix = pack.layout(1).matrix(m.name)
        assert isinstance(matrix, PanelLayout)
        with OpenFile(pack.blob_path(1)) as blob:
            stored = np.concatenate(list(export.dequantised_rows(matrix, blob)))
        ratio = 10 * math.log10((values**2).sum() / ((stored - values) ** 2).sum())
        assert found.error.sqnr_db == pytest.approx(ratio, abs=1e-3)
        assert (found.matrix, found.precision) == (m.name, Q4)
        assert 20.5 < ratio < 23.5
    assert 43 < by_name["lm_head.weight"].error.sqnr_db < 48
    record = quality.to_json()
    assert record["sqnr_db"] == pytest.approx(quality.total.sqnr_db, abs=1e-3)


NEGATIVE = '{"tensors": [{"tensor": "t", "matrix": "q", "precision": "q4", "signal": 1.0, "noise": -1.0}]}'


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"tensors": [{}]}', '{"tensors": [{"precision": "q2"}]}', "{" * 99999, NEGATIVE]
)
def test_a_quality_that_cannot_be_read_is_none(make_pack: MakePack, text: str) -> None:
    pack = make_pack(Q4)
    (pack.path / QUALITY_NAME).write_text(text)
    assert load_quality(pack.path) is None
    assert Pack.open(pack.path).storage == pack.storage


QUANTISED = [Precision.Q8, Precision.Q4]
ROWS = {"o": 120, "down": 200}


@pytest.fixture
def make(tmp_path: Path) -> Callable[[Precision, float], Pack]:
    def made(precision: Precision, std: float) -> Pack:
        spec = build_spec()
        write_pack(spec, RandomSource.for_spec(0, spec, "F32", std=std), precision, tmp_path / "pack")
        return Pack.open(tmp_path / "pack")

    return made


@pytest.mark.parametrize("std", [0.004, 0.02, 0.5])
@pytest.mark.parametrize("precision", QUANTISED)
def test_steps_are_about_sixteen_bits_below_an_output(make, precision, std):
    for layer in grid_exponents(make(precision, std)):
        for exponent, rows in zip(layer, ROWS.values(), strict=True):
            assert abs(exponent + 16 - math.log2(std * math.sqrt(rows))) <= 1.5


@pytest.mark.parametrize("precision", QUANTISED)
def test_all_zero_sample_gives_grid_of_unit_outputs(precision: Precision, make: MakePack) -> None:
    assert grid_exponents(make(precision, 0.0)) == ((-16, -16),) * 2


def test_grids_that_do_not_fit_the_pack_are_refused(make: MakePack) -> None:
    pack = make(Precision.Q4, 0.02)
    check_exponents(grid_exponents(pack), pack)
    check_exponents(((-100, 100),) * 2, pack)
    check_exponents((), None)
    for wrong in ((), ((0, 0),), ((0, 0),) * 3, ((0, 0), (0, 0, 0))):
        words = rf"has {sum(map(len, wrong))} grids in {len(wrong)} layers?, this node needs 4 in 2"
        with pytest.raises(ProtocolError, match=words):
            check_exponents(wrong, pack)
    for beyond in (-101, 101):
        with pytest.raises(ProtocolError, match="beyond"):
            check_exponents(((0, 0), (0, beyond)), pack)
