"""Quantised rows of the KV cache: the bytes that the format names, the same from torch and every instruction set."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from torch import Tensor

from tests.unit.kernels.kv_rows import decode, encode
from tests.unit.kernels.paged import PagedCache
from tpiedge.kernels.attention import append_pages
from tpiedge.kernels.kv_format import KV_GROUP, KVFormat
from tpiedge.kernels.library import Pool
from tpiedge.wire.fields import KVPrecision

WIDTHS = [1, 5, 31, 32, 33, 64, 80, 100, 128, 256, 500, 512]
FORMATS = ["q8", "q4"]


def test_q8_rows_have_the_documented_bytes() -> None:
    x = torch.zeros(1, 1, 34)
    x[0, 0, :4] = torch.tensor([63.5, -63.5, 0.25, 0.75])  # halves go to the even code
    x[0, 0, 32:] = torch.tensor([1.0, -0.5])
    row = encode(x, KVFormat("q8", 34))[0, 0]
    scales = row[:4].view(torch.float16)
    assert scales[0] == 0.5
    assert scales[1] == math.ceil(2**17 / 127) / 2**17  # 10 bits below 2**-7
    assert row[4:].view(torch.int8).tolist() == [127, -127, 0, 2] + [0] * 28 + [127, -63]


def test_q4_rows_have_the_documented_bytes() -> None:
    x = torch.full((1, 1, 35), -10.0)
    x[0, 0, :3] = torch.tensor([20.0, -8.0, -5.0])  # codes 15, 1 and the even one of 2 and 3
    x[0, 0, 17] = 0.0
    x[0, 0, 32:] = torch.tensor([0.0, 15.0, 7.0])
    row = encode(x, KVFormat("q4", 35))[0, 0]
    assert row[:8].view(torch.float16).tolist() == [2.0, -10.0, 1.0, 0.0]
    assert row[8:].tolist() == [0x0F, 0x51, 0x02] + [0] * 13 + [0x70, 0x0F]


def hostile(width: int, magnitude: float) -> Tensor:
    """[T, K, d] with rows of every kind."""
    x = torch.randn(9, 3, width) * magnitude
    x[0, 0, 0], x[1, 1, width // 2], x[2, 2, -1] = math.nan, math.inf, -math.inf
    x[3], x[4], x[5], x[6] = 0.0, 2.5, x[5].abs(), -x[6].abs()
    x[7, :, ::2] = -0.0
    return x


@pytest.mark.parametrize("precision", FORMATS)
@pytest.mark.parametrize("width", WIDTHS)
def test_native_kv_bytes_equal_torch(pool: Pool, width: int, precision: str) -> None:
    format_ = KVFormat(precision, width)
    for magnitude in (1.0, 1e-3, 1e-6, 1e-8, 1e-40, 3e4, 1e5, 1e30, 1e38):
        k, v = hostile(width, magnitude), hostile(width, magnitude)
        cache = PagedCache(format_, 3)
        table = cache.table(9)
        append_pages(k, v, cache.spans((9, 0, table)), cache.layout, pool)
        for rows, x in zip(cache.rows(table, 9), (k, v), strict=True):
            assert torch.equal(rows.transpose(0, 1), encode(x, format_)), magnitude


NUMBERS = st.floats(-6e4, 6e4, width=32)


@given(
    x=arrays.arrays(
        np.float32, st.tuples(st.integers(1, 2), st.integers(1, 2), st.integers(1, 70)), elements=NUMBERS
    ),
    precision=st.sampled_from(FORMATS),
)
def test_kv_quantisation_error_is_within_half_a_step(x: np.ndarray, precision: str) -> None:
    x_TKd = torch.from_numpy(x)
    format_ = KVFormat(precision, x.shape[2])
    error = (decode(encode(x_TKd, format_), format_) - x_TKd).abs()
    for start in range(0, x.shape[2], KV_GROUP):
        group = x_TKd[..., start : start + KV_GROUP]
        low, high = group.amin(-1, keepdim=True), group.amax(-1, keepdim=True)
        if precision == "q8":
            step = group.abs().amax(-1, keepdim=True) / 127
        else:
            step = (high - low + low.abs() * 2**-10 + 2**-24) / 15
        # The scale is an f16 (2**-10, or 2**-24 where it is subnormal) above the step.
        bound = (step * (1 + 2**-10) + 2**-24) / 2 + group.abs().amax(-1, keepdim=True) * 2**-22
        assert (error[..., start : start + KV_GROUP] <= bound).all()


@pytest.mark.parametrize("precision", FORMATS)
def test_non_finite_value_loses_only_its_group(precision: str) -> None:
    for broken in (math.nan, math.inf, -math.inf, 3e38):
        x = torch.randn(1, 1, 100)
        x[0, 0, 40] = broken
        format_ = KVFormat(precision, 100)
        row = encode(x, format_)
        lost = decode(row, format_)[0, 0].isnan()
        assert lost[32:64].all()
        assert not lost[:32].any()
        assert not lost[64:].any()
        assert row[0, 0, format_.scales_nbytes :][: KV_GROUP * format_.bits // 8 * 2][-4:].eq(0).all()


PRECISIONS: list[KVPrecision] = ["f32", "bf16", "q8", "q4"]
COUNTS = range(64, 513, 64)


def padding(format_: KVFormat, positions: int) -> float:
    used = 2 * positions * format_.row_nbytes
    return -used % 4096 / (used + -used % 4096)


@given(st.sampled_from(PRECISIONS), st.integers(1, 512))
def test_kv_page_size_is_aligned_and_minimal(precision: KVPrecision, width: int) -> None:
    format_ = KVFormat(precision, width)
    positions = format_.page_positions
    assert positions in COUNTS
    assert format_.part_nbytes % 4096 == 0
    assert 0 <= format_.part_nbytes - 2 * positions * format_.row_nbytes < 4096
    if padding(format_, positions) > 1 / 16:
        assert all(padding(format_, count) >= padding(format_, positions) for count in COUNTS)
    else:
        assert all(padding(format_, count) > 1 / 16 for count in COUNTS if count < positions)
