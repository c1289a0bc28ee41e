"""Messages of the tensor plane: rank 0 and the other nodes, inside one step.

`block` counts the blocks of a sweep from 0, `chunk` the chunks of a step from 0. `sender` is a rank; the
transport knows better who sent a message, and the receiver compares.
"""

from dataclasses import dataclass
from typing import Annotated

from tpiedge.wire.fields import U8, U32, U64, MaxItems, Rank
from tpiedge.wire.limits import MAX_SEGMENTS
from tpiedge.wire.tensors import TensorHeader

__all__ = ["ADD_OWN", "CANCEL", "Gathered", "Hidden", "Partial", "Reduced", "Segment", "StepPlan"]

ADD_OWN = 2
"""Bit of `Reduced.flags`: the tensor is rank 0's own part, to which the only other rank adds its own."""

CANCEL = 1
"""Bit of `Reduced.flags`: rank 0 wants the work to end; every node sees it after the same block."""


@dataclass(frozen=True, slots=True)
class Segment:
    """New positions [start, start + length) of the sequence in cache slot `slot`.

    `rope_length` is the sequence length that RoPE scaling goes by.
    """

    slot: U32
    start: U32
    length: U32
    rope_length: U32


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Rank 0 announces a step of `tokens` new positions, computed `chunk_tokens` at a time.

    Unless `every_row` is set, the last FFN is computed for the last position of each segment alone.
    """

    epoch: U32
    step: U64
    segments: Annotated[tuple[Segment, ...], MaxItems(MAX_SEGMENTS)]
    chunk_tokens: U32
    tokens: U32
    every_row: bool = False


@dataclass(frozen=True, slots=True)
class Hidden:
    """The embedded tokens of a chunk [tokens, hidden], from rank 0 to every node."""

    epoch: U32
    step: U64
    chunk: U32
    tensor: TensorHeader


@dataclass(frozen=True, slots=True)
class Partial:
    """A node's summand of an all-reduce; no tensor where its share of the block is empty."""

    epoch: U32
    step: U64
    block: U32
    chunk: U32
    sender: Rank
    tensor: TensorHeader | None


@dataclass(frozen=True, slots=True)
class Reduced:
    """The sum of all partials, from rank 0 to every node."""

    epoch: U32
    step: U64
    block: U32
    chunk: U32
    flags: U8
    tensor: TensorHeader


@dataclass(frozen=True, slots=True)
class Gathered:
    """A node's part of a gather to rank 0."""

    epoch: U32
    step: U64
    block: U32
    chunk: U32
    sender: Rank
    tensor: TensorHeader
