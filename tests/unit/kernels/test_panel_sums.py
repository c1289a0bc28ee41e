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
from tests.unit.kernels.integer_model import add_steps
from tests.unit.kernels.panel_reference import (
    F32,
    I64,
    KINDS,
    NOT_A_NUMBER,
    Quantised,
    added,
    random_matrix,
    share_of,
    sums,
    values,
)
from tests.unit.kernels.test_linear import open_library, opened
from tpiedge.kernels.arithmetic import Arithmetic
from tpiedge.kernels.grid import Grid
from tpiedge.kernels.linear import Linear
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
    """int32 holds nothing above the grid's most."""
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
    x = values(random, tokens, w.matrix.inputs, kind)
    grid = Grid(exponent, most)
    expected = sums(x, w, exponent)
    for isa in AVAILABLE:
        assert_sums(contract(isa, x, w.matrix, grid), expected, grid, isa)


def test_parts_are_rounded_before_they_are_added() -> None:
    """Halves to even; where one is no number, or above 2**46 steps, so is the sum."""
    assert added(np.float32([0.5, 1.5, 2.5, -0.5, -1.5])) == 0 + 2 + 2 - 0 - 2
    assert added(np.float32([1 << 46, -(1 << 46), 1 << 46])) == 1 << 46
    for bad in (math.nan, math.inf, -math.inf, float(np.nextafter(np.float32(1 << 46), np.float32(np.inf)))):
        assert added(np.float32([1, bad, 1])) == NOT_A_NUMBER


@pytest.fixture(scope="module")
def large() -> dict[int, Quantised]:
    random = np.random.default_rng(7)
    return {bits: random_matrix(random, bits, 290, 250, 16, True, 64) for bits in BITS}


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("engine", AVAILABLE)
def test_what_is_narrow_and_what_is_wide_are_the_same_integers(
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
def test_shares_of_any_nodes_make_the_whole(large: dict[int, Quantised], bits: int, isa: str) -> None:
    """Each in 32 bits or in 64 as it may, with any number of threads."""
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


@pytest.mark.parametrize("engine", AVAILABLE)
def test_int32_sums_of_all_nodes_add_up_to_int32(engine: str) -> None:
    """Each node's are at most a part of what int32 holds."""
    w = random_matrix(np.random.default_rng(1), 8, 64, 40, 16, True)
    x = np.full((1, 64), 3, np.float32)
    for nodes in (1, 2, 5):
        grid = Grid.among(0, nodes)
        assert nodes * grid.most <= INT32
        for exponent in range(-40, 0):
            found = contract(engine, x, w.matrix, Grid(exponent, grid.most))
            if found.dtype is torch.int32:
                assert int(found.abs().max()) * nodes <= INT32


#: The last two are numbers: with the grid's step as a factor they overflow, or their parts are too large.
BAD = [(math.nan, -10), (math.inf, -10), (-math.inf, -10), (3e38, -10), (1e30, 20)]


@pytest.mark.parametrize(("bad", "exponent"), BAD)
@pytest.mark.parametrize("engine", AVAILABLE)
def test_what_is_no_number_spoils_its_row_alone(
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


@pytest.mark.parametrize("most", [INT32, 0])
@pytest.mark.parametrize(("inputs", "outputs"), [(8200, 20), (40, 1100)])
def test_tokens_whose_sums_or_activations_do_not_pass_together_change_no_integer(
    inputs: int, outputs: int, most: int
) -> None:
    w = random_matrix(np.random.default_rng(4), 8, inputs, outputs, 33, True)
    x, grid = torch.randn(1000, inputs), Grid(-15, most)
    with Linear(INT8, 2, open_library()) as linear:
        y = linear.contract(x, w.matrix, grid)
        assert y.dtype is (torch.int64 if most == 0 else torch.int32)
        for token in (0, 400, 401, 944, 952, 999):
            assert torch.equal(linear.contract(x[token : token + 1], w.matrix, grid)[0], y[token])


@pytest.mark.parametrize("engine", AVAILABLE)
def test_one_token_that_is_too_large_makes_all_wide(engine: str, large: dict[int, Quantised]) -> None:
    w, x = large[8].matrix, torch.randn(200, 290).numpy()
    narrow = contract(engine, x, w, Grid(-12))
    x[150] *= np.float32(1e6)
    wide = contract(engine, x, w, Grid(-12))
    assert (narrow.dtype, wide.dtype) == (torch.int32, torch.int64)
    others = torch.arange(200) != 150
    assert torch.equal(narrow[others].long(), wide[others])


@pytest.mark.parametrize("engine", AVAILABLE)
def test_empty_shares_and_steps(engine: str) -> None:
    random, grid = np.random.default_rng(0), Grid(-20)
    for bits in BITS:
        none = random_matrix(random, bits, 0, 64, 32, True).matrix
        some = random_matrix(random, bits, 40, 64, 32, True).matrix
        found = contract(engine, np.zeros((3, 0), np.float32), none, grid)
        assert torch.equal(found, torch.zeros((3, 64), dtype=torch.int32))
        assert contract(engine, np.zeros((0, 40), np.float32), some, grid).shape == (0, 64)


def test_a_sum_needs_a_grid() -> None:
    w = random_matrix(np.random.default_rng(0), 4, 20, 64, 20, True).matrix
    with Linear(INT8, 1, None) as linear, pytest.raises(ValueError, match="grid"):
        linear.contract(torch.ones(1, 20), w)


def test_a_sum_that_is_no_number_stays_none() -> None:
    total = torch.tensor([1, NOT_A_NUMBER, NOT_A_NUMBER, 5])
    add_steps(total, torch.tensor([2, 7, NOT_A_NUMBER, NOT_A_NUMBER]))
    assert total.tolist() == [3, NOT_A_NUMBER, NOT_A_NUMBER, NOT_A_NUMBER]
