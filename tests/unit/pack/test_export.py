import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from tests.unit.pack.stored import check_matrix, flip
from tpiedge.errors import IntegrityError, UserError
from tpiedge.kernels.panels import dequantise_unit
from tpiedge.lab.random_weights import RandomSource
from tpiedge.pack import export
from tpiedge.pack.dtypes import STORED
from tpiedge.pack.export import export_safetensors
from tpiedge.pack.layout import PanelLayout
from tpiedge.pack.reader import Pack
from tpiedge.pack.specs import ModelSpec, Precision

MakePack = Callable[..., Pack]


def tensors_of(files: list[Path]) -> dict[str, np.ndarray]:
    """Raw bits by name, read by the safetensors library."""
    import torch

    found = {}
    for file in files:
        with safe_open(file, "pt") as opened:
            for name in opened.keys():  # noqa: SIM118 (not a mapping)
                tensor = opened.get_tensor(name)
                bits = torch.int16 if tensor.dtype == torch.bfloat16 else torch.int32
                found[name] = tensor.view(bits).numpy()
    return found


def expected_tensors(spec: ModelSpec, precision: Precision) -> dict[str, np.ndarray]:
    source = RandomSource.for_spec(7, spec, STORED[precision])
    expected = {}
    for blob in (spec.embedding, *spec.layers, spec.head):
        for m in blob.matrices:
            expected[m.source] = source.read(m.source)
        for v in blob.vectors:
            expected[v.source] = source.read(v.source)[0]
    return {name: array.view(f"<i{precision.bits // 8}") for name, array in expected.items()}


@pytest.mark.parametrize("shard_bytes", [1 << 30, 100_000])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("precision", [Precision.F32, Precision.BF16])
def test_round_trip_bit_for_bit(make_pack, tmp_path, precision, tied, shard_bytes, monkeypatch):
    monkeypatch.setattr(export, "STRIP_BYTES", 10_000)
    pack = make_pack(precision, tied=tied)
    files = export_safetensors(pack, tmp_path / "out", shard_bytes)
    expected = expected_tensors(pack.spec, precision)
    found = tensors_of(files)
    assert found.keys() == expected.keys()
    for name, bits in expected.items():
        np.testing.assert_array_equal(found[name], bits, err_msg=name)
    assert (len(files) > 1) == (shard_bytes < 1 << 30)


def test_shards_have_an_index(make_pack: MakePack, tmp_path: Path) -> None:
    files = export_safetensors(make_pack(), tmp_path / "out", shard_bytes=300_000)
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"].values()) == {file.name for file in files}
    assert files[0].name == f"model-00001-of-{len(files):05d}.safetensors"
    for name, file in index["weight_map"].items():
        assert name in tensors_of([tmp_path / "out" / file])
    assert index["metadata"]["total_size"] == sum(bits.nbytes for bits in tensors_of(files).values())


def test_export_refuses_existing_folder(make_pack: MakePack, tmp_path: Path) -> None:
    pack = make_pack()
    with pytest.raises(UserError, match="exists already"):
        export_safetensors(pack, pack.path)


def test_damage_is_not_exported(make_pack: MakePack, tmp_path: Path) -> None:
    pack = make_pack()
    flip(pack.blob_path(1), pack.layout(1).matrix("down").offset)
    with pytest.raises(IntegrityError, match="unit 0 of down"):
        export_safetensors(pack, tmp_path / "out")
    assert [entry.name for entry in tmp_path.iterdir()] == ["pack"]


@pytest.mark.parametrize("precision", [Precision.Q8, Precision.Q4])
@pytest.mark.parametrize("tied", [False, True])
def test_quantised_pack_exports_its_dequantised_values(make_pack, tmp_path, precision, tied):
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
        for m in pack.layout(key).matrices:
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
