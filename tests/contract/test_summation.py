"""The sum of an all-reduce: early, in the order of ranks, and with somebody to blame."""

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from tpiedge.collectives.arrays import Array
from tpiedge.collectives.summation import OrderedSum
from tpiedge.errors import ProtocolError

SHAPE = (2, 3)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with np.errstate(over="ignore", invalid="ignore"):
        yield


def part(value: float) -> Array:
    return np.full(SHAPE, value, np.float32)


@pytest.mark.parametrize("order", list(itertools.permutations((1, 2, 3))))
def test_any_order_of_arrival_gives_the_same_bits(order: tuple[int, ...]) -> None:
    values = {0: 0.1, 1: 1e8, 2: -1e8, 3: 0.3}
    parts = OrderedSum(part(values[0]))
    for rank in order:
        parts.put(rank, part(values[rank]))
    expected = ((part(0.1) + part(1e8)) + part(-1e8)) + part(0.3)
    assert np.array_equal(parts.result(SHAPE, "this"), expected)


def test_a_part_is_added_as_soon_as_those_before_it_are() -> None:
    own = part(1.0)
    parts = OrderedSum(own)
    parts.put(2, part(4.0))
    assert own[0, 0] == 1.0
    parts.put(1, part(2.0))
    assert own[0, 0] == 7.0


def test_parts_of_others_are_only_read() -> None:
    first, second = part(1.0), part(2.0)
    parts = OrderedSum(None)
    parts.put(1, first)
    parts.put(2, second)
    assert np.array_equal(parts.result(SHAPE, "this"), part(3.0))
    assert np.array_equal(first, part(1.0))


def test_without_any_part_the_sum_is_zero() -> None:
    parts = OrderedSum(None)
    parts.put(1, None)
    assert np.array_equal(parts.result(SHAPE, "this"), part(0.0))


@pytest.mark.parametrize(
    ("values", "cause"),
    [
        ((np.nan, 1.0, np.inf), "node 0 contributed a value that is not finite to this"),
        ((1.0, 1.0, -np.inf), "node 2 contributed a value that is not finite to this"),
        ((None, np.inf, -np.inf), "node 1 contributed a value that is not finite to this"),
        ((3e38, None, 3e38), "the sum of this overflows f32"),
    ],
)
def test_who_is_to_blame(values: tuple[float | None, ...], cause: str) -> None:
    own, *others = [None if value is None else part(value) for value in values]
    parts = OrderedSum(own)
    for rank, other in enumerate(others, start=1):
        parts.put(rank, other)
    with pytest.raises(ProtocolError, match=cause):
        parts.result(SHAPE, "this")
