"""Products with quantised matrices: bit for bit those of the definition, on every instruction set."""

import math
from concurrent.futures import ThreadPoolExecutor

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
    share_of,
    values,
)
from tests.unit.kernels.test_linear import open_library, opened
from tpiedge.kernels.arithmetic import Arithmetic
from tpiedge.kernels.grid import Grid
from tpiedge.kernels.library import MAX_PRODUCTS
from tpiedge.kernels.linear import Linear
from tpiedge.kernels.panel_matrix import PanelMatrix
from tpiedge.kernels.panels import PanelShape
from tpiedge.kernels.quantise import dequantise_unit
from tpiedge.kernels.shared_library import KernelLibrary

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
    """Sums of row-parallel matrices: test_panel_sums.py."""
    random = np.random.default_rng(seed)
    w = random_matrix(random, bits, *shape, False, slack)
    x = values(random, tokens, w.matrix.inputs, kind)
    expected = product(x, w)
    for isa in AVAILABLE:
        with opened(isa, INT8, 2) as linear:
            y = linear.project(torch.from_numpy(x), w.matrix).numpy()
        np.testing.assert_array_equal(y, expected, isa)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize(("outputs", "inputs"), [(1, 1), (16, 32), (17, 33), (100, 100), (40, 72)])
def test_the_reference_and_the_project_read_the_same_format(outputs: int, inputs: int, bits: int) -> None:
    w = random_matrix(np.random.default_rng(1), bits, outputs, inputs, outputs, False)
    shape = PanelShape(bits, outputs, inputs)
    assert w.matrix.data_B.numel() == shape.nbytes
    read = dequantise_unit(w.matrix.data_B.numpy(), shape)
    assert np.array_equal(read, w.values.astype(np.float32))


@pytest.mark.parametrize("isa", AVAILABLE)
def test_every_scale_is_widened_exactly(isa: str) -> None:
    scales = np.arange(1 << 16, dtype=np.uint16).view(np.float16)[:, None]
    codes = np.full((1 << 16, 1), 9)
    data = torch.from_numpy(np.frombuffer(lay_out(codes, scales, 4), np.uint8).copy())
    matrix = PanelMatrix(data, 4, 1 << 16, 1, 1 << 16, 0, False)
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
            torch.tensor(list(data), dtype=torch.uint8), bits, rows, cols, rows, 0, transposed
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
def test_bits_depend_neither_on_other_tokens_nor_threads_nor_instruction_set(
    large: dict[tuple[int, bool], Quantised], isa: str, bits: int, transposed: bool
) -> None:
    w = large[bits, transposed].matrix
    x = torch.randn(200, w.inputs)
    with opened("portable", INT8) as linear:
        expected = multiply(linear, x, w)
    for threads in (1, 2, 3):
        with opened(isa, INT8, threads) as linear:
            assert torch.equal(multiply(linear, x, w), expected)
            for first, last in [(0, 1), (199, 200), (3, 5), (10, 17), (7, 40), (50, 199), *_prefixes(20)]:
                assert torch.equal(multiply(linear, x[first:last], w), expected[first:last])


def _prefixes(most: int) -> list[tuple[int, int]]:
    return [(0, tokens) for tokens in range(most)]


def test_tokens_that_do_not_pass_together_change_no_bit() -> None:
    """More activations than a core's cache is to hold."""
    w = random_matrix(np.random.default_rng(3), 4, 20, 8200, 20, False)
    x = torch.randn(230, 8200)
    with Linear(INT8, 2, open_library()) as linear:
        y = linear.project(x, w.matrix)
        for token in (0, 71, 72, 73, 100, 229):
            assert torch.equal(linear.project(x[token : token + 1], w.matrix)[0], y[token])


@pytest.mark.parametrize("engine", AVAILABLE)
@pytest.mark.parametrize("bits", BITS)
def test_shares_make_the_whole(large: dict[tuple[int, bool], Quantised], bits: int, engine: str) -> None:
    w = large[bits, False].matrix
    x = torch.randn(5, 290)
    with opened(engine, INT8, 2) as linear:
        whole = linear.project(x, w)
        for cut in range(4):
            y = torch.cat([linear.project(x, share_of(w, *ends)) for ends in ((0, cut), (cut, 3))], 1)
            assert torch.equal(y, whole)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("engine", AVAILABLE)
