"""Computes the inverse frequencies of rotary position embeddings, with the scalings of Llama-like models.

Frequencies equal those of transformers 5 (`modeling_rope_utils.py`), up to f32 rounding. The module `decimal` computes
powers with the same bits on all machines.
"""

import functools
import math
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Context, Decimal, InvalidOperation, Overflow
from typing import Annotated, Final, Literal, cast, get_args

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from tpiedge.model.folder import ConfigFields

RopeKind = Literal["default", "linear", "dynamic", "yarn", "llama3"]
ROPE_KINDS: tuple[str, ...] = get_args(RopeKind)

Frequencies = NDArray[np.float32]

MAX_POSITIONS = 1 << 27
Positions = Annotated[int, Meta(ge=1, le=MAX_POSITIONS)]
_MIN_FACTOR, _MAX_FACTOR = 1e-3, 1e6
_ONE: Final = np.float32(1)
#: All fields are given, because defaults come from `decimal.DefaultContext`, which any library may change.
_DIGITS: Final = Context(28, ROUND_HALF_EVEN, Emin=-999_999, Emax=999_999, traps=[InvalidOperation, Overflow])


@dataclass(frozen=True)
class RopeConfig:
    """`max_positions` is the context length, `original_positions` that of pretraining (yarn, llama3)."""

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
        """Reads `rope_parameters`, or the older `rope_scaling` and `rope_theta`."""
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
        original = source.integer("original_max_position_embeddings", 1, MAX_POSITIONS, max_positions)
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
    """Returns (inverse frequencies, factor on cos and sin). The frequencies are a read-only f32 [head_dim / 2]."""
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
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
    # "dynamic" changes nothing: models are used within `max_positions`.
    return _ONE / powers / np.float32(rope.factor if rope.kind == "linear" else 1), 1.0


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


def _mscale(factor: float, weight: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * weight * _logarithm(factor) + 1.0
