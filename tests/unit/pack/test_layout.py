import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.unit.pack.stored import SHAPE
from tpiedge.errors import UserError
from tpiedge.pack.layout import ALIGN, ROW_ALIGN, BlobLayout, PanelLayout, RowLayout, share_of_matrix
from tpiedge.pack.reader import Pack
from tpiedge.pack.share import Share
from tpiedge.pack.specs import BlobSpec, MatrixSpec, ModelSpec, Precision, VectorSpec

F32, BF16 = Precision.F32, Precision.BF16


@pytest.mark.parametrize(
    ("rows", "cols", "per_unit", "precision", "stride", "padded", "units", "nbytes"),
    [
        (4096, 4096, 128, BF16, 8192, 128, 32, 4096 * 8192),  # nothing to pad
        (32000, 2048, 128, F32, 8192, 128, 250, 32000 * 8192),
        (120, 60, 20, F32, 256, 32, 6, 6 * 32 * 256),  # head_dim 20: 12 rows of padding per head
        (120, 60, 20, BF16, 128, 32, 6, 6 * 32 * 128),
        (200, 60, 128, F32, 256, 128, 2, (128 + 80) * 256),  # the short tile has its own padding
        (1003, 60, 128, BF16, 128, 128, 8, (7 * 128 + 128) * 128),
        (3200, 3200, 100, F32, 12800, 104, 32, 32 * 104 * 12800),  # OpenLLaMA 3B
        (64, 64, 128, F32, 256, 128, 1, 64 * 256),  # one tile, shorter than a tile
    ],
)
def test_row_layout_has_expected_sizes(rows, cols, per_unit, precision, stride, padded, units, nbytes):
    layout = BlobLayout.of(BlobSpec((MatrixSpec("q", "s", rows, cols, per_unit),)), precision)
    matrix = layout.matrix("q")
    assert isinstance(matrix, RowLayout)
    assert (matrix.row_stride, matrix.padded_rows, matrix.units) == (stride, padded, units)
    assert matrix.nbytes == nbytes == layout.nbytes


@pytest.mark.parametrize(
    ("rows", "cols", "per_unit", "transposed", "precision", "units", "nbytes"),
    [
        # 8 panels of 128 groups: 16 * 2 bytes a group of scales, 16 * 32 codes
        (4096, 4096, 128, False, Precision.Q8, 32, 32 * 8 * (128 * 32 + 4096 * 16)),
        (4096, 4096, 128, False, Precision.Q4, 32, 32 * 8 * (128 * 32 + 4096 * 8)),
        # the units are of inputs: 256 panels of 4 groups
        (11008, 4096, 128, True, Precision.Q4, 86, 86 * 256 * (4 * 32 + 128 * 8)),
        # heads of 100 outputs: 7 panels of 100 groups; 49.2 pages
        (3200, 3200, 100, False, Precision.Q4, 32, 32 * 50 * 4096),
        # heads of 100 inputs: 4 groups, 104 codes
        (3200, 3200, 100, True, Precision.Q8, 32, 32 * 88 * 4096),
        # 67.5 tiles: the last unit has 64 inputs, 2 groups
        (8640, 3200, 128, True, Precision.Q4, 68, 67 * 57 * 4096 + 29 * 4096),
    ],
)
def test_panel_layout_has_expected_sizes(rows, cols, per_unit, transposed, precision, units, nbytes):
    layout = BlobLayout.of(BlobSpec((MatrixSpec("q", "s", rows, cols, per_unit, transposed),)), precision)
    matrix = layout.matrix("q")
    assert isinstance(matrix, PanelLayout)
    assert (matrix.units, matrix.nbytes) == (units, nbytes)
    assert layout.nbytes == nbytes


def test_a_panel_is_found_by_its_row() -> None:
    matrix = BlobLayout.of(BlobSpec((MatrixSpec("q", "s", 1003, 60, 100),)), Precision.Q4).matrix("q")
    assert isinstance(matrix, PanelLayout)
    panel = 64 + 64 * 8
    assert matrix.shape(0).panel_nbytes == panel
    assert matrix.row_place(0) == matrix.row_place(15) == (0, panel)
    assert matrix.row_place(99) == (6 * panel, panel)
    assert matrix.row_place(100) == (4096, panel)
    assert matrix.row_place(1002) == (10 * 4096, panel)


matrices = st.builds(
    MatrixSpec,
    name=st.just("q"),
    source=st.just("s"),
    rows=st.integers(1, 3000),
    cols=st.integers(1, 5000),
    rows_per_unit=st.integers(1, 300),
    transposed=st.booleans(),
)
blobs = st.builds(
    lambda parts, lengths: BlobSpec(
        tuple(replace(part, name=f"m{i}") for i, part in enumerate(parts)),
        tuple(VectorSpec(f"v{i}", "s", length) for i, length in enumerate(lengths)),
    ),
    st.lists(matrices, max_size=4),
    st.lists(st.integers(1, 3000), max_size=3),
)


