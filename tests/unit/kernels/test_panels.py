"""Products with quantised matrices: bit for bit those of the definition, on every instruction set."""

import math
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.unit.kernels.instruction_sets import AVAILABLE
from tests.unit.kernels.panel_reference import (
    KINDS,
    Quantised,
    lay_out,
    product,
    random_matrix,
    sides,
    values,
)
from tests.unit.kernels.test_linear import ENGINES, open_library, opened
from tpiedge.kernels.grid import Grid
from tpiedge.kernels.library import NATIVE_TOKENS, Pool, pack_panels, pack_row_parallel
from tpiedge.kernels.linear import Arithmetic, Linear
from tpiedge.kernels.panel_matrix import PanelMatrix
from tpiedge.kernels.panels import FORMATS, PanelShape, dequantise_unit
from tpiedge.lab.bench.kernel_cases import random_panels

INT8 = Arithmetic.INT8
BITS = [4, 8]


GRID = Grid(-20)


def multiply(linear: Linear, x_TI: Tensor, w: PanelMatrix, grid: Grid = GRID) -> Tensor:
    return linear.contract(x_TI, w, grid) if w.transposed else linear.project(x_TI, w)


shapes = st.tuples(st.integers(0, 70), st.integers(1, 140), st.sampled_from([1, 8, 20, 33, 64, 100]))


@pytest.mark.skipif(not AVAILABLE, reason="native: the kernels are not built")
@settings(max_examples=40)
@given(
    shapes,
    st.sampled_from(BITS),
    st.sampled_from([0, 64]),
    st.integers(1, 11),
    st.sampled_from(KINDS),
    st.integers(0, 1 << 32),
)
def test_native_products_have_the_bits_of_the_definition(
    shape: tuple[int, int, int], bits: int, slack: int, tokens: int, kind: str, seed: int
) -> None:
    random = np.random.default_rng(seed)
    w = random_matrix(random, bits, *shape, False, slack)
    x = values(random, tokens, sides(w.matrix)[1], kind)
    expected = product(x, w)
    for isa in AVAILABLE:
        with opened(isa, INT8, 2) as linear:
            y = linear.project(torch.from_numpy(x), w.matrix).numpy()
        np.testing.assert_array_equal(y, expected, isa)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize(("outputs", "inputs"), [(1, 1), (16, 32), (17, 33), (100, 100), (40, 72)])
def test_dequantised_panels_equal_the_reference_values(outputs: int, inputs: int, bits: int) -> None:
    w = random_matrix(np.random.default_rng(1), bits, outputs, inputs, outputs, False)
    shape = PanelShape(FORMATS[f"q{bits}"], outputs, inputs)
    assert w.matrix.data_B.numel() == shape.nbytes
    read = dequantise_unit(w.matrix.data_B.numpy(), shape)
    assert np.array_equal(read, w.values.astype(np.float32))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("engine", ENGINES)
def test_f32_products_have_the_bits_of_dequantised_weights(engine: str, name: str, transposed: bool) -> None:
    w = random_panels(FORMATS[name], 300, 333, transposed=transposed)
    data = w.data_B.numpy()
    units = [dequantise_unit(data[unit * w.unit_nbytes :], w.unit_shape(unit)) for unit in range(w.units)]
    values = torch.cat([torch.from_numpy(unit.T if transposed else unit) for unit in units]).contiguous()
    assert values.shape == w.shape
    with opened(engine, threads=2) as linear:
        for tokens in (1, NATIVE_TOKENS, 40):
            x = torch.randn(tokens, sides(w)[1])
            expected = linear.contract(x, values) if transposed else linear.project(x, values)
            assert torch.equal(multiply(linear, x, w), expected)


@pytest.mark.parametrize("isa", AVAILABLE)
def test_every_scale_is_widened_exactly(isa: str) -> None:
    scales = np.arange(1 << 16, dtype=np.uint16).view(np.float16)[:, None]
    codes = np.full((1 << 16, 1), 9)
    data = torch.from_numpy(np.frombuffer(lay_out(codes, scales, 4), np.uint8).copy())
    matrix = PanelMatrix(data, FORMATS["q4"], 1 << 16, 1, 1 << 16, 0, False)
    with opened(isa, INT8) as linear:
        y = linear.project(torch.full((1, 1), 127.0), matrix)[0].numpy()
    with np.errstate(invalid="ignore"):
        expected = 127 * scales[:, 0].astype(np.float32)
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("bits", BITS)
def test_largest_codes_do_not_overflow(bits: int, transposed: bool) -> None:
    for code in (0, (1 << bits) - 1):
        data = lay_out(np.full((16, 64), code), np.ones((16, 2), np.float16), bits)
        rows, cols = (64, 16) if transposed else (16, 64)
        matrix = PanelMatrix(
            torch.tensor(list(data), dtype=torch.uint8), FORMATS[f"q{bits}"], rows, cols, rows, 0, transposed
        )
        for sign in (1.0, -1.0):
            for engine in AVAILABLE:
                with opened(engine, INT8) as linear:
                    y = multiply(linear, torch.full((5, 64), 127.0 * sign), matrix, Grid(0))
                assert y.eq(sign * 127 * 64 * (code - (1 << bits - 1))).all(), engine


