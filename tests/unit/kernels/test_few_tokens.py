"""The native operations that are not products, against float64 and bit for bit against themselves."""

import math

import pytest
import torch

from tests.unit.kernels.instruction_sets import AVAILABLE
from tests.unit.kernels.test_linear import opened, weights
from tpiedge.kernels.elementwise import Activation, activate, rms_norm, rope, tables
from tpiedge.kernels.ffn import ffn
from tpiedge.kernels.library import MAX_PRODUCTS, NATIVE_TOKENS, Pool
from tpiedge.kernels.linear import Arithmetic

DTYPES = [torch.float32, torch.bfloat16]
WIDTHS = [2, 20, 60, 64, 100, 128, 256, 512]


@pytest.mark.parametrize("shape", [(1, 1), (1, 64), (16, 100), (3, 2048), (5, 4, 20), (2, 3, 129)])
def test_rms_norm_equals_float64(pool: Pool, shape: tuple[int, ...]) -> None:
    x, weight = torch.randn(shape), torch.randn(shape[-1])
    wide = x.double()
    expected = weight.double() * wide / (wide.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(rms_norm(x, weight, 1e-5, pool).double(), expected, rtol=2e-6, atol=1e-9)


@pytest.mark.parametrize("width", WIDTHS)
def test_rope_equals_the_definition(pool: Pool, width: int) -> None:
    x = torch.randn(4, 3, width + 5)[..., :width]
    for rotated in {width, max(2, width // 4 * 2)}:
        cos, sin = tables(torch.tensor([0, 7, 3, 5000]), torch.rand(rotated // 2))
        expected = rope(x.double(), cos.double(), sin.double())
        torch.testing.assert_close(rope(x, cos, sin, pool).double(), expected, rtol=1e-6, atol=1e-6)
        factor = torch.rand(4) + 0.5
        scaled = rope(x, cos, sin, pool, factor)
        assert torch.equal(scaled, rope(x, cos, sin, pool) * factor[:, None, None])
        assert torch.equal(rope(x, cos, sin, None, factor), rope(x, cos, sin) * factor[:, None, None])


def test_tanh_equals_float64_for_all_magnitudes(pool: Pool) -> None:
    x = torch.cat((torch.linspace(-200, 200, 4001), torch.linspace(-1e-3, 1e-3, 97), torch.zeros(3)))
    out = activate(x[None], None, Activation.TANH, pool)[0]
    torch.testing.assert_close(out.double(), x.double().tanh(), rtol=0, atol=2e-7)
    assert torch.equal(out[-3:], torch.zeros(3))


@pytest.mark.parametrize("activation", [Activation.SILU, Activation.GELU_TANH, Activation.GPT_OSS])
@pytest.mark.parametrize("gated", [True, False])
def test_activations_equal_float64_for_all_magnitudes(
    pool: Pool, activation: Activation, gated: bool
) -> None:
    gate = torch.cat((torch.linspace(-200, 200, 4001), torch.linspace(-1e-3, 1e-3, 97), torch.zeros(3)))
    up = torch.randn(gate.shape) if gated else None
    out = activate(gate[None], None if up is None else up[None], activation, pool)[0]
    wide = gate.double()
    if activation is Activation.GPT_OSS:
        expected = activate(wide, None if up is None else up.double(), activation)  # in float64
    else:
        silu = activation is Activation.SILU
        inner = wide if silu else math.sqrt(8 / math.pi) * (wide + 0.044715 * wide**3)
        expected = wide * torch.sigmoid(inner) * (1 if up is None else up.double())
    # An error of the argument is one of the exponential: the larger both are, the smaller is the result.
    rtol = 1e-6 * (1 if activation is Activation.SILU else 12)
    # e^88 is the exponential's upper bound: below -88 the result is no longer relative, but 0 to 1e-35.
    torch.testing.assert_close(out.double(), expected, rtol=rtol, atol=1e-35)
    assert torch.equal(out[-3:], torch.zeros(3))


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("arithmetic", Arithmetic)
@pytest.mark.parametrize("isa", AVAILABLE)
def test_batched_products_equal_single_ones_exactly(isa: str, arithmetic: Arithmetic, threads: int) -> None:
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


@pytest.mark.parametrize("arithmetic", Arithmetic)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("engine", ["torch", *AVAILABLE])
def test_ffn_equals_its_parts_bit_for_bit(engine: str, dtype: torch.dtype, arithmetic: Arithmetic) -> None:
    gelu = Activation.GELU_TANH
    gate, up, down = weights(200, 90, dtype), weights(200, 90, dtype), weights(200, 77, dtype)
    norm = torch.randn(90)
    for threads in (1, 2):
        with opened(engine, arithmetic, threads) as linear:
            for tokens in (0, 1, 3, NATIVE_TOKENS, NATIVE_TOKENS + 1):
                x = torch.randn(tokens, 90)
                h = rms_norm(x, norm, 1e-5, linear.pool)
                inner = activate(linear.project(h, gate), linear.project(h, up), pool=linear.pool)
                assert torch.equal(ffn(x, norm, 1e-5, gate, up, down, linear), linear.contract(inner, down))
                inner = activate(linear.project(x, gate), linear.project(x, up), gelu, linear.pool)
                found = ffn(x, None, 1e-5, gate, up, down, linear, activation=gelu)
                assert torch.equal(found, linear.contract(inner, down))
                inner = activate(linear.project(h, up), None, gelu, linear.pool)
                found = ffn(x, norm, 1e-5, None, up, down, linear, activation=gelu)
                assert torch.equal(found, linear.contract(inner, down))
                inputs, bias = torch.randn(tokens, 500)[:, 200:400], torch.randn(200)
                for added in (None, bias):
                    gated = linear.project(x, gate) + (0 if added is None else added)
                    inner = activate(gated, None, gelu, linear.pool) * inputs
                    found = ffn(x, None, 0, gate, None, down, linear, (added, None), gelu, inputs)
                    assert torch.equal(found, linear.contract(inner, down))
