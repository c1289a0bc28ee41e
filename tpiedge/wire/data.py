"""Messages of the tensor plane: rank 0 and the other nodes, inside one step.

`block` counts the blocks of a sweep from 0, `chunk` the chunks of a step from 0. `sender` is a rank; the
transport knows better who sent a message, and the receiver compares.
"""

from typing import Annotated

from msgspec import Meta

from tpiedge.wire.fields import (
    U8,
    U32,
    U64,
    CollectiveName,
    Message,
    Name,
    Rank,
    Rate,
    Seconds,
    UnitRange,
    Wire,
    WirePrecision,
    check_rates,
)
from tpiedge.wire.limits import MAX_MOVES, MAX_NODES, MAX_PAGES, MAX_SEGMENTS
from tpiedge.wire.tensors import TensorHeader

CANCEL = 1
"""Bit of `flags`: rank 0 wants the work to end; every node sees it after the same block."""


class Segment(Wire, frozen=True):
    """New positions [start, start + length) of the sequence in slot `slot` of the KV cache.

    Of the last `wanted` positions rank 0 uses the final hidden states: the last FFN, and so the logits, are computed
    for these alone.
    """

    slot: U32
    start: U32
    length: U32
    wanted: U32


class TableChange(Wire, frozen=True):
    """The pages of a sequence, before the step: the first `kept` of its slot's table stay, `pages` follow, and `filled`
    positions of them all hold keys and values."""

    slot: U32
    kept: U32
    pages: Annotated[tuple[U32, ...], Meta(max_length=MAX_PAGES)]
    filled: U32


class StepPlan(Message, frozen=True):
    """Rank 0 announces a step of `tokens` new positions, computed `chunk_tokens` at a time; the first `apart_tokens` of
    them at most sixteen at a time.

    `tables` change first; the memory of the `discarded` pages goes back. All-reduces of more than `small_bytes` (as
    f32) go by `bulk_collective`, the others by `collective`; partials travel as `wire`. `recorded`: each node tells the
    master what it did in it, and when.
    """

    epoch: U32
    step: U64
    segments: Annotated[tuple[Segment, ...], Meta(max_length=MAX_SEGMENTS)]
    chunk_tokens: U32
    tokens: U32
    apart_tokens: U32 = 0
    tables: Annotated[tuple[TableChange, ...], Meta(max_length=MAX_SEGMENTS)] = ()
    discarded: Annotated[tuple[U32, ...], Meta(max_length=MAX_PAGES)] = ()
    collective: CollectiveName = "star"
    bulk_collective: CollectiveName = "star"
    small_bytes: U32 = 0
    wire: WirePrecision = "f32"
    recorded: bool = False


class LeavePages(Message, frozen=True):
    """Rank 0 to every node, in place of a step: leave these pages for the epoch that follows, each rank on its machine
    those of its KV heads `kept`; and send rank 0 those in `sent` (rank, head)."""

    epoch: U32
    step: U64
    pages: Annotated[tuple[U32, ...], Meta(max_length=MAX_PAGES)]
    kept: Annotated[tuple[UnitRange, ...], Meta(max_length=MAX_NODES)]
    sent: Annotated[tuple[tuple[U32, U32], ...], Meta(max_length=MAX_MOVES)]


class Hidden(Message, frozen=True):
    """The embedded tokens of a chunk [tokens, hidden], from rank 0 to every node."""

    epoch: U32
    step: U64
    chunk: U32
    tensor: TensorHeader


class Partial(Message, frozen=True):
    """A node's summand of an all-reduce; no tensor where its share of the block is empty."""

    epoch: U32
    step: U64
    block: U32
    chunk: U32
    flags: U8
    sender: Rank
    tensor: TensorHeader | None


class Reduced(Message, frozen=True):
    """The sum of all partials, on its way from rank 0 to every node."""

    epoch: U32
    step: U64
    block: U32
    chunk: U32
    flags: U8
    tensor: TensorHeader


class Gathered(Message, frozen=True):
    """A node's part of a gather to rank 0."""

    epoch: U32
    step: U64
    block: U32
    chunk: U32
    sender: Rank
    tensor: TensorHeader


class Slice(Message, frozen=True):
    """A part of a summand or of a sum, in an all-reduce of several hops, counted from 0; no tensor where the sender has
    nothing to add."""

    epoch: U32
    step: U64
    block: U32
    chunk: U32
    flags: U8
    hop: U8
    sender: Rank
    tensor: TensorHeader | None


class Survey(Message, frozen=True):
    """Rank 0 to every node, before the first step: `turn` measures its links to the ranks below it while the others
    answer; with a `turn` of 0 the survey is over."""

    epoch: U32
    turn: Rank


class MeasuredLink(Wire, frozen=True):
    """The link of a node to `rank`, measured by echoes."""

    rank: Rank
    round_trip_s: Seconds
    bytes_per_s: Rate

    def __post_init__(self) -> None:
        check_rates(self.bytes_per_s)


class LinkReport(Message, frozen=True):
    """Node to rank 0, after its turn in a survey: its links to those ranks below it that it can reach, and on which
    machine, with how many cores, it runs."""

    epoch: U32
    sender: Rank
    host: Name
    cores: U32
    links: Annotated[tuple[MeasuredLink, ...], Meta(max_length=MAX_NODES)]
