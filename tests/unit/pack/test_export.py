import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from tpiedge.errors import IntegrityError, InternalError, UserError
from tpiedge.lab.random_weights import RandomSource
from tpiedge.pack.dtypes import STORED
from tpiedge.pack.layout import Precision
from tpiedge.pack.reader import Pack
from tpiedge.pack.sources.safetensors_file import TensorEntry, header
from tpiedge.pack.specs import ModelSpec
from tpiedge.pack.writing import export
from tpiedge.pack.writing.export import export_safetensors

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
            expected[m.source] = source.read_rows(m.source, 0, m.source_shape[0])
        for v in blob.vectors:
            expected[v.source] = source.read_vector(v.source)
    return {name: array.view(f"<i{precision.bits // 8}") for name, array in expected.items()}


@pytest.mark.parametrize("shard_bytes", [1 << 30, 100_000])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("precision", [Precision.F32, Precision.BF16])
def test_round_trip_bit_for_bit(
    make_pack: MakePack,
    tmp_path: Path,
    precision: Precision,
    tied: bool,
    shard_bytes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(export, "TILE_BYTES", 10_000)
    monkeypatch.setattr(export, "STRIP_BYTES", 10_000)
    pack = make_pack(precision, tied=tied)
    files = export_safetensors(pack, tmp_path / "out", b'{"a": 1}', shard_bytes)
    expected = expected_tensors(pack.spec, precision)
    found = tensors_of(files)
    assert found.keys() == expected.keys()
    for name, bits in expected.items():
        np.testing.assert_array_equal(found[name], bits, err_msg=name)
    assert (tmp_path / "out" / "config.json").read_bytes() == b'{"a": 1}'
    assert (len(files) > 1) == (shard_bytes < 1 << 30)


def test_shards_have_an_index(make_pack: MakePack, tmp_path: Path) -> None:
    files = export_safetensors(make_pack(), tmp_path / "out", shard_bytes=300_000)
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"].values()) == {file.name for file in files}
    assert files[0].name == f"model-00001-of-{len(files):05d}.safetensors"
    for name, file in index["weight_map"].items():
        assert name in tensors_of([tmp_path / "out" / file])
    assert index["metadata"]["total_size"] == sum(bits.nbytes for bits in tensors_of(files).values())


def test_repeated_layers_come_back_under_every_name(make_pack: MakePack, tmp_path: Path) -> None:
    pack = make_pack(Precision.BF16, 1, layers=3)
    found = tensors_of(export_safetensors(pack, tmp_path / "out"))
    first, last = (found[f"model.layers.{layer}.o_proj.weight"] for layer in (0, 2))
    np.testing.assert_array_equal(first, last)


def test_nothing_is_overwritten(make_pack: MakePack, tmp_path: Path) -> None:
    pack = make_pack()
    with pytest.raises(UserError, match="exists already"):
        export_safetensors(pack, pack.path)


def test_a_failed_export_leaves_nothing(make_pack: MakePack, tmp_path: Path) -> None:
    pack = make_pack()
    pack.blob_path("head").unlink()
    with pytest.raises(UserError):
        export_safetensors(pack, tmp_path / "out")
    assert [entry.name for entry in tmp_path.iterdir()] == ["pack"]


def test_damage_is_not_exported(make_pack: MakePack, tmp_path: Path) -> None:
    pack = make_pack()
    with pack.blob_path(1).open("r+b") as blob:
        blob.seek(pack.layout(1).matrix("down").offset)
        blob.write(b"\xff")
    with pytest.raises(IntegrityError, match="unit 0 of down"):
        export_safetensors(pack, tmp_path / "out")
    assert [entry.name for entry in tmp_path.iterdir()] == ["pack"]


def _longer(tensors: Sequence[TensorEntry]) -> bytes:
    """A header whose last tensor has one row more than follows."""
    *others, last = tensors
    return header([*others, replace(last, shape=(last.shape[0] + 1, *last.shape[1:]))])


def _renamed(tensors: Sequence[TensorEntry]) -> bytes:
    return header([replace(tensors[0], name="another"), *tensors[1:]])


@pytest.mark.parametrize("wrong", [_longer, _renamed, lambda tensors: header(tensors)[:-1]])
def test_what_the_library_does_not_find_is_not_published(
    make_pack: MakePack,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    wrong: Callable[[Sequence[TensorEntry]], bytes],
) -> None:
    pack = make_pack()
    monkeypatch.setattr(export, "header", wrong)
    with pytest.raises(InternalError, match="what was written"):
        export_safetensors(pack, tmp_path / "out")
    assert [entry.name for entry in tmp_path.iterdir()] == ["pack"]
