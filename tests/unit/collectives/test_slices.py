from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpiedge.collectives.codec import rounded
from tpiedge.collectives.direct import check_slices, cut
from tpiedge.errors import Misconduct, ProtocolError
from tpiedge.wire.fields import INT8_GROUP

COLUMNS = st.one_of(st.integers(1, 200), st.integers(0, 6).map(lambda groups: groups * INT8_GROUP))


@given(st.integers(0, 20), COLUMNS, st.integers(1, 10))
def test_slices_are_views_that_make_up_the_matrix(rows: int, columns: int, count: int) -> None:
    array = np.arange(rows * columns, dtype=np.float32).reshape(rows, columns)
    slices = cut(array, count)
    assert len(slices) == count
    assert all(one.flags.c_contiguous and one.ndim == 2 for one in slices)
    assert np.array_equal(np.concatenate([one.ravel() for one in slices]), array.ravel())
    for one in slices:
        one += 1
    assert np.array_equal(array.ravel(), np.arange(1, array.size + 1, dtype=np.float32))
    lengths = [len(one) for one in slices]
    assert max(lengths) - min(lengths) <= 1


@pytest.mark.parametrize("wire", ["f32", "bf16", "int8"])
@given(rows=st.integers(1, 6), columns=COLUMNS, count=st.integers(1, 6))
def test_slicing_does_not_change_rounding(wire: Any, rows: int, columns: int, count: int) -> None:
    array = np.random.default_rng(rows + columns).standard_normal((rows, columns)).astype(np.float32)
    slices = [rounded(wire, one) for one in cut(array, count)]
    assert np.array_equal(np.concatenate([one.ravel() for one in slices]), rounded(wire, array).ravel())


def test_single_row_is_split_by_quantisation_groups() -> None:
    assert [one.shape for one in cut(np.zeros((1, 2048), np.float32), 5)] == [
        (6, 64), (6, 64), (7, 64), (6, 64), (7, 64),
    ]  # fmt: skip


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_non_finite_sum_names_its_node_without_blame(value: float) -> None:
    slices = cut(np.zeros((4, 3), np.float32), 4)
    check_slices(slices, "this")
    slices[2][0, 1] = value
    with pytest.raises(
        ProtocolError, match="the sum of this is not finite in the slice that node 2"
    ) as caught:
        check_slices(slices, "this")
    assert not isinstance(caught.value, Misconduct)
