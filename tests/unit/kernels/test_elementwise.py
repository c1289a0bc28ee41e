"""Norm, rotation and activation against Hugging Face's and the definitions."""

import pytest
import torch

from tpiedge.kernels.norm import rms_norm
from tpiedge.kernels.rope import rope, tables
from tpiedge.kernels.swiglu import swiglu


@pytest.mark.parametrize("shape", [(1, 64), (5, 100), (3, 4, 60)])
def test_rms_norm_equals_hugging_face(shape: tuple[int, ...]) -> None:
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    x, weight = torch.randn(shape), torch.randn(shape[-1])
    reference = LlamaRMSNorm(shape[-1], eps=1e-5)
    with torch.no_grad():
        reference.weight.copy_(weight)
        assert torch.equal(rms_norm(x, weight, 1e-5), reference(x))


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


def test_tables_are_f32_and_scaled() -> None:
    inv_freq = torch.tensor([1.0, 0.25], dtype=torch.float64)
    cos, sin = tables(torch.tensor([0, 3]), inv_freq, 2.0)
    angles = torch.tensor([[0, 0, 0, 0], [3.0, 0.75, 3.0, 0.75]])
    assert cos.dtype is sin.dtype is torch.float32
    torch.testing.assert_close(cos, 2 * angles.cos())
    torch.testing.assert_close(sin, 2 * angles.sin())


def test_rope_passes_the_unrotated_columns_through() -> None:
    x = torch.randn(2, 3, 10)
    cos, sin = tables(torch.tensor([4, 5]), torch.tensor([1.0, 0.5, 0.1]))
    out = rope(x, cos, sin)
    assert torch.equal(out[..., 6:], x[..., 6:])
    assert torch.equal(out[..., :6], rope(x[..., :6], cos, sin))


def test_rope_keeps_the_length_of_a_head() -> None:
    x = torch.randn(4, 2, 16)
    cos, sin = tables(torch.arange(4), torch.rand(8))
    torch.testing.assert_close(rope(x, cos, sin).norm(dim=-1), x.norm(dim=-1))


def test_swiglu() -> None:
    gate, up = torch.randn(3, 7), torch.randn(3, 7)
    gate[:, 5:], up[:, 5:] = 0, 0
    owned = gate.clone()
    out = swiglu(owned, up)
    assert out.data_ptr() == owned.data_ptr()  # as large as the largest temporaries of a prefill
    torch.testing.assert_close(out, gate / (1 + torch.exp(-gate)) * up)
    assert torch.equal(out[:, 5:], torch.zeros(3, 2))
