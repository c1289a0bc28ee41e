import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpiedge.kernels.panels import PanelShape
from tpiedge.kernels.quantise import dequantise_unit
from tpiedge.pack.dtypes import Codes
from tpiedge.pack.panel_writer import panels_of


def random_codes(bits: int, outputs: int, inputs: int, seed: int = 0) -> Codes:
    random = np.random.default_rng(seed)
    codes = random.integers(0, 1 << bits, (outputs, inputs), np.uint8)
    scales = random.standard_normal((outputs, -(-inputs // 32))).astype(np.float16)
    return Codes(bits, codes, scales)


@settings(max_examples=60)
@given(
    bits=st.sampled_from([4, 8]),
    outputs=st.integers(1, 40),
    inputs=st.integers(1, 100),
    seed=st.integers(0, 9),
)
def test_a_unit_holds_what_the_codes_say(bits: int, outputs: int, inputs: int, seed: int) -> None:
    codes, shape = random_codes(bits, outputs, inputs, seed), PanelShape(bits, outputs, inputs)
    unit = panels_of(codes, shape)
    assert unit.shape == (shape.nbytes,)
    values = codes.values()
    np.testing.assert_array_equal(dequantise_unit(unit, shape), values)
    assert values[0, 0] == np.float32(codes.scales_OG[0, 0]) * (int(codes.codes_OI[0, 0]) - (1 << (bits - 1)))
    assert codes.squares() == pytest.approx(float(np.square(values.astype(np.float64)).sum()), rel=1e-5)


def test_cut_as_an_array() -> None:
    codes = random_codes(8, 20, 100)
    np.testing.assert_array_equal(codes[3:9].values(), codes.values()[3:9])
    np.testing.assert_array_equal(codes[:, 32:90].values(), codes.values()[:, 32:90])
    with pytest.raises(ValueError, match="input 33 is inside a group"):
        codes[:, 33:]
