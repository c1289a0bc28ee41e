"""Every format of panels: its bytes, and its products' bits on every instruction set."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.kernels.format_reference import random_codes, random_made
from tests.unit.kernels.instruction_sets import AVAILABLE
from tests.unit.kernels.panel_reference import KINDS, values
from tests.unit.kernels.test_linear import opened
from tpiedge.kernels.grid import Grid
from tpiedge.kernels.linear import Arithmetic
from tpiedge.kernels.panels import (
    FORMATS,
    GROUP,
    PANEL,
    Codes,
    PanelShape,
    dequantise_output,
    dequantise_unit,
)

NAMES = list(FORMATS)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("outputs", "inputs"), [(16, 64), (40, 256), (33, 8), (20, 296), (5, 45), (16, 1120)]
)
def test_panels_keep_all_codes_and_scales(name: str, outputs: int, inputs: int) -> None:
    shape = PanelShape(FORMATS[name], outputs, inputs)
    codes = random_codes(np.random.default_rng(inputs), shape.format, outputs, inputs)
    stored = codes.panels(shape)
    assert stored.nbytes == shape.nbytes
    read = Codes.of_panels(stored.reshape(shape.panels, -1), shape)
    np.testing.assert_array_equal(read.codes_OI[:outputs], codes.codes_OI)
    np.testing.assert_array_equal(read.scales_OG[:outputs], codes.scales_OG)
    np.testing.assert_array_equal(dequantise_unit(stored, shape), codes.values())
    one = dequantise_output(stored.reshape(shape.panels, -1)[-1], shape, (outputs - 1) % PANEL)
    np.testing.assert_array_equal(one, codes.values()[-1])


@pytest.mark.parametrize(
    ("name", "bits"),
    list(zip(NAMES, (8.5, 4.5, 5, 4.75, 4.5, 5.5, 6, 5.5, 6.625, 4.5, 4.25), strict=True)),
)
def test_weight_takes_so_many_bits(name: str, bits: float) -> None:
    assert PanelShape(FORMATS[name], 32, 512).nbytes * 8 == bits * 32 * 512


def test_groups_of_a_block_share_their_first_level() -> None:
    codes = random_codes(np.random.default_rng(1), FORMATS["q4_k"], 3, 256)
    codes.scales_OG["d"][1, 5] = 7
    with pytest.raises(ValueError, match="groups of a block of q4_k have different d"):
        codes.panels(PanelShape(FORMATS["q4_k"], 3, 256))


# 1 to 5 tiles of every instruction set, and more than share what was prepared.
TOKENS = st.one_of(st.integers(1, 20), st.sampled_from([70, 300]))


@pytest.mark.skipif(not AVAILABLE, reason="native: the kernels are not built")
@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=8)
@given(
    rows=st.integers(1, 70),
    inputs=st.sampled_from([8, 16, 24, 40, 64, 128, 200, 256, 296, 576]),
    per_unit=st.sampled_from([8, 20, 64]),
    tokens=TOKENS,
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 99),
)
def test_column_parallel_products_have_the_bits_of_the_definition(
    name: str, rows: int, inputs: int, per_unit: int, tokens: int, kind: str, seed: int
) -> None:
    random = np.random.default_rng(seed)
    made = random_made(random, FORMATS[name], rows, inputs, per_unit, False)
    x = values(random, min(tokens, 3), inputs, kind)[np.arange(tokens) % 3 % min(tokens, 3)]
    expected = made.products(x[:3])[np.arange(tokens) % min(tokens, 3)]
    for isa in AVAILABLE:
        with opened(isa, Arithmetic.INT8, 2) as linear:
            y = linear.project(torch.from_numpy(x), made.matrix).numpy()
        np.testing.assert_array_equal(y, expected, isa)


@pytest.mark.skipif(not AVAILABLE, reason="native: the kernels are not built")
@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=8)
@given(
    inputs=st.integers(1, 300),
    outputs=st.sampled_from([1, 16, 40]),
    per_unit=st.sampled_from([32, 64, 128, 256]),
    tokens=TOKENS,
    kind=st.sampled_from(["plain", "zeros", "ties"]),
    fine=st.booleans(),
    seed=st.integers(0, 99),
)
def test_row_parallel_sums_have_the_bits_of_the_definition(
    name: str, inputs: int, outputs: int, per_unit: int, tokens: int, kind: str, fine: bool, seed: int
) -> None:
    random = np.random.default_rng(seed)
    made = random_made(random, FORMATS[name], inputs, outputs, per_unit, True)
    x = values(random, min(tokens, 3), inputs, kind)[np.arange(tokens) % min(tokens, 3)]
    grid = Grid(-40 if fine else -12)
    expected = made.sums(x[:3], grid.exponent)[np.arange(tokens) % min(tokens, 3)]
    for isa in AVAILABLE:
        with opened(isa, Arithmetic.INT8, 2) as linear:
            y = linear.contract(torch.from_numpy(x), made.matrix, grid).numpy()
        np.testing.assert_array_equal(y, expected, isa)


@pytest.mark.parametrize("name", NAMES)
def test_integer_sums_of_a_group_are_exact_in_f32(name: str) -> None:
    form = FORMATS[name]
    assert int(np.abs(form.values.astype(int)).max()) * 127 * GROUP < 1 << 24
