"""Packs with experts: what is stored where, and what a share of it is."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.mixtures import COLUMNS, COUNT, HIDDEN, SHAPE, SPEC, mixed_pack
from tests.unit.pack.stored import adopt, content, write
from tpiedge.errors import UserError
from tpiedge.kernels.quantise import quantise_unit
from tpiedge.lab.random_weights import RandomSource
from tpiedge.model.spec import config_of_pack
from tpiedge.pack.export import export_safetensors
from tpiedge.pack.grids import check_exponents, grid_exponents
from tpiedge.pack.layout import ALIGN, BlobLayout, ExpertsLayout, PanelLayout, RowLayout, Storage
from tpiedge.pack.panel_writer import load_quality
from tpiedge.pack.reader import verify_pack
from tpiedge.pack.share import Share
from tpiedge.pack.specs import BlobSpec, ExpertsSpec, MatrixSpec, Precision
from tpiedge.pack.store import ShardStore

STORED = [Precision.F32, Precision.BF16, Precision.Q8, Precision.Q4]
RANDOM = RandomSource.for_spec(3, SPEC, "BF16")


def experts_of(layout: BlobLayout) -> ExpertsLayout:
    assert layout.experts is not None
    return layout.experts


@pytest.mark.parametrize("precision", STORED)
def test_ranges_cover_the_blob_in_order(precision: Precision, tmp_path: Path) -> None:
    pack = mixed_pack(tmp_path / "pack", precision)
    verify_pack(pack)
    layout = pack.layout(0)
    ranges = list(layout.ranges())
    assert [one.index for one in ranges] == list(range(layout.range_count))
    assert all(one.offset + one.length == after.offset for one, after in pairwise(ranges))
    assert ranges[-1].offset + ranges[-1].length == layout.nbytes
    assert {one.length % ALIGN for one in ranges} == {0}
    matrices = 1 if precision.quantised else 3
    assert len(list(experts_of(layout).ranges(0, 4))) == COUNT * 4 * matrices
    assert pack.whole == SHAPE.whole


@pytest.mark.parametrize("precision", [Precision.Q8, Precision.Q4])
def test_slice_of_an_expert_is_one_read_of_gate_up_and_down_by_units(
    precision: Precision, tmp_path: Path
) -> None:
    pack = mixed_pack(tmp_path / "pack", precision)
    experts = experts_of(pack.layout(0))
    own = list(experts.ranges(1, 3))
    for first, second in zip(own[::2], own[1::2], strict=True):
        assert first.offset + first.length == second.offset
    blob = np.fromfile(pack.blob_path(0), np.uint8)
    for expert in range(COUNT):
        units = [blob[one.offset : one.offset + one.length].copy() for one in experts.ranges(0, 4)][
            4 * expert : 4 * expert + 4
        ]
        for part in experts.of_expert(expert):
            assert isinstance(part, PanelLayout)
            values_OI = RANDOM.read(part.source)
            for unit, held in enumerate(units):
                rows = slice(64 * unit, min(64 * unit + 64, COLUMNS))
                cut_OI = values_OI[:, rows] if part.transposed else values_OI[rows]
                expected, _ = quantise_unit(np.ascontiguousarray(cut_OI), part.shape(unit))
                place = part.span(unit, unit + 1)[0] - (list(experts.ranges(0, 4))[4 * expert + unit].offset)
                np.testing.assert_array_equal(held[place : place + len(expected)], expected)
                held[place : place + len(expected)] = 0
        assert not any(held.any() for held in units)


@pytest.mark.parametrize("precision", [Precision.F32, Precision.BF16])
def test_unpacked_experts_are_those_of_the_source(precision: Precision, tmp_path: Path) -> None:
    pack = mixed_pack(tmp_path / "pack", precision)
    assert all(isinstance(one, RowLayout) for one in experts_of(pack.layout(0)).of_expert(4))
    (path,) = export_safetensors(pack, tmp_path / "back")
    found = load_file(path) if precision is Precision.F32 else None
    shapes = SPEC.source_shapes
    assert shapes["model.layers.0.mlp.gate.weight"] == (COUNT, HIDDEN)
    if found is None:  # numpy has no bf16
        header = path.read_bytes()
        names = json.loads(header[8 : 8 + int.from_bytes(header[:8], "little")])
        assert {name: tuple(one["shape"]) for name, one in names.items() if name in shapes} == shapes
        return
    source = RandomSource.for_spec(3, SPEC, "F32")
    assert found.keys() == shapes.keys()
    for name, values in found.items():
        np.testing.assert_array_equal(values, source.read(name).reshape(values.shape), err_msg=name)


def test_pack_with_experts_has_version_3_and_the_models_config(tmp_path: Path) -> None:
    pack = mixed_pack(tmp_path / "pack", Precision.Q4)
    manifest = json.loads((pack.path / "manifest.json").read_text())["manifest"]
    assert manifest["version"] == 3
    assert manifest["spec"]["layers"][0]["experts"]["count"] == COUNT
    assert "experts" not in manifest["spec"]["layers"][1]
    assert [one.experts is None for one in config_of_pack(pack).layers] == [False, True, False, False]
    quality = load_quality(pack.path)
    assert quality is not None
    of_experts = {one.tensor for one in quality.tensors if "{}" in one.tensor}
    assert len(of_experts) == 3 * 3  # one for the matrices of all experts
    grids = grid_exponents(pack)
    assert [len(row) for row in grids] == [2] * 4
    check_exponents(grids, pack)


@pytest.mark.parametrize("precision", STORED)
def test_shard_has_the_same_units_of_every_expert(precision: Precision, tmp_path: Path) -> None:
    pack = mixed_pack(tmp_path / "pack", precision)
    share = SHAPE.share(Share(2, 4), Share(1), Share(1, 3))
    other = SHAPE.share(Share(2), Share(1, 3), Share(3, 4))
    wanted = {layer: pack.share_ranges(layer, share) for layer in range(4)}
    units = [one.unit for one in wanted[0] if one.matrix.startswith("expert ")]
    assert sorted(units) == sorted([1, 2] * COUNT * (1 if precision.quantised else 3))
    with adopt(ShardStore(tmp_path / "store"), pack, share) as copy:
        for layer, ranges in copy.missing(share).items():
            assert list(ranges) == wanted[layer]
            assert all(write(copy, layer, one, content(pack, layer, one)) for one in ranges)
        assert copy.missing(share) == copy.verify(share) == {}
        assert set(copy.missing(other)) == {0, 1, 2, 3}


def test_matrices_of_an_expert_keep_precisions_of_their_own(tmp_path: Path) -> None:
    kept = {"model.layers.2.mlp.experts.{}.down_proj.weight": Precision.Q8}
    storage = Storage(Precision.Q4, Precision.BF16, Precision.Q8, kept=kept)
    layout = storage.layout(2, SPEC.layers[2])
    assert [one.precision.value for one in experts_of(layout).matrices] == ["q4", "q4", "q8"]
    assert layout.descriptor()["matrix_precisions"] == {"experts.down": "q8"}
    assert layout.nbytes > storage.layout(0, SPEC.layers[0]).nbytes


def test_matrices_of_an_expert_have_one_number_of_units() -> None:
    gate, up = MatrixSpec("gate", "{}.g", 128, 64, 64), MatrixSpec("up", "{}.u", 64, 64, 64)
    with pytest.raises(UserError, match="unlike units"):
        BlobSpec((), (), ExpertsSpec(2, 1, (gate, up)))
