import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tpiedge.kernels.panels import PanelShape
from tpiedge.kernels.quantise import dequantise_unit
from tpiedge.pack.dtypes import Codes, bf16_from_f32, convert, f32_from_bf16
from tpiedge.pack.panel_writer import panels_of
from tpiedge.pack.specs import Precision


def test_every_bf16_value_round_trips_through_f32() -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    wide = f32_from_bf16(bits)
    nan = np.isnan(wide)
    back = bf16_from_f32(wide)
    np.testing.assert_array_equal(back[~nan], bits[~nan])
    assert np.isnan(f32_from_bf16(back[nan])).all()


@pytest.mark.parametrize(
    ("bits", "rounded"),
    [
        (0x3F808000, 0x3F80),  # a tie goes to even
        (0x3F818000, 0x3F82),
        (0x3F808001, 0x3F81),
        (0x7F7FFFFF, 0x7F80),  # the largest float rounds to infinity
        (0x7F800001, 0x7FC0),  # a NaN with low bits only is not infinity
        (0xFFFFFFFF, 0xFFFF),
        (0x80000000, 0x8000),
    ],
)
def test_bf16_rounding_handles_ties_infinity_and_nan(bits: int, rounded: int) -> None:
    assert bf16_from_f32(np.array([bits], np.uint32).view(np.float32))[0] == rounded


def test_f16_converts_to_f32_and_bf16() -> None:
    half = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    half = half[~np.isnan(half)]
    np.testing.assert_array_equal(convert(half, "F16", Precision.F32), half.astype(np.float32))
    expected = torch.from_numpy(half.copy()).to(torch.bfloat16)
    assert torch.equal(torch.from_numpy(convert(half, "F16", Precision.BF16)).view(torch.bfloat16), expected)


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
def test_panel_unit_dequantises_to_its_codes(bits: int, outputs: int, inputs: int, seed: int) -> None:
    codes, shape = random_codes(bits, outputs, inputs, seed), PanelShape(bits, outputs, inputs)
    unit = panels_of(codes, shape)
    assert unit.shape == (shape.nbytes,)
    values = codes.values()
    np.testing.assert_array_equal(dequantise_unit(unit, shape), values)
    assert values[0, 0] == np.float32(codes.scales_OG[0, 0]) * (int(codes.codes_OI[0, 0]) - (1 << (bits - 1)))
    assert codes.squares() == pytest.approx(float(np.square(values.astype(np.float64)).sum()), rel=1e-5)


def test_codes_are_sliced_like_an_array() -> None:
    codes = random_codes(8, 20, 100)
    np.testing.assert_array_equal(codes[3:9].values(), codes.values()[3:9])
    np.testing.assert_array_equal(codes[:, 32:90].values(), codes.values()[:, 32:90])
    with pytest.raises(ValueError, match="input 33 is inside a group"):
        codes[:, 33:]
