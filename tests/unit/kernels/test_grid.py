import math
from collections.abc import Iterator
from contextlib import closing
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.kernels.instruction_sets import AVAILABLE
from tests.unit.kernels.test_linear import open_library
from tpiedge.kernels.elementwise import rms_norm
from tpiedge.kernels.grid import MOST, NOT_A_NUMBER, BlockEnd, Grid, add_sums, widened
from tpiedge.kernels.library import Pool

INT32 = (1 << 31) - 1
# Those between two f32, on both sides of the middle, and those where f64 is too coarse to tell.
EDGES = [
    0,
    1,
    (1 << 24) + 1,
    (1 << 24) + 3,
    INT32,
    (1 << 54) + (1 << 30) + 1,
    (1 << 54) + (1 << 30),
    MOST,
    MOST + 1,
]

integers = st.integers(-MOST, MOST) | st.sampled_from([sign * edge for edge in EDGES for sign in (1, -1)])
exponents = st.integers(-100, 60)


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    if not AVAILABLE:
        pytest.skip("native: the kernels are not built")
    opened = Pool(open_library(), 1)
    yield opened
    opened.close()


def nearest(value: int) -> float:
    low = np.float32(math.ldexp(value >> max(0, value.bit_length() - 24), max(0, value.bit_length() - 24)))
    around = [low, np.nextafter(low, np.float32(-np.inf)), np.nextafter(low, np.float32(np.inf))]
    return float(min(around, key=lambda one: (abs(Fraction(float(one)) - value), one.view(np.int32) & 1)))


@given(integers, exponents)
def test_a_sum_is_rounded_to_f32_once(value: int, exponent: int) -> None:
    found = widened(torch.tensor([[value]]), Grid(exponent))
    if abs(value) > MOST:
        assert found.isnan().all()
    else:
        assert float(found) == nearest(value) * 2.0**exponent


@given(
    st.lists(integers | st.just(NOT_A_NUMBER), min_size=1, max_size=40),
    exponents,
    st.floats(-1e9, 1e9, width=32),
)
def test_native_and_torch_add_wide_sums_with_the_same_bits(
    pool: Pool, values: list[int], exponent: int, x: float
) -> None:
    sums = torch.tensor([values])
    one, other = torch.full(sums.shape, x), torch.full(sums.shape, x)
    add_sums(one, sums, Grid(exponent), pool)
    add_sums(other, sums, Grid(exponent), None)
    np.testing.assert_array_equal(one.numpy(), other.numpy())
    assert torch.equal(one.isnan(), (sums.long() < -MOST) | (sums.long() > MOST))


def test_add_sums_refuses_mismatched_tensors(pool: Pool) -> None:
    x, sums, grid = torch.zeros(2, 4), torch.zeros((2, 4), dtype=torch.int32), Grid(0)
    for bad_x, bad_sums in (
        (x.double(), sums),
        (x, sums.short()),
        (x, sums.float()),
        (x, sums[:1]),
        (torch.zeros(4, 2).t(), sums),
        (x, torch.zeros((2, 8), dtype=torch.int32)[:, ::2]),
    ):
        with pytest.raises(ValueError, match="do not fit"):
            add_sums(bad_x, bad_sums, grid, pool)


ENDS = {
    "bias": BlockEnd(torch.linspace(-1, 1, 600)),
    "norm": BlockEnd(norm_H=torch.linspace(0.5, 1, 600), eps=1e-5),
    "factor": BlockEnd(factor=0.22),
    "scale": BlockEnd(scale=0.7),
    "all": BlockEnd(torch.linspace(-1, 1, 600), torch.linspace(0.5, 1, 600), 1e-5, -1.3, 0.7),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float32])
def test_the_end_of_a_block_equals_its_parts(pool: Pool, dtype: torch.dtype, end: BlockEnd) -> None:
    for isa in AVAILABLE:
        with closing(Pool(open_library(isa), 2)) as other:
            for tokens in (0, 1, 3, 200):
                x, grid = torch.randn(tokens, 600), None if dtype is torch.float32 else Grid(-12)
                sums = (torch.randn(tokens, 600) * (1 if grid is None else 5000)).to(dtype)
                y = sums if grid is None else widened(sums, grid)
                y = y if end.bias_H is None else y + end.bias_H
                plain = y if end.norm_H is None else rms_norm(y, end.norm_H, end.eps)
                y = y if end.norm_H is None else rms_norm(y, end.norm_H, end.eps, pool)
                found, by_torch = x.clone(), x.clone()
                add_sums(found, sums, grid, other, end)
                assert torch.equal(found, end.scale * (x + end.factor * y)), isa
                add_sums(by_torch, sums, grid, None, end)
                assert torch.equal(by_torch, end.scale * (x + end.factor * plain))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float32])
def test_the_end_of_two_sums_adds_their_norms(dtype: torch.dtype) -> None:
    norms, last = (torch.linspace(0.5, 1, 600), torch.linspace(1, -1, 600)), torch.linspace(2, 1, 600)
    end = BlockEnd(None, last, 1e-5, 0.5, 0.7, norms)
    for isa in AVAILABLE:
        with closing(Pool(open_library(isa), 2)) as other:
            for tokens in (0, 1, 3, 200):
                x, grid = torch.randn(tokens, 600), None if dtype is torch.float32 else Grid(-12)
                sums = (torch.randn(2 * tokens, 600) * (1 if grid is None else 5000)).to(dtype)
                for pool, found in ((other, x.clone()), (None, x.clone())):
                    parts = (sums if grid is None else widened(sums, grid)).chunk(2)
                    first, second = (
                        rms_norm(y, norm, 1e-5, pool) for y, norm in zip(parts, norms, strict=True)
                    )
                    add_sums(found, sums, grid, pool, end)
                    y = rms_norm(first + second, last, 1e-5, pool)
                    assert torch.equal(found, end.scale * (x + end.factor * y)), isa
    with pytest.raises(ValueError, match="do not fit"):
        add_sums(torch.zeros(2, 600), torch.zeros(2, 600), None, None, end)


def test_the_end_of_a_block_refuses_other_widths(pool: Pool) -> None:
    x = torch.zeros(2, 4)
    for end in (BlockEnd(torch.zeros(5)), BlockEnd(norm_H=torch.zeros(4).double())):
        for of in (pool, None):
            with pytest.raises(ValueError, match="at a block's end"):
                add_sums(x, x.int(), Grid(0), of, end)


def test_grid_range_is_divided_among_nodes() -> None:
    assert [Grid.among(-9, nodes).most for nodes in (1, 2, 3)] == [INT32, INT32 // 2, INT32 // 3]
    assert Grid(-9) == Grid.among(-9, 1)
