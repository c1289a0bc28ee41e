"""How large anything on the wire may be, and what a field of a message may hold, said in its type: `codec.py` has
msgspec refuse everything else, NaN included.

Every bound is checked twice: by the sender before it sends, by the receiver before it believes.
"""

import sys
from dataclasses import dataclass
from math import prod
from typing import Annotated, Literal

from msgspec import Meta, Struct

from tpiedge.units import KIB, MIB

MAX_TENSOR_HEADER = 64 * KIB
"""Encoded message on the tensor plane (without its tensor frames)."""

MAX_CONTROL_HEADER = 1 * MIB + 640 * KIB
"""Encoded message on the control plane: a request with MAX_PROMPT_TOKENS, MAX_ANSWER_TOKENS of its answer and a
grammar of MAX_GRAMMAR fits."""

MAX_TENSOR_BYTES = 32 * MIB
"""One tensor frame. A chunk's is 1 MiB, or one row of hidden states where that is more; twice as much of wide
integers."""

MAX_FILE_CHUNK = 4 * MIB
"""Bytes of a file in one frame of the files plane."""

MAX_ARRAY = 128
"""Elements of one MessagePack array."""

MAX_BLOB = 256 * KIB
"""Opaque bytes inside a message."""

MAX_NODES = MAX_ARRAY
MAX_LAYERS = 1024
MAX_SEGMENTS = MAX_ARRAY
MAX_PAGES = 6000
"""Pages of the KV cache that one message names, all its lists together: with the segments they fit a header."""
MAX_SEQUENCES = 64
"""Requests that a cluster answers at once."""
MAX_SPANS = 4096
"""Of each kind, of one step: a model of a hundred layers has a few hundred."""

MAX_MOVES = 1024
"""Pairs of a rank and a KV head that one message names."""

MAX_DIMENSIONS = 4
MAX_HIDDEN = 131_072
"""Numbers of a position's hidden state; no model has more (`model/config.py`)."""
MAX_PROMPT_TOKENS = 131_072
MAX_ANSWER_TOKENS = 131_072
"""Of an answer that another epoch can be asked to go on with."""
MAX_TEXT = 4096
MAX_GRAMMAR = 60_000
"""Characters of the grammar of an answer."""


class Wire(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A part of a message. It travels as the array of its fields; a part that is a dataclass, with their names."""


class Message(Wire, frozen=True):
    """One that has a tag in `codec.py`."""


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


class WeightMemory(Wire, frozen=True):
    """How a node holds its weights: all of them, or within `nbytes` of memory, of which `ring_bytes` are what the
    streamed ones pass through (0: the node chooses). `direct`: read past the page cache."""

    nbytes: U64
    ring_bytes: U64
    pin: Pin
    direct: bool


class Keeping(Wire, frozen=True):
    """What the user of a machine wants of its weights: how many are pinned, the ring in blocks (of the largest size) or
    in bytes (0: whatever is best), and whether reads go past the page cache."""

    pin: Pin = "auto"
    window_blocks: U32 = 0
    window_bytes: U64 = 0
    direct: bool = True


#: Everything stays in memory.
ALL_PINNED = WeightMemory(0, 0, "all", True)


def rate_of(nbytes: int, seconds: float) -> float:
    """Returns bytes per second as a Rate: at least 1 where any bytes moved, and 0 where none did."""
    return max(1.0, nbytes / seconds) if nbytes else 0.0


def check_rates(*rates: float) -> None:
    """Raises ValueError for a rate between 0 and 1: planning divides by it and would overflow."""
    if any(0 < rate < 1 for rate in rates):
        raise ValueError("a rate is 0 or at least 1 byte per second")


INT8_GROUP = 64
"""Elements of a row that share an f32 scale where they travel as int8; a row's last group may be short."""

SummandPrecision = WirePrecision | Literal["i32"]
"""How a summand travels: of f32 as WirePrecision says, of integers as it is."""

DType = Literal["f32", "bf16", "i32", "i64", "u8"]
_ITEM_SIZES = {"f32": 4, "bf16": 2, "i32": 4, "i64": 8, "u8": 1}


class TensorHeader(Struct, frozen=True):
    """Element type and shape of a tensor whose elements follow, row-major and little-endian."""

    dtype: DType
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * _ITEM_SIZES[self.dtype]


def wire_bytes(wire: WirePrecision, rows: int, columns: int) -> int:
    """Bytes of an f32 matrix that travels with the precision `wire`."""
    return rows * (_ITEM_SIZES[wire] * columns if wire != "int8" else columns + 4 * -(-columns // INT8_GROUP))
