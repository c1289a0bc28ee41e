import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from tpiedge.collectives.summation import LARGEST, NOT_A_NUMBER, F32Array, IntArray, check_sum, ordered_sum
from tpiedge.errors import Misconduct, ProtocolError

SHAPE = (2, 3)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with np.errstate(over="ignore", invalid="ignore"):
        yield


@pytest.fixture
def out() -> F32Array:
    return np.full(SHAPE, np.nan, np.float32)


def part(value: float) -> F32Array:
    return np.full(SHAPE, value, np.float32)


@pytest.mark.parametrize("order", list(itertools.permutations((1, 2, 3))))
def test_sum_is_bit_identical_for_any_arrival_order(order: tuple[int, ...], out: F32Array) -> None:
    values = {0: 0.1, 1: 1e8, 2: -1e8, 3: 0.3}
    expected = ((part(0.1) + part(1e8)) + part(-1e8)) + part(0.3)
    assert ordered_sum({rank: part(values[rank]) for rank in (0, *order)}, out) is out
    assert np.array_equal(out, expected)


@pytest.mark.parametrize(
    ("values", "cause"),
    [
        ((np.nan, 1.0, np.inf), "node 0 contributed a value that is not finite to this"),
        ((1.0, 1.0, -np.inf), "node 2 contributed a value that is not finite to this"),
        ((None, np.inf, -np.inf), "node 1 contributed a value that is not finite to this"),
        ((3e38, None, 3e38), "the sum of this overflows f32"),
    ],
)
def test_sum_error_names_faulty_node(values: tuple[float | None, ...], cause: str, out: F32Array) -> None:
    parts = {rank: None if value is None else part(value) for rank, value in enumerate(values)}
    with pytest.raises(ProtocolError, match=cause):
        check_sum(ordered_sum(parts, out), parts, "this")


def whole(value: int, wide: bool) -> IntArray:
    return np.full(SHAPE, value, np.int64 if wide else np.int32)


@pytest.fixture
def narrow() -> IntArray:
    return np.full(SHAPE, 77, np.int32)


@pytest.mark.parametrize("order", list(itertools.permutations((0, 1, 2))))
@pytest.mark.parametrize("widths", list(itertools.product((False, True), repeat=3)))
def test_integer_sum_has_the_widest_dtype_of_its_parts(widths, order, narrow):
    given = [whole(LARGEST if wide else -7, wide) for wide in widths]
    parts = {3: None} | {rank: given[rank] for rank in order}
    total = ordered_sum(parts, narrow)
    check_sum(total, parts, "this")
    assert total.dtype == (np.int64 if any(widths) else np.int32)
    assert (total is narrow) == (not any(widths))
    assert (total == sum(int(one[0, 0]) for one in given)).all()
    assert all((one == (LARGEST if wide else -7)).all() for one, wide in zip(given, widths, strict=True))


@pytest.mark.parametrize("value", [NOT_A_NUMBER, LARGEST + 1, -LARGEST - 1])
def test_integer_sum_propagates_not_a_number(value: int, narrow: IntArray) -> None:
    wide = whole(5, True)
    wide[1, 2] = value
    parts = {0: whole(1, False), 1: wide, 2: wide}
    total = ordered_sum(parts, narrow)
    assert total[1, 2] == NOT_A_NUMBER
    assert (total.ravel()[:-1] == 11).all()
    with pytest.raises(Misconduct) as caught:
        check_sum(total, parts, "this")
    assert caught.value.rank == 1
