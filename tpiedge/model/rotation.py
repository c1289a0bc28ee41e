"""Computes the inverse frequencies of rotary position embeddings.

Frequencies equal those of transformers 5 (`modeling_rope_utils.py`), up to f32 rounding. The module `decimal` computes
powers with the same bits on all machines.
"""

import functools
import math
from decimal import ROUND_HALF_EVEN, Context, Decimal, InvalidOperation, Overflow
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tpiedge.model.rope import RopeConfig

Frequencies = NDArray[np.float32]

_ONE: Final = np.float32(1)
#: All fields are given, because defaults come from `decimal.DefaultContext`, which any library may change.
_DIGITS: Final = Context(28, ROUND_HALF_EVEN, Emin=-999_999, Emax=999_999, traps=[InvalidOperation, Overflow])


@functools.lru_cache(maxsize=64)  # every step asks for them
def rope_frequencies(rope: RopeConfig, head_dim: int) -> tuple[Frequencies, float]:
    """Returns (inverse frequencies, factor on cos and sin). The frequencies are a read-only f32 [r / 2] for r rotated
    columns of a head."""
    proportional = rope.kind == "proportional"
    width = head_dim if proportional else int(head_dim * rope.part)  # may be odd
    exponents = np.arange(0, width, 2, dtype=np.float32) / np.float32(width)
    # One rounding of a frequency turns the angle at position 100,000 by 0.01.
    log = _DIGITS.ln(Decimal.from_float(float(np.float32(rope.theta))))
    exact = (
        _DIGITS.exp(_DIGITS.multiply(Decimal.from_float(exponent), log)) for exponent in exponents.tolist()
    )
    powers = np.array([float(power) for power in exact], np.float32)
    if rope.kind == "yarn":
        return _yarn(rope, powers), _yarn_scale(rope)
    if rope.kind == "llama3":
        return _llama3(rope, _ONE / powers), 1.0
    if rope.kind == "longrope":
        return _ONE / (np.array(rope.short_factor, np.float32) * powers), _longrope_scale(rope)
    # "dynamic" changes nothing: models are used within `max_positions`.
    inverse = _ONE / powers / np.float32(rope.factor if proportional or rope.kind == "linear" else 1)
    if proportional:
        inverse[int(rope.part * head_dim // 2) :] = 0
    return inverse, 1.0


def _logarithm(value: float) -> float:
    return float(_DIGITS.ln(Decimal.from_float(value)))


def _llama3(rope: RopeConfig, inverse: Frequencies) -> Frequencies:
    original, low, high = rope.original_positions, rope.low_freq_factor, rope.high_freq_factor
    wavelength = np.float32(2 * math.pi) / inverse
    slowed = inverse / np.float32(rope.factor)
    smooth = (np.float32(original) / wavelength - np.float32(low)) / np.float32(high - low)
    between = (_ONE - smooth) * inverse / np.float32(rope.factor) + smooth * inverse
    is_long = wavelength > np.float32(original / low)
    is_short = wavelength < np.float32(original / high)
    result: Frequencies = np.where(is_long, slowed, np.where(is_short, inverse, between))
    return result


def _yarn(rope: RopeConfig, powers: Frequencies) -> Frequencies:
    """Keeps high frequencies and interpolates low ones: YaRN (arXiv 2309.00071)."""
    head_dim = 2 * len(powers)

    def dimension(turns: float) -> float:
        """Returns the dimension whose angle makes `turns` turns within the original context."""
        ratio = rope.original_positions / (turns * 2 * math.pi)
        return head_dim * _logarithm(ratio) / (2 * _logarithm(rope.theta))

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001  # a step instead of a division by zero
    steps = (np.arange(head_dim // 2, dtype=np.float32) - np.float32(low)) / np.float32(high - low)
    kept = _ONE - np.clip(steps, np.float32(0), _ONE)
    interpolated = _ONE / (np.float32(rope.factor) * powers)
    result: Frequencies = interpolated * (_ONE - kept) + (_ONE / powers) * kept
    return result


def _yarn_scale(rope: RopeConfig) -> float:
    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return _mscale(rope.factor, rope.mscale) / _mscale(rope.factor, rope.mscale_all_dim)
    return _mscale(rope.factor, 1.0)


@functools.lru_cache(maxsize=64)
def grown(growth: float, times: int) -> float:
    """Returns the factor of a query whose position has passed the original context so many times."""
    return 1 + growth * _logarithm(1 + times)


def _longrope_scale(rope: RopeConfig) -> float:
    if rope.attention_factor is not None or rope.factor <= 1:
        return 1.0 if rope.attention_factor is None else rope.attention_factor
    return math.sqrt(1 + _logarithm(rope.factor) / _logarithm(rope.original_positions))


def _mscale(factor: float, weight: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * weight * _logarithm(factor) + 1.0
