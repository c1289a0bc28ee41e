"""Describes rotary position embeddings, with the scalings of transformers 5 (`modeling_rope_utils.py`). Pure data."""

from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, Literal, cast, get_args

from msgspec import Meta

from tpiedge.model.folder import ConfigFields

RopeKind = Literal["default", "linear", "dynamic", "yarn", "llama3", "longrope", "proportional"]
USUAL_KINDS: tuple[str, ...] = get_args(RopeKind)[:-2]
"""The kinds of Llama and of most other families."""

MAX_POSITIONS = 1 << 27
Positions = Annotated[int, Meta(ge=1, le=MAX_POSITIONS)]
_MIN_FACTOR, _MAX_FACTOR = 1e-3, 1e6
_ORIGINAL, _PART = "original_max_position_embeddings", "partial_rotary_factor"
_Divisor = Annotated[float, Meta(ge=_MIN_FACTOR, le=_MAX_FACTOR)]


@dataclass(frozen=True)
class RopeConfig:
    """`max_positions` is the context length, `original_positions` that of pretraining (yarn, llama3, longrope). `part`:
    the part of a head's columns that is rotated, the first ones; in a proportional one, those of each half."""

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
    part: Annotated[float, Meta(gt=0, le=1)] = 1.0
    #: For longrope: divisors of the frequencies of sequences within the original context, and of longer ones.
    short_factor: tuple[_Divisor, ...] = ()
    long_factor: tuple[_Divisor, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Returns the fields. Those that older packs lack are left out unless they are used."""
        new = {"part": 1.0, "short_factor": (), "long_factor": ()}
        return {name: value for name, value in asdict(self).items() if name not in new or value != new[name]}

    def rotated(self, width: int) -> int:
        """Returns how many columns of a head of so many are rotated, an even number. Angles of some may be 0."""
        if self.kind == "proportional":
            return width
        return -2 * (-int(width * self.part) // 2)

    @property
    def context_tokens(self) -> int:
        """The number of usable positions."""
        match self.kind:
            case "linear":
                return int(self.max_positions * self.factor)
            case "yarn":
                return max(self.max_positions, int(self.original_positions * self.factor))
        return self.max_positions

    @property
    def short_tokens(self) -> int:
        """The tokens of the longest sequence that is rotated like this; `long` rotates all positions of longer ones."""
        return self.original_positions if self.kind == "longrope" else MAX_POSITIONS

    @property
    def long(self) -> "RopeConfig":
        return replace(self, short_factor=self.long_factor) if self.kind == "longrope" else self

    @staticmethod
    def from_huggingface(
        config: ConfigFields,
        max_positions: int,
        theta: float = 10000.0,
        kinds: Collection[str] = USUAL_KINDS,
        *,
        partial: bool = False,
    ) -> "RopeConfig":
        """Reads `rope_parameters`, or the older `rope_scaling` and `rope_theta`, whose default is `theta`. `partial`:
        whether some columns of a head may stay as they are. Raises UserError."""
        key = rope_key(config)
        rope = config.fields(key)
        if any(isinstance(rope.raw(name), dict) for name in ("full_attention", "sliding_attention")):
            config.refuse(key, "differs between layer types, which is not supported")
        if rope.raw("rope_theta") is None:
            theta = config.number("rope_theta", 1.0001, 1e12, theta)
        outer = {name: config.raw(name) for name in (_ORIGINAL, _PART) if config.raw(name) is not None}
        inner = {name: value for name, value in rope.values.items() if name != _ORIGINAL or name not in outer}
        found = RopeConfig.of(ConfigFields(rope.where, {**outer, **inner}), max_positions, theta, kinds)
        if found.part != 1 and not partial:
            config.refuse(_PART, "below 1 is not supported")
        return found

    @staticmethod
    def of(
        rope: ConfigFields, max_positions: int, theta: float, kinds: Collection[str] = USUAL_KINDS
    ) -> "RopeConfig":
        """Reads one kind of layers' parameters. `theta`: the default."""
        kind = rope.choice("rope_type", kinds, rope.text("type", "default"))
        original = rope.integer(_ORIGINAL, 1, MAX_POSITIONS, max_positions)
        # yarn and longrope without a factor stretch the original context to the claimed one
        implied = {
            "yarn": max_positions / original,
            "longrope": max_positions / original,
            "default": 1.0,
            "proportional": 1.0,
        }.get(kind)
        llama3 = kind == "llama3"
        found = RopeConfig(
            kind=cast(RopeKind, kind),
            theta=rope.number("rope_theta", 1.0001, 1e12, theta),
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
            part=rope.number(_PART, 1e-3, 1, 1.0),
            short_factor=_factors(rope, "short_factor") if kind == "longrope" else (),
            long_factor=_factors(rope, "long_factor") if kind == "longrope" else (),
        )
        found.check(rope)
        return found

    def check(self, fields: ConfigFields) -> None:
        if self.kind == "llama3" and self.high_freq_factor <= self.low_freq_factor:
            fields.refuse("high_freq_factor", f"is {self.high_freq_factor:g}, not above low_freq_factor")


def rope_key(config: ConfigFields) -> str:
    """Returns the key of the parameters."""
    return "rope_scaling" if config.raw("rope_scaling") else "rope_parameters"


def _factors(rope: ConfigFields, key: str) -> tuple[float, ...]:
    values = rope.sequence(key, 1 << 9)
    fields = ConfigFields(rope.where, {f"{key} {place}": value for place, value in enumerate(values)})
    return tuple(fields.number(name, _MIN_FACTOR, _MAX_FACTOR) for name in fields.values)
