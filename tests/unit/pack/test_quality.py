import math
from collections.abc import Callable

import numpy as np
import pytest

from tpiedge.lab.random_weights import RandomSource
from tpiedge.pack import export
from tpiedge.pack.files import OpenFile
from tpiedge.pack.layout import PanelLayout
from tpiedge.pack.panel_writer import QUALITY_NAME, load_quality
from tpiedge.pack.reader import Pack
from tpiedge.pack.specs import ModelSpec, Precision

Q4 = Precision.Q4
MakePack = Callable[..., Pack]
MakeSpec = Callable[..., ModelSpec]


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
