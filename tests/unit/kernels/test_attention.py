"""Attention by torch against the definition, in float64, one query and head at a time."""

import math

import pytest
import torch
from torch import Tensor

from tests.unit.kernels.paged import attend
from tpiedge.kernels.attention import kv_of_heads


def naive(q: Tensor, k: Tensor, v: Tensor, kv: tuple[int, ...], first: int, window: int | None) -> Tensor:
    result = torch.empty(q.shape, dtype=torch.float64)
    for t in range(q.shape[0]):
        position = first + t
        low = 0 if window is None else max(0, position - window + 1)
        for head, of in enumerate(kv):
            keys, values = k[of, low : position + 1].double(), v[of, low : position + 1].double()
            weights = torch.softmax(keys @ q[t, head].double() / math.sqrt(q.shape[-1]), 0)
            result[t, head] = weights @ values
    return result


def cache(kv_heads: int, length: int, width: int, dtype: torch.dtype) -> Tensor:
    whole = torch.full((kv_heads, length + 7, width), torch.nan, dtype=dtype)
    whole[:, :length] = torch.randn(kv_heads, length, width)
    return whole[:, :length]


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
def test_equals_the_definition(kv: tuple[int, ...], window: int | None, dtype: torch.dtype) -> None:
    for tokens, before, width in [(1, 0, 8), (1, 30, 16), (4, 0, 12), (5, 33, 100), (17, 3, 8)]:
        k, v = (cache(max(kv) + 1, before + tokens, width, dtype) for _ in range(2))
        q = torch.randn(tokens, len(kv), width)
        out = attend(q, k, v, kv, before, window=window)
        assert out.dtype is torch.float32
        assert out.is_contiguous()
        torch.testing.assert_close(out.double(), naive(q, k, v, kv, before, window), rtol=1e-5, atol=1e-5)
