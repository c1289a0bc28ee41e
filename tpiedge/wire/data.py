"""Defines the messages of the tensor plane (step plans, hidden states, all-reduces) and the files plane.

`block` is a number within a sweep. `chunk` is a number within a step. `sender` is a rank; the receiver checks it. In
messages about files, `epoch` is a random number of the transfer, and `number` counts requests.
"""

from typing import Annotated, Literal

from msgspec import Meta

from tpiedge.wire import fields as f

CANCEL = 1
"""Bit of `flags`: rank 0 cancels the step; every node sees the bit after the same block."""


class Segment(f.Wire, frozen=True):
    """`length` new positions of the sequence in `slot`, from `start` on. The last `wanted` positions need logits.
    `long`: the sequence needs LongRoPE's long factors."""

    slot: f.U32
    start: f.U32
    length: f.U32
    wanted: f.U32
    long: bool = False


class TableChange(f.Wire, frozen=True):
    """A slot's new page table: the first `kept` old pages, then `pages`. The first `filled` positions have keys and
    values."""

    slot: f.U32
    kept: f.U32
    pages: Annotated[tuple[f.U32, ...], Meta(max_length=f.MAX_PAGES)]
    filled: f.U32


class StepPlan(f.EpochMessage, frozen=True, tag=1):
    """Rank 0 to all: change the `tables`, then take a step."""

    step: f.U64
    segments: Annotated[tuple[Segment, ...], Meta(max_length=f.MAX_SEGMENTS)]
    chunk_tokens: f.U32  # the most tokens of a chunk
    tokens: f.U32  # new positions
    apart_tokens: f.U32 = 0  # how many first tokens go in chunks of at most 16
    tables: Annotated[tuple[TableChange, ...], Meta(max_length=f.MAX_SEGMENTS)] = ()
    discarded: Annotated[tuple[f.U32, ...], Meta(max_length=f.MAX_PAGES)] = ()  # pages to free
    collective: f.CollectiveName = "star"
    bulk_collective: f.CollectiveName = "star"
    small_bytes: f.U32 = 0  # larger all-reduces, as f32, use `bulk_collective`
    wire: f.WirePrecision = "f32"
    recorded: bool = False  # each node sends the master its StepSpans


class PageOrder(f.Wire, frozen=True):
    """Leave pages on disk, or bring them from disk. Name i of `names` (16 bytes each) belongs to page i."""

    number: f.U64  # grows; answers name it
    kind: Literal["leave", "bring"]
    kept: bool  # the store
    pages: Annotated[tuple[f.U32, ...], Meta(max_length=f.MAX_NAMED_PAGES)]
    names: f.Blob


class PageOrders(f.EpochMessage, frozen=True, tag=9):
    """Rank 0 to all, between steps: answer for the earlier orders `asked`, if any, and forget the others; obey `orders`
    (of MAX_NAMED_PAGES in all); copy the heads `gathered` of the pages `names` to rank 0's disk."""

    step: f.U64  # counts like a step
    orders: Annotated[tuple[PageOrder, ...], Meta(max_length=f.MAX_ARRAY)] = ()
    asked: Annotated[tuple[f.U64, ...], Meta(max_length=f.MAX_ARRAY)] = ()
    gathered: f.Moves = ()
    names: f.Blob = b""
    used: f.Blob = b""  # names of pages that were used, one after the other
    #: How much parked pages may take from now on: as much as a full KV cache, or as usual.
    room: Literal["", "halt", "usual"] = ""


class Hidden(f.EpochMessage, frozen=True, tag=2):
    """Rank 0 to every node: a chunk's embedded tokens [tokens, hidden]."""

    step: f.U64
    chunk: f.U32
    tensor: f.TensorHeader


class BlockMessage(f.EpochMessage, frozen=True):
    """A message that belongs to a block of a chunk. `choices`: a digest of the experts that the sender chose for the
    chunk's tokens; 0 if it chose none."""

    step: f.U64
    block: f.U32
    chunk: f.U32
    choices: f.U32


class Partial(BlockMessage, frozen=True, tag=3):
    """A node's summand. A node with an empty share sends no tensor."""

    flags: f.U8
    sender: f.Rank
    tensor: f.TensorHeader | None


class Reduced(BlockMessage, frozen=True, tag=4):
    """Rank 0 to every node: the sum of all partials."""

    flags: f.U8
    tensor: f.TensorHeader


class Gathered(BlockMessage, frozen=True, tag=5):
    """A node's part of a gather to rank 0."""

    sender: f.Rank
    tensor: f.TensorHeader


class Slice(BlockMessage, frozen=True, tag=6):
    """A slice of a summand (`hop` 0) or of the sum (`hop` 1). A node with an empty share has no tensor at hop 0."""

    flags: f.U8
    hop: f.U8
    sender: f.Rank
    tensor: f.TensorHeader | None


class Survey(f.EpochMessage, frozen=True, tag=7):
    """Rank 0 to all, before the first step: node `turn` measures links to lower ranks. Turn 0 ends the survey."""

    turn: f.Rank


class MeasuredLink(f.Wire, frozen=True):
    rank: f.Rank
    round_trip_s: f.Seconds
    bytes_per_s: f.Rate

    def __post_init__(self) -> None:
        f.check_rates(self.bytes_per_s)


class LinkReport(f.EpochMessage, frozen=True, tag=8):
    """Node to rank 0, after its turn: its links to the lower ranks that it can reach."""

    sender: f.Rank
    host: f.Name
    cores: f.U32
    links: Annotated[tuple[MeasuredLink, ...], Meta(max_length=f.MAX_NODES)]


Digest = Annotated[str, Meta(max_length=64)]
FilePart = Literal["manifest", "hashes", "blob"]


class Fetch(f.EpochMessage, frozen=True, tag=80):
    """Worker to master: send `length` bytes of a file of `pack` (the sha256 of its manifest). Only for a manifest may
    the answer be shorter."""

    number: f.U32
    pack: Digest
    part: FilePart
    blob: Digest
    offset: f.U64
    length: f.U32


class FileChunk(f.EpochMessage, frozen=True, tag=81):
    """Master to worker: the requested bytes, as a 1-D tensor. The whole file has `total` bytes."""

    number: f.U32
    total: f.U64
    tensor: f.TensorHeader


class FetchFailed(f.EpochMessage, frozen=True, tag=82):
    """Master to worker: why a request has no answer."""

    number: f.U32
    message: f.Text
