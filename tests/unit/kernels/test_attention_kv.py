"""Attention over quantised keys and values, and of long prompts: against float64 of what the codes stand for, and bit
for bit against itself."""

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from tests.unit.kernels.instruction_sets import AVAILABLE
from tests.unit.kernels.kv_rows import QuantisedRows, Rows, encode
from tests.unit.kernels.paged import attend
from tests.unit.kernels.test_attention import HEADS, naive
from tests.unit.kernels.test_linear import open_library
from tpiedge.kernels.attention import kv_of_heads
from tpiedge.kernels.kv_format import KVFormat
from tpiedge.kernels.library import MAX_HEAD_WIDTH, Pool

STORED = ["f32", "bf16", "q8", "q4"]
WINDOWS = [None, 1, 5, 64, 70]


@pytest.fixture(params=AVAILABLE)
def pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    opened_pool = Pool(open_library(request.param), 2)
    yield opened_pool
    opened_pool.close()


def stored(x_KSd: Tensor, precision: str) -> tuple[Rows, Tensor]:
    """As a cache keeps it, with rows beyond the last position that are no numbers; and what it stands for."""
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


@pytest.mark.parametrize("precision", ["q8", "q4"])
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("kv", HEADS.values(), ids=HEADS.keys())
def test_equals_the_definition(pool: Pool, kv: tuple[int, ...], window: int | None, precision: str) -> None:
    for tokens, before, width in [
        (1, 0, 64),
        (1, 200, 128),
        (5, 63, 100),
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
        torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=5e-6)


@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_of_a_long_prompt_after_others_by_torch(precision: str) -> None:
    _compare_a_long_prompt(None, precision)


@pytest.mark.parametrize("precision", STORED)
def test_of_a_long_prompt_after_others(pool: Pool, precision: str) -> None:
    _compare_a_long_prompt(pool, precision)


def _compare_a_long_prompt(pool: Pool | None, precision: str) -> None:
    kv, tokens, before = kv_of_heads(0, 4, 2), 130, 75
    (k, k_KSd), (v, v_KSd) = (stored(torch.randn(2, before + tokens, 64), precision) for _ in "kv")
    q = torch.randn(tokens, 4, 64) * 4
    for window in (None, 50):
        out = attend(q, k, v, kv, before, window=window, pool=pool)
        expected = naive(q, k_KSd, v_KSd, kv, before, window)
        torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("precision", STORED)
@pytest.mark.parametrize("window", [None, 37])
@pytest.mark.parametrize("isa", AVAILABLE)
def test_bits_of_a_token_depend_neither_on_the_others_nor_on_threads(
    isa: str, window: int | None, precision: str
) -> None:
    """However many tokens share a step with it, which may be a prompt's. Many threads divide the heads of a KV head."""
    kv, before, tokens = kv_of_heads(3, 30, 12), 90, 100
    k, v = (stored(torch.randn(3, before + tokens, 60), precision)[0] for _ in "kv")
    q = torch.randn(tokens, 27, 60)
    found = open_library(isa)
    with Closing(Pool(found, 1)) as one, Closing(Pool(found, 8)) as many:
        whole = attend(q, k, v, kv, before, window=window, pool=one)
        assert torch.equal(attend(q, k, v, kv, before, window=window, pool=many), whole)
        for first, last in [(0, 1), (5, 6), (3, 11), (7, 71), (60, 100), (tokens - 1, tokens)]:
            stop = before + last
            some = attend(
                q[first:last],
                k[:, :stop],
                v[:, :stop],
                kv,
                before + first,
                window=window,
                pool=many,
            )
            assert torch.equal(some, whole[first:last])


class Closing:
    """A pool for a block."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def __enter__(self) -> Pool:
        return self._pool

    def __exit__(self, *_: object) -> None:
        self._pool.close()


@pytest.mark.parametrize("precision", STORED)
@pytest.mark.parametrize("isa", AVAILABLE)
def test_what_is_no_number_reaches_those_that_see_it(isa: str, precision: str) -> None:
    """And no token before it, even in the same step; of a quantised value only its group."""
    x = torch.randn(1, 90, 64)
    x[0, 70, 5] = math.nan
    broken, sound = stored(x, precision)[0], stored(torch.randn(1, 90, 64), precision)[0]
    q = torch.randn(90, 1, 64)
    with Closing(Pool(open_library(isa), 2)) as pool:
        by_key = attend(q, broken, sound, (0,), 0, pool=pool).isnan().all(-1).flatten()
        assert by_key.tolist() == [False] * 70 + [True] * 20
        by_value = attend(q, sound, broken, (0,), 0, pool=pool).isnan()[:, 0]
        lost = 32 if precision in ("q8", "q4") else 1
        assert not by_value[:70].any()
        assert by_value[70:].sum() == 20 * lost
        windowed = attend(q, broken, sound, (0,), 0, window=10, pool=pool).isnan().all(-1).flatten()
        assert windowed.tolist() == [False] * 70 + [True] * 10 + [False] * 10


@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_heads_too_wide_for_the_native_kernels(precision: str) -> None:
    width = MAX_HEAD_WIDTH + 1
    (k, k_KSd), (v, v_KSd) = (stored(torch.randn(1, 9, width), precision) for _ in "kv")
    q = torch.randn(2, 1, width)
    with Closing(Pool(open_library(), 1)) as pool:
        out = attend(q, k, v, (0,), 7, pool=pool)
    torch.testing.assert_close(out.double(), naive(q, k_KSd, v_KSd, (0,), 7, None), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("precision", ["q8", "q4"])
@pytest.mark.parametrize(("width", "native"), [(64, False), (MAX_HEAD_WIDTH + 1, True)])
def test_torch_refuses_what_is_quantised(width: int, native: bool, precision: str) -> None:
    k, v = (stored(torch.randn(1, 9, width), precision)[0] for _ in "kv")
    with Closing(Pool(open_library(), 1)) as pool, pytest.raises(ValueError, match="need the native kernels"):
        attend(torch.randn(2, 1, width), k, v, (0,), 7, pool=pool if native else None)
