"""Rotary position embedding: the inverse frequencies of every scaling that Llama-like models use.

The numbers are those of transformers (`modeling_rope_utils.py`, 5.x) to float32 rounding: powers are taken in
float64 and rounded, everything else in float32 in the same order. At position 100,000 a single rounding of a
frequency turns an angle by 0.01, so the order matters.
"""

import functools
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tpiedge.errors import InternalError
from tpiedge.model.elementary import exponential, logarithm
from tpiedge.model.fields import ConfigFields
from tpiedge.sanitise import quote

ROPE_KINDS = ("default", "linear", "dynamic", "yarn", "llama3")

Frequencies = NDArray[np.float32]

_MAX_POSITIONS = 1 << 27
_DEFAULT_THETA = 10000.0
_MIN_FACTOR, _MAX_FACTOR = 1e-3, 1e6


@dataclass(frozen=True)
class RopeConfig:
    """The scaling `kind` and its parameters; a kind reads only its own.

    `max_positions` is the context length the model claims, `original_positions` the one of its
    pretraining (yarn, llama3).
    """

    kind: str
    theta: float
    max_positions: int
    original_positions: int
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True

    @property
    def depends_on_length(self) -> bool:
        """Whether frequencies change as a sequence grows beyond `max_positions`."""
        return self.kind == "dynamic"

    @staticmethod
    def from_huggingface(config: ConfigFields, max_positions: int) -> "RopeConfig":
        """Reads `rope_parameters`, or the older `rope_scaling` and `rope_theta`. Raises UserError."""
        key = "rope_scaling" if config.raw("rope_scaling") else "rope_parameters"
        rope = config.fields(key)
        kind = _kind(rope)
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
        return _checked(
            rope,
            RopeConfig(
                kind=kind,
                theta=theta.number("rope_theta", 1.0001, 1e12, _DEFAULT_THETA),
                max_positions=max_positions,
                original_positions=original,
                factor=rope.number("factor", _MIN_FACTOR, _MAX_FACTOR, implied),
                low_freq_factor=rope.number("low_freq_factor", 1e-6, 1e6, None if kind == "llama3" else 1.0),
                high_freq_factor=rope.number(
                    "high_freq_factor", 1e-6, 1e6, None if kind == "llama3" else 4.0
                ),
                attention_factor=rope.optional_number("attention_factor", 0, 1e3),
                beta_fast=rope.number("beta_fast", 0, 1e6, 32.0) or 32.0,
                beta_slow=rope.number("beta_slow", 0, 1e6, 1.0) or 1.0,
                mscale=rope.optional_number("mscale", 0, 1e3),
                mscale_all_dim=rope.optional_number("mscale_all_dim", 0, 1e3),
                truncate=rope.flag("truncate", True),
            ),
        )

    def to_json(self) -> dict[str, Any]:
        """The inverse of `from_json`."""
        return asdict(self)

    @staticmethod
    def from_json(where: str, values: Mapping[str, object]) -> "RopeConfig":
        """Raises UserError that starts with `where`."""
        rope = ConfigFields(where, values)
        return _checked(
            rope,
            RopeConfig(
                kind=_kind(rope, "kind"),
                theta=rope.number("theta", 1.0001, 1e12),
                max_positions=rope.integer("max_positions", 1, _MAX_POSITIONS),
                original_positions=rope.integer("original_positions", 1, _MAX_POSITIONS),
                factor=rope.number("factor", _MIN_FACTOR, _MAX_FACTOR),
                low_freq_factor=rope.number("low_freq_factor", 1e-6, 1e6),
                high_freq_factor=rope.number("high_freq_factor", 1e-6, 1e6),
                attention_factor=rope.optional_number("attention_factor", 0, 1e3),
                beta_fast=rope.number("beta_fast", 1e-9, 1e6),
                beta_slow=rope.number("beta_slow", 1e-9, 1e6),
                mscale=rope.optional_number("mscale", 0, 1e3),
                mscale_all_dim=rope.optional_number("mscale_all_dim", 0, 1e3),
                truncate=rope.flag("truncate"),
            ),
        )


