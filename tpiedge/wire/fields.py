"""What a field of a message may hold, said in its type.

`schema.py` turns these annotations into checks. A bare `int`, `str` or `tuple[T, ...]` is refused there, so
no field can be added without a bound.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from tpiedge.wire.limits import MAX_BLOB, MAX_NODES, MAX_TEXT


@dataclass(frozen=True, slots=True)
class Range:
    """Inclusive bounds of an int or a float; with `or_zero`, 0 is allowed besides."""

    low: float
    high: float
    or_zero: bool = False


@dataclass(frozen=True, slots=True)
class MaxLength:
    """Characters of a str."""

    count: int


@dataclass(frozen=True, slots=True)
class MaxBytes:
    """Length of a bytes."""

    count: int


@dataclass(frozen=True, slots=True)
class MaxItems:
    """Elements of a `tuple[T, ...]`."""

    count: int


@dataclass(frozen=True, slots=True)
class Packed:
    """A long tuple of numbers that travels as one binary string: `layout` (as in `struct`) per element.

    Elements are numbers, or tuples of numbers where `layout` has several.
    """

    layout: str
    count: int


U8 = Annotated[int, Range(0, 2**8 - 1)]
U32 = Annotated[int, Range(0, 2**32 - 1)]
U64 = Annotated[int, Range(0, 2**64 - 1)]
Rank = Annotated[int, Range(0, MAX_NODES - 1)]
Seconds = Annotated[float, Range(0.0, 1e9)]
Rate = Annotated[float, Range(1.0, 1e18, or_zero=True)]
"""Bytes per second; 0 where nothing was measured. What lies between would make times that nobody can write down."""
Name = Annotated[str, MaxLength(256)]
Text = Annotated[str, MaxLength(MAX_TEXT)]
Blob = Annotated[bytes, MaxBytes(MAX_BLOB)]
Key = Annotated[str, MaxLength(40)]
"""A CURVE public key in Z85, or empty."""
UnitRange = tuple[U32, U32]
"""(start, stop), half open."""
Compute = Literal["f32", "bf16", "int8"]
"""The arithmetic of products with weights: int8 where weights are quantised, and only there."""
KVPrecision = Literal["f32", "bf16", "q8", "q4"]
"""How keys and values are kept."""
CollectiveName = Literal["star", "mesh", "two-shot", "tree", "ring"]
CollectiveChoice = Literal["auto", "star", "mesh", "two-shot", "tree", "ring"]
"""A collective, or whichever is the fastest by the measured links."""
WirePrecision = Literal["f32", "bf16", "int8"]
"""How summands travel: as they are, rounded to bf16, or as int8 with a scale for every group."""
SpareKind = Literal[
    "slower", "too small", "no room", "shares", "too many", "excluded", "drained", "fetching", "no plan"
]
"""Why a machine has no part in the plan: answers would be slower with it, or hardly faster; its memory holds no share
of the model at all; no share finds room in its memory or on its disk, or it lacks native kernels; --shares has nothing
for it; there are more machines than a cluster can have; it has failed; it is drained; its weights take long to come; or
there is no plan."""
Pin = Literal["none", "auto", "all"]


def rate_of(nbytes: int, seconds: float) -> float:
    """Returns bytes per second as a Rate: at least 1 where any bytes moved, and 0 where none did."""
    return max(1.0, nbytes / seconds) if nbytes else 0.0
