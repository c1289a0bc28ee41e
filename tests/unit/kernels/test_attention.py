"""Attention by torch against the definition, in float64, one query and head at a time."""

import math

import pytest
import torch
from torch import Tensor

from tests.unit.kernels.kv_rows import QuantisedRows, Rows, encode
from tests.unit.kernels.paged import attend
from tpiedge.kernels.attention import kv_of_heads
from tpiedge.kernels.kv_format import KVFormat
from tpiedge.kernels.library import Pool


def naive(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kv: tuple[int, ...],
    first: int,
    window: int | None,
    scale: float | None = None,
    cap: float = 0.0,
    sinks: Tensor | None = None,
) -> Tensor:
    result = torch.empty(q.shape, dtype=torch.float64)
    for t in range(q.shape[0]):
        position = first + t
        low = 0 if window is None else max(0, position - window + 1)
        for head, of in enumerate(kv):
            keys, values = k[of, low : position + 1].double(), v[of, low : position + 1].double()
            scores = keys @ q[t, head].double() * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
            scores = torch.tanh(scores / cap) * cap if cap else scores
            if sinks is not None:  # its value is zero
                scores = torch.cat((scores, sinks[head : head + 1].double()))
            result[t, head] = torch.softmax(scores, 0)[: len(values)] @ values
    return result


def cache(kv_heads: int, length: int, width: int, dtype: torch.dtype) -> Tensor:
    whole = torch.full((kv_heads, length + 7, width), torch.nan, dtype=dtype)
    whole[:, :length] = torch.randn(kv_heads, length, width)
    return whole[:, :length]


#: Scale and cap: the usual ones, others, and a cap that leaves the highest scores little room.
SCORES = [(None, 0.0), (0.3, 0.0), (1.0, 2.0)]
HEADS = {
    "MHA": kv_of_heads(0, 3, 1),
    "GQA": kv_of_heads(0, 6, 3),
    "MQA": kv_of_heads(0, 4, 4),
    "starts inside a group": kv_of_heads(2, 8, 3),
    "inside one group": kv_of_heads(5, 6, 4),
    "ends inside a group": kv_of_heads(0, 5, 3),
    "skips a head": (0, 2, 2),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [None, 1, 5, 64])
@pytest.mark.parametrize("kv", HEADS.values(), ids=HEADS.keys())
@pytest.mark.parametrize(("scale", "cap"), SCORES)
def test_torch_attention_equals_the_definition(
    scale: float | None, cap: float, kv: tuple[int, ...], window: int | None, dtype: torch.dtype
) -> None:
    for tokens, before, width in [(1, 0, 8), (1, 30, 16), (4, 0, 12), (5, 33, 100), (17, 3, 8)]:
        k, v = (cache(max(kv) + 1, before + tokens, width, dtype) for _ in range(2))
        q = torch.randn(tokens, len(kv), width)
        for sinks in (None, torch.randn(len(kv)) * 3):
            out = attend(q, k, v, kv, before, window=window, scale=scale, cap=cap, sinks=sinks)
            assert out.dtype is torch.float32
            assert out.is_contiguous()
            expected = naive(q, k, v, kv, before, window, scale, cap, sinks)
            torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)


STORED = ["f32", "bf16", "q8", "q4"]
WINDOWS = [None, 1, 5, 64, 70]
#: Each two of heads, windows and precisions meet.
MET = [
    (heads, window, STORED[(i + j) % len(STORED)], *SCORES[(i + j) % len(SCORES)])
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


@pytest.mark.parametrize(("heads", "window", "precision", "scale", "cap"), MET)
def test_native_attention_equals_the_definition(
    pool: Pool, heads: str, window: int | None, precision: str, scale: float | None, cap: float
) -> None:
    kv = HEADS[heads]
    for tokens, before, width in [
        (1, 0, 64),
        (1, 200, 128),
        (5, 63, 100),
        (16, 3, 20),
        (40, 30, 80),
        (2, 130, 256),
        (3, 9, 7),
        (3, 64, 512),
        (1, 9, 300),
    ]:
        (k, k_KSd), (v, v_KSd) = (
            stored(torch.randn(max(kv) + 1, before + tokens, width), precision) for _ in "kv"
        )
        q = torch.randn(tokens, len(kv), width)
        for sinks in (None, torch.randn(len(kv)) * 3):
            out = attend(q, k, v, kv, before, window=window, scale=scale, cap=cap, sinks=sinks, pool=pool)
            assert out.dtype is torch.float32
            expected = naive(q, k_KSd, v_KSd, kv, before, window, scale, cap, sinks)
            atol = 5e-6 if isinstance(k, QuantisedRows) else 2e-6
            rtol = 1e-5 if scale is None else 4e-5  # scores are larger
            torch.testing.assert_close(out.double(), expected, rtol=rtol, atol=atol * (rtol * 1e5))


@pytest.mark.parametrize(
    "numbers", [{"window": 0}, {"cap": -1.0}, {"cap": math.inf}, {"cap": math.nan}], ids=str
)
def test_attention_refuses_impossible_numbers(numbers: dict[str, int]) -> None:
    k = torch.zeros(1, 3, 8)
    with pytest.raises(ValueError, match=r"window of 0|capped at"):
        attend(torch.zeros(1, 1, 8), k, k, (0,), 2, **numbers)


def test_attention_refuses_sinks_of_other_heads() -> None:
    k = torch.zeros(1, 3, 8)
    with pytest.raises(ValueError, match="sinks"):
        attend(torch.zeros(1, 1, 8), k, k, (0,), 2, sinks=torch.zeros(2))


@pytest.mark.parametrize("precision", STORED)
def test_native_attention_of_a_long_prompt_is_accurate(pool: Pool, precision: str) -> None:
    kv, tokens, before = kv_of_heads(0, 4, 2), 130, 75
    (k, k_KSd), (v, v_KSd) = (stored(torch.randn(2, before + tokens, 64), precision) for _ in "kv")
    q = torch.randn(tokens, 4, 64) * 4
    for window in (None, 50):
        out = attend(q, k, v, kv, before, window=window, pool=pool)
        expected = naive(q, k_KSd, v_KSd, kv, before, window)
        torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=2e-5)
