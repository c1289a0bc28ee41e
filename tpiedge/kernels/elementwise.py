"""RMS norm, gated activations, and rotary positions in Hugging Face's half-split form. In native code a token's bits do
not depend on other tokens.

T tokens, N heads, d head width, r rotated width.
"""

import math
import struct
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Final

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from tpiedge.kernels.library import Pool, check_f32

_F64 = NDArray[np.float64]

# pi / 2 in three parts: the first two have 25 bits, so their products with quarter turns below 2**27 are exact.
_QUARTER: Final = tuple(map(float.fromhex, ("0x1.921fb5p+0", "0x1.110b46p-26", "0x1.1a62633145c07p-54")))
_ROWS: Final = 256  # angles in f64 at a time
# Taylor's series around 0 of (sin(x) - x) / x**3 and (cos(x) - 1) / x**2, in x**2, the last coefficients first.
_SERIES: Final = [
    np.array([[[(-1) ** n / math.factorial(2 * n + 1)]], [[(-1) ** n / math.factorial(2 * n)]]])
    for n in range(7, 0, -1)
]
# Signs of cos and sin after 0 to 3 quarter turns.
_COSINE_SIGNS: Final = np.array([1.0, -1.0, -1.0, 1.0])
_SINE_SIGNS: Final = np.array([1.0, 1.0, -1.0, -1.0])


_ROTATION: Final = struct.Struct("=3q")  # Rotation of native/interface.h


@dataclass(frozen=True, eq=False)
class Rotation:
    """The rotations of a call's tokens, contiguous f32. Rotated queries are multiplied by the token's factor."""

    cos_Tr: Tensor
    sin_Tr: Tensor
    factor_T: Tensor | None = None

    @cached_property
    def packed(self) -> bytes:
        factor = 0 if self.factor_T is None else self.factor_T.data_ptr()
        return _ROTATION.pack(self.cos_Tr.data_ptr(), self.sin_Tr.data_ptr(), factor)

    def of_tokens(self, rows: slice) -> "Rotation":
        factor_T = None if self.factor_T is None else self.factor_T[rows]
        return Rotation(self.cos_Tr[rows], self.sin_Tr[rows], factor_T)

    def check(self, tokens: int, rotated: int) -> None:
        """Raises ValueError unless the tables belong to so many tokens and columns."""
        for table_Tr in (self.cos_Tr, self.sin_Tr):
            check_f32("a table of rotations", table_Tr, (tokens, rotated))
        if self.factor_T is not None:
            check_f32("factors of queries", self.factor_T, (tokens,))


class Activation(StrEnum):
    """An FFN's activation, named as in config.json. The order is the native code's numbering."""

    SILU = "silu"
    GELU_TANH = "gelu_pytorch_tanh"
    TANH = "tanh"
    #: With g = min(gate, 7) and u = clamp(up, -7, 7): g * sigmoid(1.702 g) * (u + 1).
    GPT_OSS = "gpt_oss"

    @property
    def number(self) -> int:
        return list(Activation).index(self)


def rms_norm(x: Tensor, weight: Tensor, eps: float, pool: Pool | None = None) -> Tensor:
    """Returns f32 x * rsqrt(mean(x^2) + eps) * weight, over the last dimension."""
    if pool is None:
        variance = x.pow(2).mean(-1, keepdim=True)
        return weight * (x * torch.rsqrt(variance + eps))
    x_TNd = x if x.dim() == 3 else x[:, None]
    check_f32("the norm's weight", weight, x.shape[-1:])
    y = torch.empty(x.shape)
    _by_rows(pool, "tpiedge_rms_norm", x_TNd, y, weight.data_ptr(), eps)
    return y


def rope(
    x_TNd: Tensor, cos_Tr: Tensor, sin_Tr: Tensor, pool: Pool | None = None, factor_T: Tensor | None = None
) -> Tensor:
    """Rotates the first r columns of every head. Then multiplies all columns by the token's factor, if any."""
    tokens, _, head_width = x_TNd.shape
    width = cos_Tr.shape[-1]
    if pool is not None:
        if width % 2 or width > head_width:
            raise ValueError(f"{width} of {head_width} columns are to be rotated")
        rotation = Rotation(cos_Tr, sin_Tr, factor_T)
        rotation.check(tokens, width)
        y_TNd = torch.empty(x_TNd.shape)
        _by_rows(pool, "tpiedge_rope", x_TNd, y_TNd, rotation.packed, width)
        return y_TNd
    x = x_TNd[..., :width]
    low, high = x.chunk(2, dim=-1)
    rotated = x * cos_Tr[:, None, :] + torch.cat((-high, low), dim=-1) * sin_Tr[:, None, :]
    y_TNd = rotated if width == head_width else torch.cat((rotated, x_TNd[..., width:]), dim=-1)
    return y_TNd if factor_T is None else y_TNd * factor_T[:, None, None]


def activate(
    gate_TF: Tensor,
    up_TF: Tensor | None = None,
    activation: Activation = Activation.SILU,
    pool: Pool | None = None,
) -> Tensor:
    """Returns activation(gate) * up, or activation(gate). Without `pool`, `gate_TF` is overwritten."""
    if pool is None:
        if activation is Activation.GPT_OSS:
            gate_TF.clamp_(max=7).mul_(torch.sigmoid(1.702 * gate_TF))
            up_TF = None if up_TF is None else up_TF.clamp(-7, 7) + 1
        elif activation is Activation.SILU:
            F.silu(gate_TF, inplace=True)
        elif activation is Activation.TANH:
            gate_TF.tanh_()
        else:
            torch.ops.aten.gelu_(gate_TF, approximate="tanh")
        return gate_TF if up_TF is None else gate_TF.mul_(up_TF)
    for x_TF in (gate_TF, gate_TF if up_TF is None else up_TF):
        check_f32("gate or up", x_TF, gate_TF.shape)
    y_TF, up = torch.empty(gate_TF.shape), 0 if up_TF is None else up_TF.data_ptr()
    numbers = y_TF.numel(), activation.number
    pool.call("tpiedge_activate", gate_TF.data_ptr(), up, y_TF.data_ptr(), *numbers)
    return y_TF


def tables(positions_T: Tensor, inv_freq: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    """Returns cos and sin, f32 [T, r], times `scale`. Angles must be below 2**27."""
    positions_T1, inv_freq = positions_T.to(torch.float32)[:, None], inv_freq.to(torch.float32)
    cos_Tr, sin_Tr = (torch.empty(len(positions_T), 2 * len(inv_freq)) for _ in range(2))
    for first in range(0, len(positions_T), _ROWS):
        rows = slice(first, first + _ROWS)
        angles = (positions_T1[rows] * inv_freq).numpy().astype(np.float64)
        for table_Tr, values in zip((cos_Tr, sin_Tr), _turned(angles), strict=True):
            half = torch.from_numpy(values.astype(np.float32)) * scale
            torch.cat((half, half), dim=-1, out=table_Tr[rows])
    return cos_Tr, sin_Tr


# Library functions differ between instruction sets, f64 sums and products do not.
def _turned(angles: _F64) -> tuple[_F64, _F64]:
    turns = np.rint(angles * (2 / math.pi))
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


def _by_rows(pool: Pool, function: str, x_TNd: Tensor, y: Tensor, *arguments: float | bytes) -> None:
    check_f32("rows", x_TNd, x_TNd.shape[:3], contiguous=False)
    x_TNd = x_TNd if x_TNd.stride(2) == 1 else x_TNd.contiguous()
    pool.call(function, x_TNd.data_ptr(), y.data_ptr(), *x_TNd.stride()[:2], *x_TNd.shape, *arguments)