@pytest.fixture(scope="module")
def large() -> dict[tuple[int, bool], Quantised]:
    random = np.random.default_rng(7)
    return {
        (4, False): random_matrix(random, 4, 250, 290, 100, False, 64),
        (8, False): random_matrix(random, 8, 250, 290, 100, False, 64),
        (4, True): random_matrix(random, 4, 290, 250, 100, True, 64),
        (8, True): random_matrix(random, 8, 290, 250, 100, True, 64),
    }


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("isa", AVAILABLE)
def test_product_bits_do_not_depend_on_batch_threads_or_isa(
    large: dict[tuple[int, bool], Quantised], isa: str, bits: int, transposed: bool
) -> None:
    w = large[bits, transposed].matrix
    x = torch.randn(200, sides(w)[1])
    with opened("portable", INT8) as linear:
        expected = multiply(linear, x, w)
    for threads in (1, 2, 3):
        with opened(isa, INT8, threads) as linear:
            assert torch.equal(multiply(linear, x, w), expected)
            for first, last in [
                (0, 1),
                (199, 200),
                (3, 5),
                (10, 17),
                (7, 40),
                (50, 199),
                *((0, tokens) for tokens in range(20)),
            ]:
                assert torch.equal(multiply(linear, x[first:last], w), expected[first:last])


@pytest.mark.parametrize("engine", AVAILABLE)
def test_column_parallel_product_refuses_a_row_parallel_matrix(
    large: dict[tuple[int, bool], Quantised], engine: str
) -> None:
    """A kernel would read the units of this matrix as panels of another size, beyond their end."""
    with opened(engine, INT8) as linear, pytest.raises(ValueError, match="row-parallel"):
        linear.project_into(torch.randn(2, 250), large[4, True].matrix, torch.empty(2, 290))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("engine", AVAILABLE)
def test_non_finite_input_spoils_only_its_row(
    large: dict[tuple[int, bool], Quantised], engine: str, bad: float
) -> None:
    w = large[4, False].matrix
    x = torch.randn(11, 290)
    with opened(engine, INT8, 2) as linear:
        clean = linear.project(x, w)
        x[6, 289] = bad
        y = linear.project(x, w)
    assert y[6].isnan().all()
    others = torch.arange(11) != 6
    assert torch.equal(y[others], clean[others])


class Unchecked(PanelMatrix):
    """Lacks the bytes that it says it has: for products that end before they read any."""

    def __post_init__(self) -> None:
        pass


BEYOND_MEMORY = 1 << 50
ONE, ONES = torch.ones(1, 16), torch.ones(16, 16)
SMALL = [
    random_matrix(np.random.default_rng(6), 4, 16, 16, 16, transposed).matrix for transposed in (False, True)
]
WIDE = [
    Unchecked(torch.empty(0, dtype=torch.uint8), FORMATS["q4"], 16, BEYOND_MEMORY, 16, 0, transposed)
    for transposed in (False, True)
]


def _contract_panels(pool: Pool, w: PanelMatrix, wide: bool) -> bool:
    sums_TO = torch.empty((1, 16), dtype=torch.int64)
    packed = pack_row_parallel(w, -10, 1 << 30, sums_TO.data_ptr())
    return pool.call("tpiedge_panels_contract", ONE.data_ptr(), 1, packed, wide)


def test_out_of_memory_product_fails_only_for_its_caller() -> None:
    with closing(Pool(open_library(), 2)) as pool, ThreadPoolExecutor(2) as at_once:

        def fail(_: int) -> None:
            packed = pack_panels(WIDE[0], ONES.data_ptr())
            with pytest.raises(MemoryError):
                pool.call("tpiedge_panels_project", ONE.data_ptr(), 1, packed, 1)

        def succeed(_: int) -> None:
            assert _contract_panels(pool, SMALL[1], False)

        for done in [at_once.submit(call, at) for at in range(200) for call in (fail, succeed)]:
            done.result()
