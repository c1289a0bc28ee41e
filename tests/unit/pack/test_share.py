from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpiedge.errors import UserError
from tpiedge.pack.share import Share, units_of


@pytest.mark.parametrize(
    ("share", "axis_units", "units", "held"),
    [
        (Share(1, 4), 8, 8, Share(1, 4)),
        (Share(1, 4), 8, 4, Share(0, 2)),  # the KV heads that query heads 1 to 3 need
        (Share(1, 4), 8, 16, Share(2, 8)),
        (Share(1, 3), 3, 5, Share(2, 5)),  # the last unit of the axis has one unit less
        (Share(3, 4), 4, 5, Share(5, 5)),
        (Share(4, 4), 8, 2, Share(0)),
    ],
)
def test_units_of_a_matrix_follow_from_a_share_of_its_axis(share, axis_units, units, held):
    assert units_of(share, axis_units, units) == held


@pytest.mark.parametrize(("stop", "units"), [(7, 6), (7, 12), (7, 2), (6, 4)])
def test_share_that_does_not_go_with_a_matrix_is_refused(stop: int, units: int) -> None:
    with pytest.raises(UserError, match=rf"units \[0, {stop}\) of 6 do not go with a matrix of {units};"):
        units_of(Share(stop), 6, units)


@given(axis_units=st.integers(1, 40), more=st.integers(0, 90), cuts=st.lists(st.integers(0, 40)))
def test_shares_that_divide_an_axis_divide_a_wider_matrix(
    axis_units: int, more: int, cuts: list[int]
) -> None:
    borders = sorted([0, *(min(cut, axis_units) for cut in cuts), axis_units])
    shares = [Share(start, stop) for start, stop in pairwise(borders)]
    units = axis_units + more
    held = [unit for share in shares for unit in units_of(share, axis_units, units)]
    assert held == list(range(units))
