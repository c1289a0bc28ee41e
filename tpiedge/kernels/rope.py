"""Rotary position embedding, in Hugging Face's half-split form.

T tokens, N heads, d head width, r rotated width (r <= d; r = d for all but partially rotating models).

Sines and cosines are made here, of additions and multiplications in f64, because those of libraries differ in their
last bits from one instruction set to another.
"""

import math
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tpiedge.kernels.library import Pool

_F64 = NDArray[np.float64]

# pi / 2 in three parts: the first two have 25 bits, so that they times a number of quarter turns below 2**27 are exact.
_QUARTER: Final = tuple(map(float.fromhex, ("0x1.921fb5p+0", "0x1.110b46p-26", "0x1.1a62633145c07p-54")))
_TURNS: Final = 2 / math.pi
_ROWS: Final = 256  # whose angles exist in f64 at a time
# Taylor's series around 0 of (sin(x) - x) / x**3 and (cos(x) - 1) / x**2, in x**2, the last coefficients first.
_SERIES: Final = [
    np.array([[[(-1) ** n / math.factorial(2 * n + 1)]], [[(-1) ** n / math.factorial(2 * n)]]])
    for n in range(7, 0, -1)
]
# What becomes of cos and sin a quarter turn later, and after two and three.
_COSINE_SIGNS: Final = np.array([1.0, -1.0, -1.0, 1.0])
_SINE_SIGNS: Final = np.array([1.0, 1.0, -1.0, -1.0])


def tables(positions_T: Tensor, inv_freq: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    """cos and sin [T, r] f32 of integer positions for r/2 inverse frequencies; `scale` multiplies both. Angles are f32,
    as Hugging Face has them, and below 2**27."""
    positions_T1, inv_freq = positions_T.to(torch.float32)[:, None], inv_freq.to(torch.float32)
    cos_Tr, sin_Tr = (torch.empty(len(positions_T), 2 * len(inv_freq)) for _ in range(2))
    for first in range(0, len(positions_T), _ROWS):
        rows = slice(first, first + _ROWS)
        angles = (positions_T1[rows] * inv_freq).numpy().astype(np.float64)
        for table_Tr, values in zip((cos_Tr, sin_Tr), _turned(angles), strict=True):
            half = torch.from_numpy(values.astype(np.float32)) * scale
            torch.cat((half, half), dim=-1, out=table_Tr[rows])
    return cos_Tr, sin_Tr


def _turned(angles: _F64) -> tuple[_F64, _F64]:
    """cos and sin, to 2**-48."""
    turns = np.rint(angles * _TURNS)
    rest = angles
    for part in _QUARTER:
        rest = rest - turns * part
    square = rest * rest
    series = _SERIES[0]
    for coefficient in _SERIES[1:]:
        series = series * square + coefficient
    series = series * square
    sin, cos = rest + rest * series[0], 1 + series[1]
    quarter = turns.astype(np.int64) & 3
    swapped = (quarter & 1).astype(np.bool_)
    return (
        np.where(swapped, sin, cos) * _COSINE_SIGNS[quarter],
        np.where(swapped, cos, sin) * _SINE_SIGNS[quarter],
    )


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
