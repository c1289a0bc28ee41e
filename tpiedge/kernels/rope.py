"""Rotary position embedding, in Hugging Face's half-split form.

T tokens, N heads, d head width, r rotated width (r <= d; r = d for all but partially rotating models).
"""

import torch
from torch import Tensor

from tpiedge.kernels.library import Pool

__all__ = ["rope", "tables"]


def tables(positions_T: Tensor, inv_freq: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    """cos and sin [T, r] f32 of integer positions for r/2 inverse frequencies; `scale` multiplies both."""
    angles = positions_T.to(torch.float32)[:, None] * inv_freq.to(torch.float32)[None, :]
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos() * scale, angles.sin() * scale


def rope(x_TNd: Tensor, cos_Tr: Tensor, sin_Tr: Tensor, pool: Pool | None = None) -> Tensor:
    """Rotate the first r columns of every head; the others pass through.

    With the native kernels of `pool` a token's bits do not depend on the others.
    """
    if pool is not None:
        _check(x_TNd, cos_Tr, sin_Tr)
        y_TNd = torch.empty(x_TNd.shape)
        pool.rope(x_TNd, cos_Tr, sin_Tr, y_TNd)
        return y_TNd
    width = cos_Tr.shape[-1]
    x = x_TNd[..., :width]
    low, high = x.chunk(2, dim=-1)
    rotated = x * cos_Tr[:, None, :] + torch.cat((-high, low), dim=-1) * sin_Tr[:, None, :]
    if width == x_TNd.shape[-1]:
        return rotated
    return torch.cat((rotated, x_TNd[..., width:]), dim=-1)


def _check(x_TNd: Tensor, cos_Tr: Tensor, sin_Tr: Tensor) -> None:
    """The native kernels read raw memory, so what they are given is checked here."""
    if x_TNd.dim() != 3 or x_TNd.dtype is not torch.float32 or not x_TNd.is_cpu or x_TNd.stride(2) != 1:
        raise ValueError(f"heads to rotate are {list(x_TNd.shape)} {x_TNd.dtype}, not rows of f32 in memory")
    for table in (cos_Tr, sin_Tr):
        if table.dtype is not torch.float32 or not table.is_cpu or not table.is_contiguous():
            raise ValueError(f"a table of rotations is {table.dtype} on {table.device}, not contiguous f32")
    rows, width = cos_Tr.shape
    if sin_Tr.shape != cos_Tr.shape or rows != x_TNd.shape[0] or width % 2 or width > x_TNd.shape[2]:
        raise ValueError(
            f"cos {list(cos_Tr.shape)}, sin {list(sin_Tr.shape)} do not fit heads {list(x_TNd.shape)}"
        )