@given(blobs, st.sampled_from(Precision))
def test_ranges_tile_the_blob_without_gap_or_overlap(spec: BlobSpec, precision: Precision) -> None:
    layout = BlobLayout.of(spec, precision)
    offset = 0
    for index, item in enumerate(layout.ranges()):
        assert (item.offset, item.index) == (offset, index)
        assert item.length % ALIGN == 0 < item.length
        offset += item.length
    assert offset == layout.nbytes
    assert layout.range_count == len(list(layout.ranges()))


@given(matrices, st.sampled_from(Precision), st.data())
def test_any_share_is_one_aligned_range_of_its_units(spec, precision, data):
    matrix = BlobLayout.of(BlobSpec((spec,), (VectorSpec("n", "s", 5),)), precision).matrix("q")
    start = data.draw(st.integers(0, matrix.units))
    stop = data.draw(st.integers(start, matrix.units))
    offset, length = matrix.span(start, stop)
    units = list(matrix.ranges(start, stop))
    assert offset % ALIGN == length % ALIGN == 0
    assert sum(item.length for item in units) == length
    if units:
        assert units[0].offset == offset
    if isinstance(matrix, RowLayout):
        assert length % matrix.row_stride == 0
        assert matrix.row_stride % ROW_ALIGN == 0
        assert matrix.row_stride - ROW_ALIGN < spec.cols * matrix.itemsize <= matrix.row_stride
    else:
        assert isinstance(matrix, PanelLayout)
        for unit in range(start, stop):
            assert 0 <= matrix.unit_nbytes(unit) - matrix.shape(unit).nbytes < ALIGN


def test_share_of_layer_has_expected_units_and_bytes(make_pack: Callable[..., Pack]) -> None:
    pack = make_pack()
    layout = pack.layout(0)
    share = SHAPE.share(Share(1, 4), Share(1, 2))
    held = {matrix.name: share_of_matrix(matrix, share, pack.whole) for matrix in layout.matrices}
    assert held["q"] == held["o"] == Share(1, 4)
    assert held["k"] == held["v"] == Share(0, 2)  # the KV heads that cover query heads 1, 2, 3
    assert held["gate"] == held["down"] == Share(1, 2)
    head, tile = 32 * 256, 80 * 256
    assert pack.share_bytes(0, share) == 4096 + (2 * 3 + 2 * 2) * head + 3 * tile
    assert pack.share_bytes(0, SHAPE.share(Share(0, 0), Share(0, 0))) == layout.vectors_nbytes
    everything = SHAPE.share(Share(0, 6), Share(0, 2))
    assert pack.share_bytes(0, everything) == layout.nbytes
    (head_matrix,) = pack.layout("head").matrices
    assert share_of_matrix(head_matrix, share, pack.whole) == Share(head_matrix.units)


@pytest.mark.parametrize(
    "fields",
    [
        {"rows": 0},
        {"rows": -1},
        {"rows": True},
        {"rows": 2.0},
        {"rows": "4"},
        {"rows": 1 << 60},
        {"cols": 1 << 60},
        {"rows_per_unit": 0},
        {"name": "../q"},
        {"name": ""},
        {"name": None},
        {"source": "a b"},
        {"source": "x" * 300},
        {"transposed": 1},
    ],
)
def test_invalid_matrix_in_manifest_is_refused(spec: ModelSpec, fields: dict[str, object]) -> None:
    good = {"name": "q", "source": "s", "rows": 4, "cols": 4, "rows_per_unit": 2, "transposed": False}
    document: Any = json.loads(msgspec.json.encode(spec))
    document["layers"][0]["matrices"][0] = list(good.values())
    msgspec.convert(document, ModelSpec)
    document["layers"][0]["matrices"][0] = list((good | fields).values())
    with pytest.raises(msgspec.ValidationError, match=r"at `\$\.layers\[0\]\.matrices\[0\]\[\d\]`"):
        msgspec.convert(document, ModelSpec)


def test_oversized_blob_is_refused() -> None:
    huge = MatrixSpec("q", "s", 1 << 26, 1 << 22, 128)
    with pytest.raises(UserError, match="larger than any"):
        BlobLayout.of(BlobSpec((huge,)), F32)
    with pytest.raises(UserError, match="larger than any"):
        BlobLayout.of(BlobSpec((MatrixSpec("q", "s", 1 << 26, 4, 1),)), F32)
    wide = MatrixSpec("q", "s", 4, (1 << 20) + 1, 4)
    with pytest.raises(UserError, match="q: 1048577 inputs are too many"):
        BlobLayout.of(BlobSpec((wide,)), Precision.Q4)
    BlobLayout.of(BlobSpec((replace(wide, transposed=True),)), Precision.Q4)
    with pytest.raises(UserError, match="twice"):
        BlobSpec((MatrixSpec("q", "s", 1, 1, 1),), (VectorSpec("q", "s", 1),))
