"""Norm, rotation and activation against Hugging Face's and the definitions."""

import pytest
import torch

from tests.unit.kernels.instruction_sets import AVAILABLE
from tests.unit.kernels.test_linear import opened
from tpiedge.kernels.elementwise import Activation, activate, rms_norm, rope, tables


@pytest.mark.parametrize("shape", [(1, 64), (5, 100), (3, 4, 60)])
def test_rms_norm_equals_hugging_face(shape: tuple[int, ...]) -> None:
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    x, weight = torch.randn(shape), torch.randn(shape[-1])
    reference = LlamaRMSNorm(shape[-1], eps=1e-5)
    with torch.no_grad():
        reference.weight.copy_(weight)
        assert torch.equal(rms_norm(x, weight, 1e-5), reference(x))


@pytest.mark.parametrize("isa", AVAILABLE)
def test_native_norm_refuses_four_dimensions(isa: str) -> None:
    with opened(isa) as linear, pytest.raises(ValueError, match="rows"):
        rms_norm(torch.randn(2, 3, 4, 8), torch.randn(8), 1e-5, linear.pool)


def test_rope_equals_hugging_face() -> None:
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    inv_freq = 1 / 10000 ** (torch.arange(0, 16, 2) / 16)
    q_TNd, k_TNd = torch.randn(5, 3, 16), torch.randn(5, 2, 16)
    cos, sin = tables(torch.tensor([7, 8, 9, 2, 100000]), inv_freq)
    q, k = apply_rotary_pos_emb(
        q_TNd.transpose(0, 1)[None], k_TNd.transpose(0, 1)[None], cos[None], sin[None]
    )
    assert torch.equal(rope(q_TNd, cos, sin), q[0].transpose(0, 1))
    assert torch.equal(rope(k_TNd, cos, sin), k[0].transpose(0, 1))


def test_swiglu_equals_the_definition_in_place() -> None:
    gate, up = torch.randn(3, 7), torch.randn(3, 7)
    gate[:, 5:], up[:, 5:] = 0, 0
    owned = gate.clone()
    out = activate(owned, up)
    assert out.data_ptr() == owned.data_ptr()  # as large as the largest temporaries of a prefill
    torch.testing.assert_close(out, gate / (1 + torch.exp(-gate)) * up)
    assert torch.equal(out[:, 5:], torch.zeros(3, 2))


@pytest.mark.parametrize("activation", [Activation.SILU, Activation.GELU_TANH, Activation.TANH])
def test_activations_equal_those_that_transformers_names(activation: Activation) -> None:
    from transformers.activations import ACT2FN

    gate, up = torch.randn(3, 7), torch.randn(3, 7)
    torch.testing.assert_close(activate(gate.clone(), up, activation), ACT2FN[activation](gate) * up)
    torch.testing.assert_close(activate(gate.clone(), activation=activation), ACT2FN[activation](gate))


def test_activation_of_gpt_oss_equals_the_definition() -> None:
    gate, up = torch.linspace(-20, 20, 41).repeat(41), torch.linspace(-10, 10, 41).repeat_interleave(41)
    below, between = gate.clamp(max=7), up.clamp(-7, 7)
    expected = below * torch.sigmoid(1.702 * below)
    for gated in (True, False):
        found = activate(gate.clone(), up if gated else None, Activation.GPT_OSS)
        torch.testing.assert_close(found, expected * (between + 1 if gated else 1))
