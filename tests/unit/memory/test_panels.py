from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import numpy as np
import pytest
import torch

from tests.unit.memory.conftest import EVERYTHING, SHAPE, MakePack, narrow
from tpiedge.errors import UserError
from tpiedge.kernels.panel_matrix import PanelMatrix
from tpiedge.kernels.panels import FORMATS, PANEL, PanelShape, dequantise_unit
from tpiedge.kernels.quantise import quantise_unit
from tpiedge.lab.random_weights import random_rows
from tpiedge.memory import sweep
from tpiedge.memory.sweep import Block
from tpiedge.memory.weights import NodeWeights
from tpiedge.pack.layout import Storage
from tpiedge.pack.reader import Pack
from tpiedge.pack.share import NodeShare, Share
from tpiedge.pack.specs import Precision

HIDDEN, VOCABULARY = 60, 1003
QUANTISED = [Precision.Q8, Precision.Q4]


@contextmanager
def loaded(pack: Pack, share: NodeShare = EVERYTHING, **options: object) -> Iterator[NodeWeights]:
    weights = NodeWeights(pack, share, True, **options)  # type: ignore[arg-type]
    try:
        yield weights
    finally:
        weights.close()


def original(name: str, rows: int, cols: int) -> np.ndarray:
    return random_rows(7, name, 0, rows, cols, "BF16")


def quantised(values_OI: np.ndarray, bits: int) -> np.ndarray:
    shape = PanelShape(FORMATS[f"q{bits}"], *values_OI.shape)
    return dequantise_unit(quantise_unit(np.ascontiguousarray(values_OI), shape)[0], shape)


def units_of(matrix: PanelMatrix) -> list[np.ndarray]:
    data = matrix.data_B.numpy()
    return [
        dequantise_unit(data[unit * matrix.unit_nbytes :], matrix.unit_shape(unit))
        for unit in range(matrix.units)
    ]


@pytest.mark.parametrize("precision", QUANTISED)
def test_node_share_loads_its_quantised_units(make_pack: MakePack, precision: Precision) -> None:
    with loaded(make_pack(precision), SHAPE.share(Share(1, 4), Share(1, 2))) as weights:
        with weights.resident(Block(1, "attention")) as attention:
            q, k, o = (attention.matrices[name] for name in "qko")
        with weights.resident(Block(1, "ffn")) as ffn:
            gate, down = ffn.matrices["gate"], ffn.matrices["down"]
            bias = attention.vectors["q_bias"]
        assert all(
            isinstance(one, PanelMatrix) and one.format is precision.format for one in (q, k, o, gate, down)
        )
        assert (q.shape, k.shape, o.shape) == ((60, HIDDEN), (40, HIDDEN), (60, HIDDEN))
        assert (gate.shape, down.shape) == ((72, HIDDEN), (72, HIDDEN))  # the last tile, which is short
        assert bias.dtype == torch.float32
        q_OI, o_OI = original("1.q", 120, HIDDEN), original("1.o", HIDDEN, 120)
        for head, found_q, found_o in zip((1, 2, 3), units_of(q), units_of(o), strict=True):
            part = slice(20 * head, 20 * head + 20)
            assert np.array_equal(found_q, quantised(q_OI[part], precision.bits))
            assert np.array_equal(found_o, quantised(o_OI[:, part], precision.bits))
        (found_gate,), (found_down,) = units_of(gate), units_of(down)
        assert np.array_equal(found_gate, quantised(original("1.gate", 200, HIDDEN)[128:], precision.bits))
        assert np.array_equal(found_down, quantised(original("1.down", HIDDEN, 200)[:, 128:], precision.bits))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("precision", QUANTISED)
@pytest.mark.parametrize("units_of_a_tile", [1, 3, 100])
def test_head_tiles_cover_quantised_head_rows(
    make_pack: MakePack,
    monkeypatch: pytest.MonkeyPatch,
    precision: Precision,
    tied: bool,
    units_of_a_tile: int,
) -> None:
    pack = make_pack(Storage.of(Precision.Q4, tied=tied, head=precision), tied=tied)
    key, name = pack.head_matrix
    unit_nbytes = pack.layout(key).matrix(name).unit_nbytes(0)
    monkeypatch.setattr(sweep, "_TILE_BYTES", units_of_a_tile * unit_nbytes)
    rows_OI = original("embedding" if tied else "head", VOCABULARY, HIDDEN)
    with loaded(pack) as weights:
        tiles = list(weights.head_tiles())
        starts = [first for first, _ in tiles]
        assert starts == list(range(0, VOCABULARY, 128 * units_of_a_tile))
        assert sum(tile.shape[0] for _, tile in tiles) == VOCABULARY
        for first, tile in tiles:
            for unit, found in enumerate(units_of(tile)):
                start = first + 128 * unit
                assert np.array_equal(found, quantised(rows_OI[start : start + 128], precision.bits))
        whole = weights.head
        assert whole is not None
        assert whole.shape == (VOCABULARY, HIDDEN)
        assert np.array_equal(whole.data_B, torch.cat([cast(PanelMatrix, tile).data_B for _, tile in tiles]))
    assert weights.head is None
    with loaded(pack, placement=narrow) as weights:
        assert weights.head is None


@pytest.mark.parametrize("precision", QUANTISED)
def test_quantised_embedding_rows_are_read_from_disk(make_pack: MakePack, precision: Precision) -> None:
    ids = [0, 1002, 127, 128, 15, 16, 5, 5, *range(900, 1003)]
    storage = Storage.of(Precision.Q4, tied=True, head=precision)
    with loaded(make_pack(storage, tied=True)) as weights:
        found_TH = weights.embedding_rows(ids)
        assert weights.embedding_rows([]).shape == (0, HIDDEN)
        for row in (VOCABULARY, -1):
            with pytest.raises(UserError, match=f"has rows 0 to 1002, not {row}"):
                weights.embedding_rows([0, row])
        panel_nbytes = PanelShape(precision.format, PANEL, HIDDEN).panel_nbytes
        assert weights.disk_read_bytes == len(ids) * panel_nbytes
    table = original("embedding", VOCABULARY, HIDDEN)
    units = [quantised(table[start : start + 128], precision.bits) for start in range(0, VOCABULARY, 128)]
    assert np.array_equal(found_TH.numpy(), np.concatenate(units)[ids])
