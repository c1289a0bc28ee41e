"""Rotary position embedding, in Hugging Face's half-split form.

T tokens, N heads, d head width, r rotated width (r <= d; r = d for all but partially rotating models).
"""

import torch
from torch import Tensor

__all__ = ["rope", "tables"]


def tables(positions_T: Tensor, inv_freq: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    """cos and sin [T, r] f32 of integer positions for r/2 inverse frequencies; `scale` multiplies both."""
    angles = positions_T.to(torch.float32)[:, None] * inv_freq.to(torch.float32)[None, :]
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos() * scale, angles.sin() * scale


def rope(x_TNd: Tensor, cos_Tr: Tensor, sin_Tr: Tensor) -> Tensor:
    """Rotate the first r columns of every head; the others pass through."""
    width = cos_Tr.shape[-1]
    x = x_TNd[..., :width]
    low, high = x.chunk(2, dim=-1)
    rotated = x * cos_Tr[:, None, :] + torch.cat((-high, low), dim=-1) * sin_Tr[:, None, :]
    if width == x_TNd.shape[-1]:
        return rotated
    return torch.cat((rotated, x_TNd[..., width:]), dim=-1)
