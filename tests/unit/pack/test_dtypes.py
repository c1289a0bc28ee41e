import numpy as np
import pytest
import torch

from tpiedge.pack.dtypes import bf16_from_f32, convert, f32_from_bf16
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
