"""Attention by torch against the definition, in float64, one query and head at a time."""

import math

import pytest
import torch
from torch import Tensor

from tests.unit.kernels.paged import attend
from tpiedge.kernels import torch_attention as module
from tpiedge.kernels.attention import kv_of_heads
from tpiedge.kernels.torch_attention import attention


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
    """A view of the first positions of a preallocated cache whose rest is not a number."""
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
        out = attention(q, k, v, kv, before, window=window)
        assert out.dtype is torch.float32
        assert out.is_contiguous()
        torch.testing.assert_close(out.double(), naive(q, k, v, kv, before, window), rtol=1e-5, atol=1e-5)


def test_query_tiles_and_single_kv_heads_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    kv = kv_of_heads(0, 4, 2)
    k, v = (cache(2, 60, 16, torch.bfloat16) for _ in range(2))
    q = torch.randn(50, 4, 16)
    for window in (None, 7):
        expected = naive(q, k, v, kv, 10, window)
        monkeypatch.setattr(module, "_MASK_ELEMENTS", 300)
        monkeypatch.setattr(module, "_WIDENED_ELEMENTS", 10)
        torch.testing.assert_close(
            attention(q, k, v, kv, 10, window=window).double(), expected, rtol=1e-5, atol=1e-5
        )


def test_chunks_of_a_prompt_equal_the_whole() -> None:
    k, v, q = cache(2, 40, 16, torch.float32), cache(2, 40, 16, torch.float32), torch.randn(40, 4, 16)
    kv = kv_of_heads(0, 4, 2)
    whole = attention(q, k, v, kv, 0)
    parts = [attention(q[a:b], k[:, :b], v[:, :b], kv, a) for a, b in [(0, 13), (13, 14), (14, 40)]]
    torch.testing.assert_close(torch.cat(parts), whole, rtol=1e-5, atol=1e-6)


def test_a_share_of_the_heads_equals_its_part_of_the_whole() -> None:
    k, v, q = cache(3, 20, 8, torch.float32), cache(3, 20, 8, torch.float32), torch.randn(2, 12, 8)
    whole = attention(q, k, v, kv_of_heads(0, 12, 4), 18)
    share = attention(q[:, 3:9], k[0:3], v[0:3], kv_of_heads(3, 9, 4), 18)
    torch.testing.assert_close(share, whole[:, 3:9], rtol=1e-6, atol=1e-6)


def test_a_window_needs_only_the_keys_inside_it() -> None:
    k, v, q = cache(1, 40, 8, torch.float32), cache(1, 40, 8, torch.float32), torch.randn(3, 2, 8)
    whole = attention(q, k, v, (0, 0), 37, window=10)
    tail = attention(q, k[:, 28:], v[:, 28:], (0, 0), 37, first_key=28, window=10)
    torch.testing.assert_close(tail, whole)


def test_scale_replaces_the_usual_one() -> None:
    k, v, q = cache(1, 9, 16, torch.float32), cache(1, 9, 16, torch.float32), torch.randn(2, 1, 16)
    torch.testing.assert_close(attention(q, k, v, (0,), 7, scale=0.5), attention(q * 2, k, v, (0,), 7))


def test_no_heads() -> None:
    empty = torch.empty(0, 5, 8)
    assert attention(torch.empty(2, 0, 8), empty, empty, (), 3).shape == (2, 0, 8)
    assert attend(torch.empty(2, 0, 8), empty, empty, (), 3).shape == (2, 0, 8)


@pytest.mark.parametrize("first", [4, -2])
def test_wrong_positions_are_refused(first: int) -> None:
    k = torch.zeros(2, 5, 8)
    with pytest.raises(ValueError, match="positions"):
        attention(torch.zeros(2, 2, 8), k, k, (0, 1), first)


@pytest.mark.parametrize(
    ("kv", "says"), [((0,), "2 query heads"), ((0, 2), "query heads"), ((1, 0), "decrease")]
)
def test_wrong_heads_are_refused(kv: tuple[int, ...], says: str) -> None:
    k = torch.zeros(2, 5, 8)
    with pytest.raises(ValueError, match=says):
        attend(torch.zeros(2, 2, 8), k, k, kv, 3)


def test_kv_of_heads_is_local_to_the_share() -> None:
    assert kv_of_heads(0, 4, 2) == (0, 0, 1, 1)
    assert kv_of_heads(3, 6, 2) == (0, 1, 1)
    assert kv_of_heads(4, 4, 2) == ()
