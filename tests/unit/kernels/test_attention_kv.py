"""Attention by the native kernels, and of long prompts: against float64 of what the codes stand for, and bit
for bit against itself."""

import math

import pytest
import torch
from torch import Tensor

from tests.unit.kernels.kv_rows import QuantisedRows, Rows, encode
from tests.unit.kernels.paged import attend
from tests.unit.kernels.test_attention import HEADS, naive
from tpiedge.kernels.attention import kv_of_heads
from tpiedge.kernels.kv_format import KVFormat
from tpiedge.kernels.library import Pool

STORED = ["f32", "bf16", "q8", "q4"]
WINDOWS = [None, 1, 5, 64, 70]
#: Each two of heads, windows and precisions meet.
MET = [
    (heads, window, STORED[(i + j) % len(STORED)])
    for i, heads in enumerate(HEADS)
    for j, window in enumerate(WINDOWS)
]


def stored(x_KSd: Tensor, precision: str) -> tuple[Rows, Tensor]:
    if precision in ("f32", "bf16"):
        whole = torch.full((x_KSd.shape[0], x_KSd.shape[1] + 7, x_KSd.shape[2]), math.nan)
        whole = whole.to(torch.float32 if precision == "f32" else torch.bfloat16)
        whole[:, :-7] = x_KSd
        return whole[:, :-7], whole[:, :-7].float()
    format_ = KVFormat(precision, x_KSd.shape[2])
    whole = torch.full((x_KSd.shape[0], x_KSd.shape[1] + 7, format_.row_nbytes), 0x7E, dtype=torch.uint8)
    whole[:, :-7] = encode(x_KSd.transpose(0, 1), format_).transpose(0, 1)
    rows = QuantisedRows(format_, whole[:, :-7])
    return rows, rows.numbers()


@pytest.mark.parametrize(("heads", "window", "precision"), MET)
def test_equals_the_definition(pool: Pool, heads: str, window: int | None, precision: str) -> None:
    kv = HEADS[heads]
    for tokens, before, width in [
        (1, 0, 64),
        (1, 200, 128),
        (5, 63, 100),
        (16, 3, 20),
        (40, 30, 80),
        (2, 130, 256),
        (3, 9, 7),
    ]:
        (k, k_KSd), (v, v_KSd) = (
            stored(torch.randn(max(kv) + 1, before + tokens, width), precision) for _ in "kv"
        )
        q = torch.randn(tokens, len(kv), width)
        out = attend(q, k, v, kv, before, window=window, pool=pool)
        assert out.dtype is torch.float32
        expected = naive(q, k_KSd, v_KSd, kv, before, window)
        atol = 5e-6 if isinstance(k, QuantisedRows) else 2e-6
        torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=atol)


@pytest.mark.parametrize("precision", STORED)
def test_of_a_long_prompt_after_others(pool: Pool, precision: str) -> None:
    kv, tokens, before = kv_of_heads(0, 4, 2), 130, 75
    (k, k_KSd), (v, v_KSd) = (stored(torch.randn(2, before + tokens, 64), precision) for _ in "kv")
    q = torch.randn(tokens, 4, 64) * 4
    for window in (None, 50):
        out = attend(q, k, v, kv, before, window=window, pool=pool)
        expected = naive(q, k_KSd, v_KSd, kv, before, window)
        torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=2e-5)
