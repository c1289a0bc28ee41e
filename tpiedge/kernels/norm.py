"""Root-mean-square normalisation."""

import torch
from torch import Tensor

from tpiedge.kernels.library import Pool


def rms_norm(x: Tensor, weight: Tensor, eps: float, pool: Pool | None = None) -> Tensor:
    """x * rsqrt(mean(x^2) + eps) * weight over the last dimension, f32, in the order of Hugging Face's Llama.

    x is [T, H], or [T, N, d] for the norm of each query or key head (weight is then [d]). With the native kernels of
    `pool` a token's bits do not depend on the others.
    """
    if pool is None:
        variance = x.pow(2).mean(-1, keepdim=True)
        return weight * (x * torch.rsqrt(variance + eps))
    x_TNd = x if x.dim() == 3 else x[:, None]
    _check(x_TNd, weight)
    y = torch.empty(x.shape)
    pool.rms_norm(x_TNd, weight, eps, y if x.dim() == 3 else y[:, None])
    return y


def _check(x_TNd: Tensor, weight: Tensor) -> None:
    """The native kernels read raw memory, so what they are given is checked here."""
    if x_TNd.dim() != 3 or x_TNd.dtype is not torch.float32 or not x_TNd.is_cpu or x_TNd.stride(2) != 1:
        raise ValueError(
            f"rows to norm are {list(x_TNd.shape)} {x_TNd.dtype}, not rows of f32 in main memory"
        )
    check_norm_weight(weight, x_TNd.shape[2])


def check_norm_weight(weight: Tensor, width: int) -> None:
    """The native kernels read raw memory, so what they are given is checked here."""
    if weight.dtype is not torch.float32 or not weight.is_cpu or not weight.is_contiguous():
        raise ValueError(f"the norm's weight is {weight.dtype} on {weight.device}, not contiguous f32")
    if weight.shape != (width,):
        raise ValueError(f"the norm's weight is {list(weight.shape)} for rows of {width}")
