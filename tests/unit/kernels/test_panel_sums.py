"""Sums of row-parallel quantised products: the integers of the definition, on every instruction set, in any cut."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.unit.kernels.instruction_sets import AVAILABLE
from tests.unit.kernels.panel_reference import (
    F32,
    I64,
    KINDS,
    NOT_A_NUMBER,
    Quantised,
    random_matrix,
    share_of,
    sides,
    sums,
    values,
)
from tests.unit.kernels.test_linear import opened
from tpiedge.kernels.grid import Grid
from tpiedge.kernels.linear import Arithmetic
from tpiedge.kernels.panel_matrix import PanelMatrix

INT8 = Arithmetic.INT8
BITS = [4, 8]
INT32 = (1 << 31) - 1

shapes = st.tuples(st.integers(0, 70), st.integers(1, 140), st.sampled_from([1, 8, 20, 33, 64, 100]))
needs_native = pytest.mark.skipif(not AVAILABLE, reason="native: the kernels are not built")


def contract(engine: str, x: F32, w: PanelMatrix, grid: Grid, threads: int = 2) -> Tensor:
    with opened(engine, INT8, threads) as linear:
        return linear.contract(torch.from_numpy(x), w, grid)


def assert_sums(found: Tensor, expected: I64, grid: Grid, says: str) -> None:
    assert found.dtype in (torch.int32, torch.int64)
    np.testing.assert_array_equal(found.numpy().astype(np.int64), expected, says)
    if found.dtype is torch.int32 and expected.size:
        assert -grid.most <= expected.min() <= expected.max() <= grid.most


@needs_native
@settings(max_examples=80)
@example(
    (51, 1, 8), 4, 0, 1, "ties", -20, INT32, 1
)  # 4.5 of at most 9: a tie for a quotient, not for a rounded reciprocal
@given(
    shapes,
    st.sampled_from(BITS),
    st.sampled_from([0, 64]),
    st.integers(1, 11),
    st.sampled_from(KINDS),
    st.integers(-40, 20),
    st.sampled_from([INT32, INT32 // 7, 100_000, 300, 0]),
    st.integers(0, 1 << 32),
)
def test_native_sums_are_those_of_the_definition(
    shape: tuple[int, int, int],
    bits: int,
    slack: int,
    tokens: int,
    kind: str,
    exponent: int,
    most: int,
    seed: int,
) -> None:
    random = np.random.default_rng(seed)
    w = random_matrix(random, bits, *shape, True, slack)
    x = values(random, tokens, sides(w.matrix)[1], kind)
    grid = Grid(exponent, most)
    expected = sums(x, w, exponent)
    for isa in AVAILABLE:
        assert_sums(contract(isa, x, w.matrix, grid), expected, grid, isa)


@pytest.fixture(scope="module")
def large() -> dict[int, Quantised]:
    random = np.random.default_rng(7)
    return {bits: random_matrix(random, bits, 290, 250, 16, True, 64) for bits in BITS}


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("engine", AVAILABLE)
def test_narrow_and_wide_sums_are_the_same_integers(
    large: dict[int, Quantised], engine: str, bits: int
) -> None:
    x, w = torch.randn(9, 290).numpy(), large[bits].matrix
    narrow = contract(engine, x, w, Grid(-12))
    assert narrow.dtype is torch.int32
    largest = int(narrow.abs().max())
    for most in (largest, largest - 1, w.units, 1, 0):
        found = contract(engine, x, w, Grid(-12, most))
        assert found.dtype is torch.int64, "too near to the most"
        assert torch.equal(found, narrow.to(found.dtype))
    assert contract(engine, x, w, Grid(-35)).dtype is torch.int64


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("isa", AVAILABLE)
def test_node_shares_add_up_to_the_whole_product(large: dict[int, Quantised], bits: int, isa: str) -> None:
    w, x = large[bits].matrix, torch.randn(7, 290).numpy()
    expected = sums(x, large[bits], -24)
    random = np.random.default_rng(bits)
    for nodes in (1, 2, 3, 5, 20):
        cuts = [0, *sorted(random.integers(0, w.units + 1, nodes - 1).tolist()), w.units]
        total = torch.zeros(7, 250, dtype=torch.int64)
        for node, (start, stop) in enumerate(pairwise(cuts)):
            grid = Grid.among(-24, nodes) if node % 2 else Grid(-24, 1000)
            own = x[:, min(16 * start, 290) : min(16 * stop, 290)]
            total += contract(isa, own.copy(), share_of(w, start, stop), grid, 1 + node % 3)
        np.testing.assert_array_equal(total.numpy(), expected)


#: The last two are numbers: with the grid's step as a factor they overflow, or their parts are too large.
BAD = [(math.nan, -10), (math.inf, -10), (-math.inf, -10), (3e38, -10), (1e30, 20)]


@pytest.mark.parametrize(("bad", "exponent"), BAD)
@pytest.mark.parametrize("engine", AVAILABLE)
def test_non_finite_input_spoils_only_its_row(
    large: dict[int, Quantised], engine: str, bad: float, exponent: int
) -> None:
    w, x = large[4], torch.randn(11, 290).numpy()
    clean = contract(engine, x, w.matrix, Grid(exponent)).numpy()
    assert (clean != NOT_A_NUMBER).all()
    x[6, 280] = bad
    found = contract(engine, x, w.matrix, Grid(exponent)).numpy()
    others = np.arange(11) != 6
    np.testing.assert_array_equal(found[others], clean[others])
    if math.isfinite(bad):
        assert (found[6] == NOT_A_NUMBER).sum() > 200, "but where the scale is zero, or nearly so"
    else:
        assert (found[6] == NOT_A_NUMBER).all()
