"""The native operations that are not products, against float64 and bit for bit against themselves."""

import math
from collections.abc import Iterator

import pytest
import torch

from tests.unit.kernels.instruction_sets import AVAILABLE
from tests.unit.kernels.paged import attend
from tests.unit.kernels.test_attention import HEADS, cache, naive
from tests.unit.kernels.test_linear import open_library, opened, weights
from tpiedge.kernels.arithmetic import Arithmetic
from tpiedge.kernels.attention import kv_of_heads
from tpiedge.kernels.dispatch import NATIVE_TOKENS
from tpiedge.kernels.ffn import ffn
from tpiedge.kernels.library import MAX_HEAD_WIDTH, MAX_PRODUCTS, Pool
from tpiedge.kernels.linear import Linear
from tpiedge.kernels.norm import rms_norm
from tpiedge.kernels.rope import rope, tables
from tpiedge.kernels.swiglu import swiglu

DTYPES = [torch.float32, torch.bfloat16]
WIDTHS = [2, 20, 60, 64, 100, 128, 256]


@pytest.fixture(params=AVAILABLE)
def pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    opened_pool = Pool(open_library(request.param), 2)
    yield opened_pool
    opened_pool.close()


@pytest.mark.parametrize("shape", [(1, 1), (1, 64), (16, 100), (3, 2048), (5, 4, 20), (2, 3, 129)])
def test_rms_norm_equals_float64(pool: Pool, shape: tuple[int, ...]) -> None:
    x, weight = torch.randn(shape), torch.randn(shape[-1])
    wide = x.double()
    expected = weight.double() * wide / (wide.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(rms_norm(x, weight, 1e-5, pool).double(), expected, rtol=2e-6, atol=1e-9)


def test_rms_norm_of_heads_without_their_padding(pool: Pool) -> None:
    x, weight = torch.randn(3, 5, 70)[..., :60], torch.randn(60)
    assert torch.equal(rms_norm(x, weight, 1e-6, pool), rms_norm(x.contiguous(), weight, 1e-6, pool))


@pytest.mark.parametrize("width", WIDTHS)
def test_rope_equals_the_definition(pool: Pool, width: int) -> None:
    x = torch.randn(4, 3, width + 5)[..., :width]
    for rotated in {width, max(2, width // 4 * 2)}:
        cos, sin = tables(torch.tensor([0, 7, 3, 5000]), torch.rand(rotated // 2))
        expected = rope(x.double(), cos.double(), sin.double())
        torch.testing.assert_close(rope(x, cos, sin, pool).double(), expected, rtol=1e-6, atol=1e-6)


def test_swiglu_equals_float64_for_all_magnitudes(pool: Pool) -> None:
    gate = torch.cat((torch.linspace(-200, 200, 4001), torch.linspace(-1e-3, 1e-3, 97), torch.zeros(3)))
    up = torch.randn(gate.shape)
    out = swiglu(gate[None], up[None], pool)[0]
    expected = gate.double() * torch.sigmoid(gate.double()) * up.double()
    # e^88 is the exponential's upper bound: below -88 the result is no longer relative, but 0 to 1e-35.
    torch.testing.assert_close(out.double(), expected, rtol=1e-6, atol=1e-35)
    assert torch.equal(out[-3:], torch.zeros(3))


def test_what_is_no_number_stays_so(pool: Pool) -> None:
    broken = torch.ones(1, 33)
    broken[0, 20] = math.nan
    assert swiglu(broken, torch.ones(1, 33), pool).isnan().sum() == 1
    assert rms_norm(broken, torch.ones(33), 1e-6, pool).isnan().all()
    q = broken[:, :21].view(1, 1, 21)
    k = torch.randn(1, 40, 21)
    assert attend(q, k, k, (0,), 39, pool=pool).isnan().all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [None, 1, 5, 64, 70])
@pytest.mark.parametrize("kv", HEADS.values(), ids=HEADS.keys())
def test_attention_equals_the_definition(
    pool: Pool, kv: tuple[int, ...], window: int | None, dtype: torch.dtype
) -> None:
    for tokens, before, width in [(1, 0, 8), (1, 200, 64), (5, 63, 100), (16, 3, 20), (2, 130, 256)]:
        k, v = (cache(max(kv) + 1, before + tokens, width, dtype) for _ in range(2))
        q = torch.randn(tokens, len(kv), width)
        out = attend(q, k, v, kv, before, window=window, pool=pool)
        expected = naive(q, k, v, kv, before, window)
        torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
def test_attention_of_many_heads_and_large_scores(pool: Pool, width: int, dtype: torch.dtype) -> None:
    """More query heads than share one reading of the keys, and scores that make the softmax sharp."""
    kv = kv_of_heads(0, 40, 20)
    k, v = (cache(2, 150, width, dtype) for _ in range(2))
    q = torch.randn(3, 40, width) * 20
    out = attend(q, k, v, kv, 147, pool=pool)
    torch.testing.assert_close(out.double(), naive(q, k, v, kv, 147, None), rtol=1e-4, atol=5e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [None, 37])
@pytest.mark.parametrize("isa", AVAILABLE)
def test_bits_of_a_token_depend_neither_on_the_others_nor_on_threads(
    isa: str, window: int | None, dtype: torch.dtype
) -> None:
    kv, before = kv_of_heads(3, 12, 4), 300
    k, v = (cache(3, before + NATIVE_TOKENS, 60, dtype) for _ in range(2))
    q = torch.randn(NATIVE_TOKENS, 9, 60)
    cos, sin = tables(torch.arange(NATIVE_TOKENS), torch.rand(30))
    weight = torch.randn(60)
    found = open_library(isa)
    whole = Pool(found, 1)
    for threads in (1, 2, 3):
        pool = Pool(found, threads)
        for first, last in [(0, NATIVE_TOKENS), (0, 1), (5, 6), (3, 11), (NATIVE_TOKENS - 1, NATIVE_TOKENS)]:
            rows = slice(first, last)
            stop = before + last
            some = attend(q[rows], k[:, :stop], v[:, :stop], kv, before + first, window=window, pool=pool)
            assert torch.equal(some, attend(q, k, v, kv, before, window=window, pool=whole)[rows])
            assert torch.equal(rms_norm(q[rows], weight, 1e-5, pool), rms_norm(q, weight, 1e-5, whole)[rows])
            assert torch.equal(rope(q[rows], cos[rows], sin[rows], pool), rope(q, cos, sin, whole)[rows])
            flat = q.flatten(1)
            assert torch.equal(swiglu(flat[rows], flat[rows], pool), swiglu(flat, flat, whole)[rows])
        pool.close()
    whole.close()


def test_bits_of_many_tokens(pool: Pool) -> None:
    """What is no product takes any number of tokens, and each has the bits that it has alone."""
    tokens = 5 * NATIVE_TOKENS + 1
    x_TNd, weight_d = torch.randn(tokens, 2, 20), torch.randn(20)
    flat_TF = x_TNd.flatten(1)
    cos, sin = tables(torch.arange(tokens), torch.rand(10))
    rotated, normed = rope(x_TNd, cos, sin, pool), rms_norm(x_TNd, weight_d, 1e-6, pool)
    gated = swiglu(flat_TF, flat_TF, pool)
    torch.testing.assert_close(rotated, rope(x_TNd, cos, sin))
    torch.testing.assert_close(normed, rms_norm(x_TNd, weight_d, 1e-6))
    torch.testing.assert_close(gated, swiglu(flat_TF.clone(), flat_TF))
    for token in range(tokens):
        row = slice(token, token + 1)
        assert torch.equal(rotated[row], rope(x_TNd[row], cos[row], sin[row], pool))
        assert torch.equal(normed[row], rms_norm(x_TNd[row], weight_d, 1e-6, pool))
        assert torch.equal(gated[row], swiglu(flat_TF[row], flat_TF[row], pool))


def test_wider_heads_go_through_torch(pool: Pool) -> None:
    pool.close()
    wide = torch.randn(1, 1, MAX_HEAD_WIDTH + 1)
    assert attend(wide, wide, wide, (0,), 0, pool=pool).shape == wide.shape


def test_no_tokens_and_no_heads(pool: Pool) -> None:
    assert rms_norm(torch.ones(0, 8), torch.ones(8), 1e-6, pool).shape == (0, 8)
    assert swiglu(torch.ones(2, 0), torch.ones(2, 0), pool).shape == (2, 0)
    assert rope(torch.ones(1, 0, 8), torch.ones(1, 8), torch.ones(1, 8), pool).shape == (1, 0, 8)
    empty = torch.empty(0, 5, 8)
    assert attend(torch.empty(2, 0, 8), empty, empty, (), 3, pool=pool).shape == (2, 0, 8)


ONES = torch.ones(1, 2, 8)


def test_wrong_tensors_are_refused(pool: Pool) -> None:
    x = torch.ones(2, 8)
    for bad, weight in [(x.double(), x[0]), (x, x[0].double()), (x, torch.ones(7)), (x[:, ::2], x[0, :4])]:
        with pytest.raises(ValueError, match="norm"):
            rms_norm(bad, weight, 1e-6, pool)
    heads = torch.ones(2, 1, 8)
    for bad, table in [(heads.double(), x), (heads, x.double()), (heads, x[:1]), (heads, torch.ones(2, 10))]:
        with pytest.raises(ValueError, match=r"rotat|cos"):
            rope(bad, table, table, pool)
    for gate, up in [(x.double(), x), (x, x[:1]), (torch.ones(2, 16)[:, ::2], x)]:
        with pytest.raises(ValueError, match="gate"):
            swiglu(gate, up, pool)
    with pytest.raises(ValueError, match="window"):
        attend(ONES, ONES[:, :1], ONES[:, :1], (0, 0), 0, window=0, pool=pool)
    for q, k in ((ONES.double(), ONES), (ONES, torch.ones(1, 1, 9))):
        with pytest.raises(ValueError, match="queries"):
            attend(q, k[:, :1], k[:, :1], (0, 0), 0, pool=pool)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("arithmetic", Arithmetic)
@pytest.mark.parametrize("isa", AVAILABLE)
def test_many_products_have_the_bits_of_each(isa: str, arithmetic: Arithmetic, threads: int) -> None:
    x = torch.randn(NATIVE_TOKENS, 90)
    many = [
        weights(rows, 90, dtype)
        for rows, dtype in [(300, DTYPES[0]), (0, DTYPES[1]), (37, DTYPES[1]), (5, DTYPES[0])]
    ]
    with opened(isa, arithmetic, threads) as linear:
        for tokens in (1, 3, NATIVE_TOKENS):
            for count in range(MAX_PRODUCTS + 1):
                results = linear.project_many(x[:tokens], many[:count])
                assert len(results) == count
                for y, w in zip(results, many[:count], strict=True):
                    assert torch.equal(y, linear.project(x[:tokens], w))


def test_too_many_products_are_refused() -> None:
    with Linear(Arithmetic.F32, 1, None) as linear, pytest.raises(ValueError, match="at once"):
        linear.project_many(torch.ones(1, 2), [torch.ones(3, 2)] * (MAX_PRODUCTS + 1))


@pytest.mark.parametrize("arithmetic", Arithmetic)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("engine", ["torch", *AVAILABLE])
def test_ffn_has_the_bits_of_its_parts(engine: str, dtype: torch.dtype, arithmetic: Arithmetic) -> None:
    gate, up, down = weights(200, 90, dtype), weights(200, 90, dtype), weights(200, 77, dtype)
    norm = torch.randn(90)
    for threads in (1, 2):
        with opened(engine, arithmetic, threads) as linear:
            for tokens in (0, 1, 3, NATIVE_TOKENS, NATIVE_TOKENS + 1):
                x = torch.randn(tokens, 90)
                h = rms_norm(x, norm, 1e-5, linear.pool)
                inner = swiglu(linear.project(h, gate), linear.project(h, up), linear.pool)
                assert torch.equal(ffn(x, norm, 1e-5, gate, up, down, linear), linear.contract(inner, down))


def test_ffn_refuses_wrong_tensors() -> None:
    x, norm, w, down = torch.ones(1, 8), torch.ones(8), torch.ones(4, 8), torch.ones(4, 6)
    with Linear(Arithmetic.F32, 1, open_library()) as linear:
        assert ffn(x, norm, 1e-5, w, w, down, linear).shape == (1, 6)
        for args in [
            (x.double(), norm, 1e-5, w, w, down),
            (x, norm[:7], 1e-5, w, w, down),
            (x, norm, 1e-5, w, w[:3], down),
            (x, norm, 1e-5, w, w, down[:3]),
            (x, norm, 1e-5, w, w, down.double()),
            (x, norm, 1e-5, w[:, :7], w, down),
        ]:
            with pytest.raises(ValueError):
                ffn(*args, linear)
