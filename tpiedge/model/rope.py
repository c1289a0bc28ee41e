"""Rotary position embedding: the inverse frequencies of every scaling that Llama-like models use.

They equal those of transformers 5 (`modeling_rope_utils.py`) to f32 rounding: powers in f64, all else in f32 in the
same order. One rounding of a frequency turns the angle at position 100,000 by 0.01. Logarithms and exponentials use
IEEE additions, multiplications and divisions alone, so all machines get the same bits, unlike with libm and numpy.
"""

import functools
import math
from dataclasses import dataclass
from typing import Annotated, Final, Literal, cast, get_args

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from tpiedge.model.folder import ConfigFields

RopeKind = Literal["default", "linear", "dynamic", "yarn", "llama3"]
ROPE_KINDS: tuple[str, ...] = get_args(RopeKind)

Frequencies = NDArray[np.float32]

_MAX_POSITIONS = 1 << 27
Positions = Annotated[int, Meta(ge=1, le=_MAX_POSITIONS)]
_MIN_FACTOR, _MAX_FACTOR = 1e-3, 1e6


@dataclass(frozen=True)
class RopeConfig:
    """`max_positions` is the model's context length, `original_positions` that of pretraining (yarn, llama3)."""

    kind: RopeKind
    theta: Annotated[float, Meta(ge=1.0001, le=1e12)]
    max_positions: Positions
    original_positions: Positions
    factor: Annotated[float, Meta(ge=_MIN_FACTOR, le=_MAX_FACTOR)] = 1.0
    low_freq_factor: Annotated[float, Meta(ge=1e-6, le=1e6)] = 1.0
    high_freq_factor: Annotated[float, Meta(ge=1e-6, le=1e6)] = 4.0
    attention_factor: Annotated[float, Meta(ge=0, le=1e3)] | None = None
    beta_fast: Annotated[float, Meta(ge=1e-9, le=1e6)] = 32.0
    beta_slow: Annotated[float, Meta(ge=1e-9, le=1e6)] = 1.0
    mscale: Annotated[float, Meta(ge=0, le=1e3)] | None = None
    mscale_all_dim: Annotated[float, Meta(ge=0, le=1e3)] | None = None
    truncate: bool = True

    @staticmethod
    def from_huggingface(config: ConfigFields, max_positions: int) -> "RopeConfig":
        """Reads `rope_parameters`, or the older `rope_scaling` and `rope_theta`. Raises UserError."""
        key = "rope_scaling" if config.raw("rope_scaling") else "rope_parameters"
        rope = config.fields(key)
        kind = rope.choice("rope_type", ROPE_KINDS, rope.text("type", "default"))
        if any(isinstance(rope.raw(name), dict) for name in ("full_attention", "sliding_attention")):
            config.refuse(key, "differs between layer types, which is not supported")
        for fields in (config, rope):
            if fields.number("partial_rotary_factor", 0, 1, 1.0) != 1.0:
                fields.refuse("partial_rotary_factor", "below 1 is not supported")
        theta = config if rope.raw("rope_theta") is None else rope
        source = rope if config.raw("original_max_position_embeddings") is None else config
        original = source.integer("original_max_position_embeddings", 1, _MAX_POSITIONS, max_positions)
        # yarn without a factor stretches the original context to the claimed one
        implied = max_positions / original if kind == "yarn" else 1.0 if kind == "default" else None
        llama3 = kind == "llama3"
        found = RopeConfig(
            kind=cast(RopeKind, kind),
            theta=theta.number("rope_theta", 1.0001, 1e12, 10000.0),
            max_positions=max_positions,
            original_positions=original,
            factor=rope.number("factor", _MIN_FACTOR, _MAX_FACTOR, implied),
            low_freq_factor=rope.number("low_freq_factor", 1e-6, 1e6, None if llama3 else 1.0),
            high_freq_factor=rope.number("high_freq_factor", 1e-6, 1e6, None if llama3 else 4.0),
            attention_factor=rope.optional_number("attention_factor", 0, 1e3),
            beta_fast=rope.number("beta_fast", 0, 1e6, 32.0) or 32.0,
            beta_slow=rope.number("beta_slow", 0, 1e6, 1.0) or 1.0,
            mscale=rope.optional_number("mscale", 0, 1e3),
            mscale_all_dim=rope.optional_number("mscale_all_dim", 0, 1e3),
            truncate=rope.flag("truncate", True),
        )
        found.check(rope)
        return found

    def check(self, fields: ConfigFields) -> None:
        if self.kind == "llama3" and self.high_freq_factor <= self.low_freq_factor:
            fields.refuse("high_freq_factor", f"is {self.high_freq_factor:g}, not above low_freq_factor")


