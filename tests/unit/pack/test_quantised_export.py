"""A pack in q8 or q4 back as a checkpoint: in f32, the numbers that it means."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.unit.pack.stored import check_matrix
from tpiedge.kernels.quantise import dequantise_unit
from tpiedge.pack.layout import PanelLayout, Precision
from tpiedge.pack.reader import Pack
from tpiedge.pack.writing import export
from tpiedge.pack.writing.export import export_safetensors

Q8, Q4 = Precision.Q8, Precision.Q4
MakePack = Callable[..., Pack]


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

    monkeypatch.setattr(export, "_PART_BYTES", part_bytes)
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
