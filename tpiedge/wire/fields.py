"""What a field of a message may hold, said in its type: `codec.py` has msgspec refuse everything else, NaN included."""

import sys
from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta, Struct

from tpiedge.wire.limits import MAX_BLOB, MAX_NODES, MAX_TEXT


class Wire(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A part of a message. It travels as the array of its fields; a part that is a dataclass, with their names."""


class Message(Wire, frozen=True):
    """One that has a tag in `messages.py`."""


@dataclass(frozen=True, slots=True)
class Range:
    """Inclusive bounds of a number that a user gives."""

    low: float
    high: float


I8 = Annotated[int, Meta(ge=-(2**7), le=2**7 - 1)]
U8 = Annotated[int, Meta(ge=0, le=2**8 - 1)]
U32 = Annotated[int, Meta(ge=0, le=2**32 - 1)]
U64 = Annotated[int, Meta(ge=0)]
"""MessagePack has no larger ones."""
Rank = Annotated[int, Meta(ge=0, le=MAX_NODES - 1)]
Finite = Annotated[float, Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
Seconds = Annotated[float, Meta(ge=0.0, le=1e9)]
Rate = Annotated[float, Meta(ge=0.0, le=1e18)]
"""Bytes per second; 0 where nothing was measured. `check_rates` refuses what lies between 0 and 1."""
Name = Annotated[str, Meta(max_length=256)]
Text = Annotated[str, Meta(max_length=MAX_TEXT)]
Blob = Annotated[bytes, Meta(max_length=MAX_BLOB)]
Key = Annotated[str, Meta(max_length=40)]
"""A CURVE public key in Z85, or empty."""
UnitRange = tuple[U32, U32]
"""(start, stop), half open."""
Compute = Literal["f32", "bf16", "int8"]
"""The arithmetic of products with weights: int8 where weights are quantised, and only there."""
KVPrecision = Literal["f32", "bf16", "q8", "q4"]
"""How keys and values are kept."""
CollectiveName = Literal["star", "mesh", "two-shot"]
CollectiveChoice = Literal["auto", "star", "mesh", "two-shot"]
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


def check_rates(*rates: float) -> None:
    """Raises ValueError for a rate between 0 and 1: planning divides by it and would overflow."""
    if any(0 < rate < 1 for rate in rates):
        raise ValueError("a rate is 0 or at least 1 byte per second")
