"""Defines types and limits of message fields. `codec.py` refuses other values and NaN."""

import sys
from dataclasses import dataclass
from math import prod
from typing import Annotated, Literal

from msgspec import Meta, Struct

from tpiedge.units import KIB, MIB

MAX_TENSOR_HEADER = 64 * KIB
"""Most bytes of a message on the tensor plane, without its tensor."""

MAX_CONTROL_HEADER = 1 * MIB + 640 * KIB
"""Most bytes of a control message: room for a request with MAX_PROMPT_TOKENS, MAX_ANSWER_TOKENS and MAX_GRAMMAR."""

MAX_TENSOR_BYTES = 32 * MIB
"""Most bytes of a tensor. A chunk's tensor has at most 1 MiB or one row of hidden states, twice as much with wide
integers."""

ACTIVATION_BYTES = 64 * MIB
"""Most bytes of the f32 hidden states of one step."""

MAX_FILE_CHUNK = 4 * MIB
MAX_ARRAY = 128
MAX_BLOB = 256 * KIB
MAX_NODES = MAX_ARRAY
MAX_LAYERS = 1024
MAX_SEGMENTS = MAX_ARRAY
MAX_PAGES = 6000
"""Most KV pages in all lists of one message: so many fit a header, together with the segments."""
NAME_BYTES = 16  # of a KV page's name
MAX_NAMED_PAGES = 2000
"""Most KV pages whose names are in one message of the tensor plane."""
MAX_SEQUENCES = 64
MAX_SPANS = 4096
MAX_MOVES = 1024
MAX_DIMENSIONS = 4
MAX_HIDDEN = 131_072
"""Hidden size; no model has more (`model/config.py`)."""
MAX_PROMPT_TOKENS = 131_072
MAX_ANSWER_TOKENS = 131_072
MAX_TEXT = 4096
MAX_GRAMMAR = 60_000


class Wire(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A part of a message, encoded as an array of its fields."""


class Message(Wire, frozen=True):
    """A message. Each class that is sent has a tag."""


@dataclass(frozen=True, slots=True)
class Range:
    """Inclusive bounds of a number that a user gives."""

    low: float
    high: float


I8 = Annotated[int, Meta(ge=-(2**7), le=2**7 - 1)]
U8 = Annotated[int, Meta(ge=0, le=2**8 - 1)]
U32 = Annotated[int, Meta(ge=0, le=2**32 - 1)]
U64 = Annotated[int, Meta(ge=0)]
"""MessagePack has no larger integers."""
Rank = Annotated[int, Meta(ge=0, le=MAX_NODES - 1)]
Finite = Annotated[float, Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
Seconds = Annotated[float, Meta(ge=0.0, le=1e9)]
Rate = Annotated[float, Meta(ge=0.0, le=1e18)]
"""Bytes per second; 0 means not measured. `check_rates` refuses values between 0 and 1."""
Name = Annotated[str, Meta(max_length=256)]
Text = Annotated[str, Meta(max_length=MAX_TEXT)]
Blob = Annotated[bytes, Meta(max_length=MAX_BLOB)]
Key = Annotated[str, Meta(max_length=40)]
"""A CURVE public key in Z85, or empty."""
GridExponents = Annotated[tuple[I8, ...], Meta(min_length=2, max_length=4)]
UnitRange = tuple[U32, U32]
"""A half-open interval."""
Moves = Annotated[tuple[tuple[U32, U32], ...], Meta(max_length=MAX_MOVES)]
"""The (rank, KV head) pairs that travel between `rank` and rank 0."""
Compute = Literal["f32", "bf16", "int8"]
"""The arithmetic of products with weights: int8 only where weights are quantised, bf16 only where not."""
KVPrecision = Literal["f32", "bf16", "q8", "q4"]
CollectiveName = Literal["star", "mesh", "two-shot"]
CollectiveChoice = Literal["auto", "star", "mesh", "two-shot"]
"""A collective, or "auto": the fastest by the measured links."""
WirePrecision = Literal["f32", "bf16", "int8"]
"""The numbers of summands in messages; int8 has a scale for every INT8_GROUP."""
SpareKind = Literal[
    "slower", "too small", "no room", "shares", "too many", "excluded", "drained", "fetching", "no plan"
]
"""Why a machine has no part in the plan. slower: it would hinder or hardly help; too small: its memory holds no
share; no room: no share fits its disk or memory, or it lacks kernels; excluded: it failed; fetching: its weights take
long to fetch."""
Pin = Literal["none", "auto", "all"]


class EpochMessage(Message, frozen=True):
    """A message that is not about joining."""

    epoch: U32


class NodeMessage(EpochMessage, frozen=True):
    """A message from, to or about the node `rank`."""

    rank: Rank


class WeightMemory(Wire, frozen=True):
    """A node's memory for weights."""

    nbytes: U64  # 0: for all weights
    ring_bytes: U64  # 0: the node's choice
    pin: Pin
    direct: bool  # no page cache


class ShareRanges(Wire, frozen=True):
    """A node's layers, and its units along each axis of which it has some."""

    layers: UnitRange
    axes: Annotated[tuple[tuple[Name, UnitRange], ...], Meta(max_length=8)]

    def __post_init__(self) -> None:
        if len(dict(self.axes)) < len(self.axes):
            raise ValueError("a share names an axis twice")
        for name, (start, stop) in (("layers", self.layers), *self.axes):
            if start >= stop:
                raise ValueError(f"a share has the empty range [{start}, {stop}) of {name!r:.40}")


class Keeping(Wire, frozen=True):
    """A user's settings for weights in memory."""

    pin: Pin = "auto"
    window_blocks: U32 = 0  # the window in blocks of the largest size
    #: The window in bytes. If both are 0, the planner chooses.
    window_bytes: U64 = 0
    direct: bool = True


ALL_PINNED = WeightMemory(0, 0, "all", True)


def rate_of(nbytes: int, seconds: float) -> float:
    """Returns a Rate: at least 1 if bytes moved, else 0."""
    return max(1.0, nbytes / seconds) if nbytes else 0.0


def check_rates(*rates: float) -> None:
    """Raises ValueError for a rate between 0 and 1."""
    # Dividing by such a rate would overflow.
    if any(0 < rate < 1 for rate in rates):
        raise ValueError("a rate is 0 or at least 1 byte per second")


INT8_GROUP = 64
"""Elements of a row that share an f32 scale as int8; a row's last group may be short."""

SummandPrecision = WirePrecision | Literal["i32"]
"""i32 means integers that are sent unchanged."""

DType = Literal["f32", "bf16", "i32", "i64", "u8"]
_ITEM_SIZES = {"f32": 4, "bf16": 2, "i32": 4, "i64": 8, "u8": 1}


class TensorHeader(Struct, frozen=True):
    """The type and shape of a row-major, little-endian tensor."""

    dtype: DType
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * _ITEM_SIZES[self.dtype]


def wire_bytes(wire: WirePrecision, rows: int, columns: int) -> int:
    return rows * (_ITEM_SIZES[wire] * columns if wire != "int8" else columns + 4 * -(-columns // INT8_GROUP))