def test_what_is_no_number_spoils_its_row_alone(
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


@pytest.mark.parametrize("engine", AVAILABLE)
def test_empty_shares_and_steps(engine: str) -> None:
    random = np.random.default_rng(0)
    for bits in BITS:
        none_out = random_matrix(random, bits, 0, 64, 32, False).matrix
        some = random_matrix(random, bits, 40, 64, 32, False).matrix
        with opened(engine, INT8, 2) as linear:
            assert linear.project(torch.randn(3, 64), none_out).shape == (3, 0)
            assert linear.project(torch.randn(0, 64), some).shape == (0, 40)


@pytest.mark.parametrize("isa", AVAILABLE)
def test_many_products_of_every_kind_at_once(isa: str) -> None:
    random = np.random.default_rng(2)
    x = torch.randn(6, 90)
    many: list[Tensor | PanelMatrix] = [
        random_matrix(random, 4, 70, 90, 32, False).matrix,
        torch.randn(13, 90).bfloat16(),
        random_matrix(random, 8, 0, 90, 32, False).matrix,
        random_matrix(random, 8, 33, 90, 40, False).matrix,
    ]
    assert len(many) == MAX_PRODUCTS
    with opened(isa, INT8, 2) as linear:
        for y, w in zip(linear.project_many(x, many), many, strict=True):
            assert torch.equal(y, linear.project(x, w))
            assert torch.equal(y[2:3], linear.project(x[2:3], w))


@pytest.mark.parametrize("engine", ["torch", *AVAILABLE])
def test_other_weights_meet_the_activations_as_in_f32(engine: str) -> None:
    x, w = torch.randn(3, 90), torch.randn(50, 90).bfloat16()
    with opened(engine, INT8) as linear, opened(engine, Arithmetic.F32) as plain:
        assert torch.equal(linear.project(x, w), plain.project(x, w))
        assert torch.equal(linear.contract(x[:, :50], w), plain.contract(x[:, :50], w))


def test_activations_may_be_strided() -> None:
    w = random_matrix(np.random.default_rng(2), 4, 70, 90, 32, False).matrix
    wide = torch.randn(5, 180)
    with Linear(INT8, 1, open_library()) as linear:
        assert torch.equal(linear.project(wide[:, ::2], w), linear.project(wide[:, ::2].contiguous(), w))


def test_one_pool_may_serve_two_threads() -> None:
    random = np.random.default_rng(8)
    weights = [random_matrix(random, 4, 100, 90, 33, transposed).matrix for transposed in (False, True)]
    inputs = [torch.randn(9, w.inputs) for w in weights]
    with Linear(INT8, 2, open_library()) as linear:
        expected = [multiply(linear, x, w) for x, w in zip(inputs, weights, strict=True)]

        def work(at: int) -> bool:
            return all(
                torch.equal(multiply(linear, inputs[at], weights[at]), expected[at]) for _ in range(200)
            )

        with ThreadPoolExecutor(2) as at_once:
            assert list(at_once.map(work, range(2))) == [True, True]


COLUMN = random_matrix(np.random.default_rng(0), 4, 20, 64, 20, False).matrix
ROW = random_matrix(np.random.default_rng(0), 4, 64, 20, 32, True).matrix


@pytest.mark.parametrize(
    ("x", "w", "says"),
    [
        (torch.ones(1, 63), COLUMN, "not f32 \\[tokens, 64\\]"),
        (torch.ones(64), COLUMN, "activations"),
        (torch.ones(1, 64).double(), COLUMN, "activations"),
        (torch.ones(1, 64, device="meta"), COLUMN, "main memory"),
        (torch.ones(1, 20), ROW, "row-parallel"),
    ],
)
def test_wrong_tensors_are_refused(x: Tensor, w: PanelMatrix, says: str) -> None:
    with Linear(INT8, 1, None) as linear, pytest.raises(ValueError, match=says):
        linear.project(x, w)


def test_torch_refuses_quantised_matrices() -> None:
    with Linear(INT8, 1, None) as linear:
        for multiplied in (
            lambda: linear.project(torch.ones(1, 64), COLUMN),
            lambda: linear.project_into(torch.ones(1, 64), COLUMN, torch.empty(1, 20)),
            lambda: linear.contract(torch.ones(1, 64), ROW, GRID),
        ):
            with pytest.raises(ValueError, match="need the native kernels"):
                multiplied()


def test_a_column_parallel_matrix_is_not_contracted() -> None:
    with Linear(INT8, 1, None) as linear, pytest.raises(ValueError, match="column-parallel"):
        linear.contract(torch.ones(1, 20), COLUMN, GRID)


@pytest.mark.parametrize(
    ("nbytes", "bits", "rows", "rows_per_unit", "unit_nbytes"),
    [
        (COLUMN.data_B.numel() - 1, 4, 20, 20, 0),
        (COLUMN.data_B.numel(), 8, 20, 20, 0),
        (COLUMN.data_B.numel(), 5, 20, 20, 0),
        (COLUMN.data_B.numel(), 4, 20, 0, 0),
        (COLUMN.data_B.numel(), 4, -1, 20, 0),
        (2 * COLUMN.data_B.numel(), 4, 40, 20, COLUMN.data_B.numel() - 1),
    ],
)
def test_a_matrix_has_all_its_bytes(
    nbytes: int, bits: int, rows: int, rows_per_unit: int, unit_nbytes: int
) -> None:
    with pytest.raises(ValueError, match="weights of"):
        PanelMatrix(torch.zeros(nbytes, dtype=torch.uint8), bits, rows, 64, rows_per_unit, unit_nbytes, False)


def test_libraries_name_an_instruction_set_that_is_there() -> None:
    found = open_library()
    for isa in AVAILABLE:
        assert KernelLibrary(found.dll, isa).isa == isa
    assert found.isa == AVAILABLE[-1]