@functools.lru_cache(maxsize=64)  # every step asks for them
def rope_frequencies(rope: RopeConfig, head_dim: int) -> tuple[Frequencies, float]:
    """Returns (inverse frequencies, f32 [head_dim / 2], read-only; factor on cos and sin). "dynamic" changes nothing:
    models are used within `max_positions`."""
    if rope.kind in ("default", "dynamic"):
        return _inverse(_powers(rope.theta, head_dim)), 1.0
    if rope.kind == "linear":
        return _inverse(_powers(rope.theta, head_dim)) / np.float32(rope.factor), 1.0
    if rope.kind == "yarn":
        return _yarn(rope, head_dim), _yarn_scale(rope)
    return _llama3(rope, head_dim), 1.0


def _powers(theta: float, head_dim: int) -> Frequencies:
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    return exponential(exponents.astype(np.float64) * logarithm(float(np.float32(theta)))).astype(np.float32)


def _inverse(values: Frequencies) -> Frequencies:
    return np.float32(1.0) / values


def _llama3(rope: RopeConfig, head_dim: int) -> Frequencies:
    inverse = _inverse(_powers(rope.theta, head_dim))
    original, low, high = rope.original_positions, rope.low_freq_factor, rope.high_freq_factor
    wavelength = np.float32(2 * math.pi) / inverse
    slowed = inverse / np.float32(rope.factor)
    smooth = (np.float32(original) / wavelength - np.float32(low)) / np.float32(high - low)
    between = (np.float32(1) - smooth) * inverse / np.float32(rope.factor) + smooth * inverse
    is_long = wavelength > np.float32(original / low)
    is_short = wavelength < np.float32(original / high)
    result: Frequencies = np.where(is_long, slowed, np.where(is_short, inverse, between))
    return result


def _yarn(rope: RopeConfig, head_dim: int) -> Frequencies:
    """YaRN (arXiv 2309.00071): keeps high frequencies and interpolates low ones."""

    def dimension(turns: float) -> float:
        """Returns the dimension that turns `turns` times within the original context."""
        ratio = rope.original_positions / (turns * 2 * math.pi)
        return head_dim * logarithm(ratio) / (2 * logarithm(rope.theta))

    powers = _powers(rope.theta, head_dim)
    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001  # a step instead of a division by zero
    steps = (np.arange(head_dim // 2, dtype=np.float32) - np.float32(low)) / np.float32(high - low)
    kept = np.float32(1) - np.clip(steps, np.float32(0), np.float32(1))
    interpolated = _inverse(np.float32(rope.factor) * powers)
    result: Frequencies = interpolated * (np.float32(1) - kept) + _inverse(powers) * kept
    return result


def _yarn_scale(rope: RopeConfig) -> float:
    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return _mscale(rope.factor, rope.mscale) / _mscale(rope.factor, rope.mscale_all_dim)
    return _mscale(rope.factor, 1.0)


def _mscale(factor: float, weight: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * weight * logarithm(factor) + 1.0


# ln 2 in two parts, the first of 32 bits: it times an exponent of f64 is exact.
_LN2: Final = 0.6931471805599453
_LN2_HIGH: Final = float.fromhex("0x1.62e42feep-1")
_LN2_LOW: Final = float.fromhex("0x1.a39ef35793c76p-33")
# Coefficients of ln((1 + s) / (1 - s)) / 2s in s**2 and of e**r, the last ones first.
_LOGARITHM: Final = [1 / (2 * n + 1) for n in range(12, -1, -1)]
_EXPONENTIAL: Final = [1 / math.factorial(n) for n in range(15, -1, -1)]


def logarithm(value: float) -> float:
    """ln of a finite number above 0 to a relative error of 2**-50."""
    fraction, exponent = math.frexp(value)
    if fraction < math.sqrt(0.5):
        fraction, exponent = 2 * fraction, exponent - 1
    s = (fraction - 1) / (fraction + 1)
    series = 0.0
    for coefficient in _LOGARITHM:
        series = series * (s * s) + coefficient
    return exponent * _LN2_HIGH + (exponent * _LN2_LOW + 2 * s * series)


def exponential(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """e**values to a relative error of 2**-50 where that is a normal number."""
    powers = np.rint(values * (1 / _LN2))
    rest = (values - powers * _LN2_HIGH) - powers * _LN2_LOW
    series = np.zeros_like(rest)
    for coefficient in _EXPONENTIAL:
        series = series * rest + coefficient
    result: NDArray[np.float64] = np.ldexp(series, powers.astype(np.int64))
    return result
