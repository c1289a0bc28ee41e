"""The sum of an all-reduce: early, in the order of ranks, and with the rank at fault if it is not finite."""

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from tpiedge.collectives.arrays import F32Array, IntArray
from tpiedge.collectives.summation import LARGEST, NOT_A_NUMBER, OrderedSum
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


def test_a_part_is_added_as_soon_as_those_before_it_are(out: F32Array) -> None:
    parts = OrderedSum(part(1.0), out)
    parts.put(2, part(4.0))
    assert np.isnan(out).all()
    parts.put(1, part(2.0))
    assert out[0, 0] == 7.0


def test_parts_are_only_read(out: F32Array) -> None:
    own, first, second = part(1.0), part(2.0), part(4.0)
    parts = OrderedSum(own, out)
    parts.put(1, first)
    parts.put(2, second)
    parts.finish("this")
    assert np.array_equal(out, part(7.0))
    assert [array[0, 0] for array in (own, first, second)] == [1.0, 2.0, 4.0]


@pytest.mark.parametrize("values", [(None, None), (None, 5.0), (5.0, None)])
def test_fewer_than_two_parts_are_the_sum(values: tuple[float | None, ...], out: F32Array) -> None:
    own, other = (None if value is None else part(value) for value in values)
    parts = OrderedSum(own, out)
    parts.put(1, other)
    parts.finish("this")
    assert np.array_equal(out, part(0.0 if own is other else 5.0))


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


def test_only_some_ranks_in_another_order(out: F32Array) -> None:
    """As at the head of a tree: its own part first, and blame by rank."""
    parts = OrderedSum(part(1e8), out, 4, (4, 5, 7))
    parts.put(7, part(0.3))
    assert np.isnan(out).all()
    parts.put(5, part(-1e8))
    parts.finish("this")
    assert np.array_equal(out, (part(1e8) + part(-1e8)) + part(0.3))
    parts = OrderedSum(None, out, 4, (4, 5, 7))
    parts.put(7, part(np.inf))
    parts.put(5, None)
    with pytest.raises(Misconduct) as caught:
        parts.finish("this")
    assert caught.value.rank == 7


def whole(value: int, wide: bool) -> IntArray:
    return np.full(SHAPE, value, np.int64 if wide else np.int32)


@pytest.fixture
def narrow() -> IntArray:
    return np.full(SHAPE, 77, np.int32)


@pytest.mark.parametrize("order", list(itertools.permutations((0, 1, 2))))
@pytest.mark.parametrize("widths", list(itertools.product((False, True), repeat=3)))
def test_the_sum_of_integers_is_as_wide_as_the_widest(
    widths: tuple[bool, ...], order: tuple[int, ...], narrow: IntArray
) -> None:
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


def test_a_part_that_is_a_sum_may_be_larger(narrow: IntArray) -> None:
    parts = OrderedSum(whole(3 * LARGEST, True), narrow, ranks=3)
    assert (parts.finish("this") == 3 * LARGEST).all()
    parts.put(1, whole(3 * LARGEST + 1, True))
    with pytest.raises(Misconduct):
        parts.finish("this")


def test_a_sum_beyond_int64_is_nobodys_fault(narrow: IntArray) -> None:
    parts = OrderedSum(whole(-LARGEST, True), narrow)
    for rank in range(1, 128):
        parts.put(rank, whole(-LARGEST, True))
    with pytest.raises(ProtocolError, match="overflows int64") as caught:
        parts.finish("this")
    assert not isinstance(caught.value, Misconduct)


def test_nobody_has_a_share_yet(out: F32Array) -> None:
    parts = OrderedSum(None, out)
    parts.put(1, None)
    assert parts.empty
    parts.put(2, part(1.0))
    assert not parts.empty
