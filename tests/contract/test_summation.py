import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from tpiedge.collectives.summation import LARGEST, NOT_A_NUMBER, F32Array, IntArray, OrderedSum
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
def test_any_order_of_arrival_gives_the_same_bits(order: tuple[int, ...], out: F32Array) -> None:
    values = {0: 0.1, 1: 1e8, 2: -1e8, 3: 0.3}
    parts = OrderedSum(part(values[0]), out)
    for rank in order:
        parts.put(rank, part(values[rank]))
    expected = ((part(0.1) + part(1e8)) + part(-1e8)) + part(0.3)
    parts.finish("this")
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
def test_who_is_to_blame(values: tuple[float | None, ...], cause: str, out: F32Array) -> None:
    own, *others = [None if value is None else part(value) for value in values]
    parts = OrderedSum(own, out)
    for rank, other in enumerate(others, start=1):
        parts.put(rank, other)
    with pytest.raises(ProtocolError, match=cause):
        parts.finish("this")


def whole(value: int, wide: bool) -> IntArray:
    return np.full(SHAPE, value, np.int64 if wide else np.int32)


@pytest.fixture
def narrow() -> IntArray:
    return np.full(SHAPE, 77, np.int32)


@pytest.mark.parametrize("order", list(itertools.permutations((0, 1, 2))))
@pytest.mark.parametrize("widths", list(itertools.product((False, True), repeat=3)))
def test_the_sum_of_integers_is_as_wide_as_the_widest(widths, order, narrow):
    parts = OrderedSum(None, narrow, 3)
    given = [whole(LARGEST if wide else -7, wide) for wide in widths]
    for rank in order:
        parts.put(rank, given[rank])
    total = parts.finish("this")
    assert total.dtype == (np.int64 if any(widths) else np.int32)
    assert (total is narrow) == (not any(widths))
    assert (total == sum(int(one[0, 0]) for one in given)).all()
    assert all((one == (LARGEST if wide else -7)).all() for one, wide in zip(given, widths, strict=True))


@pytest.mark.parametrize("value", [NOT_A_NUMBER, LARGEST + 1, -LARGEST - 1])
def test_a_sum_of_integers_has_what_is_no_number_where_a_part_has(value: int, narrow: IntArray) -> None:
    wide = whole(5, True)
    wide[1, 2] = value
    parts = OrderedSum(whole(1, False), narrow)
    parts.put(1, wide)
    parts.put(2, wide)
    total = parts.complete()
    assert total[1, 2] == NOT_A_NUMBER
    assert (total.ravel()[:-1] == 11).all()
    with pytest.raises(Misconduct) as caught:
        parts.finish("this")
    assert caught.value.rank == 1