def rope_frequencies(rope: RopeConfig, head_dim: int, length: int) -> tuple[Frequencies, float]:
    """(inverse frequencies, float32 [head_dim / 2], not to be changed; factor on cos and sin).

    `length` is the number of positions in use and matters for the kind "dynamic" only: position p is rotated
    by p * frequency, for all p < length.
    """
    return _frequencies(rope, head_dim, max(length, rope.max_positions) if rope.depends_on_length else 0)


@functools.lru_cache(maxsize=64)  # every step asks for them
def _frequencies(rope: RopeConfig, head_dim: int, length: int) -> tuple[Frequencies, float]:
    if rope.kind == "default":
        return _inverse(_powers(rope.theta, head_dim)), 1.0
    if rope.kind == "linear":
        return _inverse(_powers(rope.theta, head_dim)) / np.float32(rope.factor), 1.0
    if rope.kind == "dynamic":
        return _inverse(_powers(_dynamic_theta(rope, head_dim, length), head_dim)), 1.0
    if rope.kind == "yarn":
        return _yarn(rope, head_dim), _yarn_scale(rope)
    if rope.kind == "llama3":
        return _llama3(rope, head_dim), 1.0
    raise InternalError(f"rope kind {rope.kind!r} passed the config's checks but has no frequencies")


def _kind(rope: ConfigFields, key: str = "rope_type") -> str:
    kind = rope.text(key, rope.text("type", "default") if key == "rope_type" else None)
    if kind not in ROPE_KINDS:
        rope.refuse(key, f"is {quote(kind)}; supported are {', '.join(ROPE_KINDS)}")
    return kind


def _checked(fields: ConfigFields, rope: RopeConfig) -> RopeConfig:
    if rope.kind == "llama3" and rope.high_freq_factor <= rope.low_freq_factor:
        fields.refuse("high_freq_factor", f"is {rope.high_freq_factor:g}, not above low_freq_factor")
    return rope


def _powers(theta: float, head_dim: int) -> Frequencies:
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    return exponential(exponents.astype(np.float64) * logarithm(float(np.float32(theta)))).astype(np.float32)


def _inverse(values: Frequencies) -> Frequencies:
    return np.float32(1.0) / values


def _dynamic_theta(rope: RopeConfig, head_dim: int, length: int) -> float:
    """NTK-aware scaling: theta grows with the sequence once it is longer than the model's context."""
    if length <= rope.max_positions:
        stretch = np.float32(rope.factor - (rope.factor - 1))
    else:
        ratio = np.float32(rope.factor) * np.float32(length) / np.float32(rope.max_positions)
        stretch = ratio - np.float32(rope.factor - 1)
    exponent = np.array([np.float32(head_dim / (head_dim - 2))], np.float64)
    (power,) = exponential(exponent * logarithm(float(stretch))).astype(np.float32)
    return float(np.float32(rope.theta) * power)


def _llama3(rope: RopeConfig, head_dim: int) -> Frequencies:
    """Long waves are slowed by `factor`, short ones kept, those between interpolated."""
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
    """YaRN (arXiv 2309.00071): what turns often is kept, what turns rarely is interpolated."""
    powers = _powers(rope.theta, head_dim)
    low, high = _yarn_range(rope, head_dim)
    if low == high:
        high += 0.001  # a step instead of a division by zero
    steps = (np.arange(head_dim // 2, dtype=np.float32) - np.float32(low)) / np.float32(high - low)
    kept = np.float32(1) - np.clip(steps, np.float32(0), np.float32(1))
    interpolated = _inverse(np.float32(rope.factor) * powers)
    result: Frequencies = interpolated * (np.float32(1) - kept) + _inverse(powers) * kept
    return result


def _yarn_range(rope: RopeConfig, head_dim: int) -> tuple[float, float]:
    """The dimensions that turn `beta_fast` and `beta_slow` times within the original context."""

    def dimension(turns: float) -> float:
        ratio = rope.original_positions / (turns * 2 * math.pi)
        return head_dim * logarithm(ratio) / (2 * logarithm(rope.theta))

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    return max(low, 0), min(high, head_dim - 1)


def _yarn_scale(rope: RopeConfig) -> float:
    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return _mscale(rope.factor, rope.mscale) / _mscale(rope.factor, rope.mscale_all_dim)
    return _mscale(rope.factor, 1.0)


def _mscale(factor: float, weight: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * weight * logarithm(factor) + 1.0
