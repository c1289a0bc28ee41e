"""A reference for the native kernels: keys and values as the cache stores them where they are quantised, by
torch and by the book (kv_format.py).

T tokens, K KV heads, S positions, d head width, B bytes of a row, G groups of a row.
"""

from dataclasses import dataclass
from typing import TypeAlias

import torch
import torch.nn.functional as functional
from torch import Tensor

from tpiedge.kernels.kv_format import KV_GROUP, KVFormat

_LARGEST_CODE = {8: 127.0, 4: 15.0}


@dataclass(frozen=True)
class QuantisedRows:
    """Keys or values of some heads at successive positions: uint8 [K, S, B], at any strides but the last."""

    format: KVFormat
    data_KSB: Tensor

    @property
    def shape(self) -> tuple[int, int, int]:
        """[K, S, d], as that of a tensor of numbers would be."""
        heads, positions, _ = self.data_KSB.shape
        return heads, positions, self.format.width

    def numbers(self) -> Tensor:
        """[K, S, d] f32: what the codes stand for."""
        return decode(self.data_KSB, self.format)


Rows: TypeAlias = Tensor | QuantisedRows
"""Keys or values [K, S, d] of some heads at successive positions."""


def encode(x_TKd: Tensor, format_: KVFormat) -> Tensor:
    """[T, K, B] uint8, contiguous, of f32 at any strides; the native kernels leave the same bytes."""
    tokens, heads, width = x_TKd.shape
    padding = format_.groups * KV_GROUP - width
    x_TKGn = functional.pad(x_TKd, (0, padding)).view(tokens, heads, format_.groups, KV_GROUP)
    if padding:
        x_TKGn[..., -1, KV_GROUP - padding :] = x_TKGn[..., -1, :1]
    scales, codes_TKGn = (_symmetric if format_.bits == 8 else _asymmetric)(x_TKGn)
    codes_TKc = _packed(codes_TKGn, format_)
    return torch.cat([torch.stack(scales, -1).flatten(2).view(torch.uint8), codes_TKc], dim=-1)


def decode(rows_B: Tensor, format_: KVFormat) -> Tensor:
    """[..., d] f32 of [..., B] rows."""
    # A clone: `contiguous` keeps odd strides of dimensions with one element, which `view` refuses.
    halves = rows_B[..., : format_.scales_nbytes].clone(memory_format=torch.contiguous_format)
    scales = halves.view(torch.float16).float()
    codes = rows_B[..., format_.scales_nbytes :]
    if format_.bits == 8:
        codes_d = codes.contiguous().view(torch.int8).float()
        return codes_d * scales.repeat_interleave(KV_GROUP, -1)[..., : format_.width]
    pairs = scales[..., 0::2], scales[..., 1::2]
    scale, least = (part.repeat_interleave(KV_GROUP, -1)[..., : format_.width] for part in pairs)
    return least + scale * _nibbles(codes, format_).float()


def _symmetric(x_Gn: Tensor) -> tuple[tuple[Tensor], Tensor]:
    scale_G = _half_above(x_Gn.abs().amax(-1) / _LARGEST_CODE[8])
    bad_G = ~x_Gn.isfinite().all(-1) | scale_G.isinf()
    codes_Gn = torch.round(x_Gn * _inverse(scale_G)[..., None])
    return (_poisoned(scale_G, bad_G),), codes_Gn.masked_fill(bad_G[..., None], 0).to(torch.int8)


def _asymmetric(x_Gn: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
    low_G, high_G = x_Gn.amin(-1), x_Gn.amax(-1)
    least_G = torch.where(low_G < 0, -_half_above(-low_G), _half_below(low_G))
    scale_G = _half_above((high_G - least_G.float()) / _LARGEST_CODE[4])
    bad_G = ~x_Gn.isfinite().all(-1) | least_G.isinf() | scale_G.isinf()
    codes_Gn = torch.round((x_Gn - least_G.float()[..., None]) * _inverse(scale_G)[..., None])
    scales = _poisoned(scale_G, bad_G), least_G.masked_fill(bad_G, 0)
    return scales, codes_Gn.masked_fill(bad_G[..., None], 0).to(torch.uint8)


def _inverse(scale: Tensor) -> Tensor:
    wide = scale.float()
    return torch.where(wide > 0, 1 / wide, 0.0)


def _poisoned(scale: Tensor, bad: Tensor) -> Tensor:
    # The bits of one NaN: there are many.
    return torch.where(bad, torch.tensor(0x7E00, dtype=torch.int16), scale.view(torch.int16)).view(
        torch.float16
    )


def _half_above(x: Tensor) -> Tensor:
    near = x.abs().half()
    return (near.view(torch.int16) + (near.float() < x).to(torch.int16)).view(torch.float16)


def _half_below(x: Tensor) -> Tensor:
    near = x.abs().half()
    return (near.view(torch.int16) - (near.float() > x).to(torch.int16)).view(torch.float16)


def _packed(codes_TKGn: Tensor, format_: KVFormat) -> Tensor:
    codes_TKd = codes_TKGn.flatten(2)[..., : format_.width]
    if format_.bits == 8:
        return codes_TKd.contiguous().view(torch.uint8)
    packed = []
    for start in range(0, format_.width, KV_GROUP):
        group = codes_TKd[..., start : start + KV_GROUP]
        half = -(-group.shape[-1] // 2)
        upper = functional.pad(group[..., half:], (0, 2 * half - group.shape[-1]))
        packed.append(group[..., :half] | upper << 4)
    return torch.cat(packed, -1)


def _nibbles(codes: Tensor, format_: KVFormat) -> Tensor:
    half = KV_GROUP // 2
    groups = [codes[..., start : start + half] for start in range(0, codes.shape[-1], half)]
    parts = [part for group in groups for part in (group & 15, group >> 4)]
    return torch.cat(parts, -1)[..., : format_.width]
