"""Messages with data: of the tensor plane, between rank 0 and the other nodes inside one step, and of the files plane,
where a worker asks for bytes of a pack and the master answers.

`block` counts the blocks of a sweep from 0, `chunk` the chunks of a step from 0. `sender` is a rank; the
transport knows better who sent a message, and the receiver compares. In messages about files `epoch` is a number that
the worker draws for one transfer, `number` counts its requests: an answer says which request it belongs to, and
whatever belongs to no open request is dropped.
"""

from typing import Annotated, Literal

from msgspec import Meta

from tpiedge.wire import fields as f

CANCEL = 1
"""Bit of `flags`: rank 0 wants the work to end; every node sees it after the same block."""


class Segment(f.Wire, frozen=True):
    """New positions [start, start + length) of the sequence in slot `slot` of the KV cache.

    Of the last `wanted` positions rank 0 uses the final hidden states: the last FFN, and so the logits, are computed
    for these alone.
    """

    slot: f.U32
    start: f.U32
    length: f.U32
    wanted: f.U32


class TableChange(f.Wire, frozen=True):
    """The pages of a sequence, before the step: the first `kept` of its slot's table stay, `pages` follow, and `filled`
    positions of them all hold keys and values."""

    slot: f.U32
    kept: f.U32
    pages: Annotated[tuple[f.U32, ...], Meta(max_length=f.MAX_PAGES)]
    filled: f.U32


class StepPlan(f.Message, frozen=True):
    """Rank 0 announces a step of `tokens` new positions, computed `chunk_tokens` at a time; the first `apart_tokens` of
    them at most sixteen at a time.

    `tables` change first; the memory of the `discarded` pages goes back. All-reduces of more than `small_bytes` (as
    f32) go by `bulk_collective`, the others by `collective`; partials travel as `wire`. `recorded`: each node tells the
    master what it did in it, and when.
    """

    epoch: f.U32
    step: f.U64
    segments: Annotated[tuple[Segment, ...], Meta(max_length=f.MAX_SEGMENTS)]
    chunk_tokens: f.U32
    tokens: f.U32
    apart_tokens: f.U32 = 0
    tables: Annotated[tuple[TableChange, ...], Meta(max_length=f.MAX_SEGMENTS)] = ()
    discarded: Annotated[tuple[f.U32, ...], Meta(max_length=f.MAX_PAGES)] = ()
    collective: f.CollectiveName = "star"
    bulk_collective: f.CollectiveName = "star"
    small_bytes: f.U32 = 0
    wire: f.WirePrecision = "f32"
    recorded: bool = False


class LeavePages(f.Message, frozen=True):
    """Rank 0 to every node, in place of a step: leave these pages for the epoch that follows, each rank on its machine
    those of its KV heads `kept`; and send rank 0 those in `sent` (rank, head)."""

    epoch: f.U32
    step: f.U64
    pages: Annotated[tuple[f.U32, ...], Meta(max_length=f.MAX_PAGES)]
    kept: Annotated[tuple[f.UnitRange, ...], Meta(max_length=f.MAX_NODES)]
    sent: Annotated[tuple[tuple[f.U32, f.U32], ...], Meta(max_length=f.MAX_MOVES)]


class Hidden(f.Message, frozen=True):
    """The embedded tokens of a chunk [tokens, hidden], from rank 0 to every node."""

    epoch: f.U32
    step: f.U64
    chunk: f.U32
    tensor: f.TensorHeader


class Partial(f.Message, frozen=True):
    """A node's summand of an all-reduce; no tensor where its share of the block is empty."""

    epoch: f.U32
    step: f.U64
    block: f.U32
    chunk: f.U32
    flags: f.U8
    sender: f.Rank
    tensor: f.TensorHeader | None


class Reduced(f.Message, frozen=True):
    """The sum of all partials, on its way from rank 0 to every node."""

    epoch: f.U32
    step: f.U64
    block: f.U32
    chunk: f.U32
    flags: f.U8
    tensor: f.TensorHeader


class Gathered(f.Message, frozen=True):
    """A node's part of a gather to rank 0."""

    epoch: f.U32
    step: f.U64
    block: f.U32
    chunk: f.U32
    sender: f.Rank
    tensor: f.TensorHeader


class Slice(f.Message, frozen=True):
    """A part of a summand or of a sum, in an all-reduce of several hops, counted from 0; no tensor where the sender has
    nothing to add."""

    epoch: f.U32
    step: f.U64
    block: f.U32
    chunk: f.U32
    flags: f.U8
    hop: f.U8
    sender: f.Rank
    tensor: f.TensorHeader | None


class Survey(f.Message, frozen=True):
    """Rank 0 to every node, before the first step: `turn` measures its links to the ranks below it while the others
    answer; with a `turn` of 0 the survey is over."""

    epoch: f.U32
    turn: f.Rank


class MeasuredLink(f.Wire, frozen=True):
    """The link of a node to `rank`, measured by echoes."""

    rank: f.Rank
    round_trip_s: f.Seconds
    bytes_per_s: f.Rate

    def __post_init__(self) -> None:
        f.check_rates(self.bytes_per_s)


class LinkReport(f.Message, frozen=True):
    """Node to rank 0, after its turn in a survey: its links to those ranks below it that it can reach, and on which
    machine, with how many cores, it runs."""

    epoch: f.U32
    sender: f.Rank
    host: f.Name
    cores: f.U32
    links: Annotated[tuple[MeasuredLink, ...], Meta(max_length=f.MAX_NODES)]


Digest = Annotated[str, Meta(max_length=64)]
"""A sha256 in hexadecimal digits, or empty."""

FilePart = Literal["manifest", "hashes", "blob"]
"""What is asked for: a pack's manifest, the table of hashes of one of its blobs, or the blob."""


class Fetch(f.Message, frozen=True):
    """Worker to master: bytes [offset, offset + length) of a file of the pack `pack` (its manifest's sha256).

    Of a manifest or a table the answer may be shorter, where it ends before.
    """

    epoch: f.U32
    number: f.U32
    pack: Digest
    part: FilePart
    blob: Digest
    offset: f.U64
    length: f.U32


class FileChunk(f.Message, frozen=True):
    """Master to worker: the bytes asked for, in a tensor of one dimension; the whole file has `total`."""

    epoch: f.U32
    number: f.U32
    total: f.U64
    tensor: f.TensorHeader


class FetchFailed(f.Message, frozen=True):
    """Master to worker: why there is no answer to a request."""

    epoch: f.U32
    number: f.U32
    message: f.Text
