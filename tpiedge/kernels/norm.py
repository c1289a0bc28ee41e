"""Root-mean-square normalisation."""

import torch
from torch import Tensor

__all__ = ["rms_norm"]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x * rsqrt(mean(x^2) + eps) * weight over the last dimension, f32, in the order of Hugging Face's Llama.

    x is [T, H], or [T, N, d] for the norm of each query or key head (weight is then [d]).
    """
    variance = x.pow(2).mean(-1, keepdim=True)
    return weight * (x * torch.rsqrt(variance + eps))
