"""Messages of the control plane, between the master and each node: heartbeats, requests, tokens, losses, statistics."""

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from msgspec import Meta, structs

from tpiedge.wire import fields as f
from tpiedge.wire.requests import GenerationRequest

FinishReason = Literal["stop", "length", "cancel"]

SPECULATE_AUTO: Final = 255
"""A value of `Assign.speculate`: the node drafts as many tokens as save time."""


class Hello(f.NodeMessage, frozen=True, tag=32):
    """Node to master: the node's first message."""


class KVSnapshot(f.Wire, frozen=True):
    """The KV pages that the nodes of the previous epoch parked, by name (16 bytes each)."""

    names: f.Blob
    scattered: f.Moves  # from rank 0; other heads are on the nodes' machines


class PageKeys(f.Wire, frozen=True):
    """Keys of pages on disk. Only rank 0 gets the keys of names, `shared` and `own`."""

    shared: f.Blob
    own: f.Blob
    kept_seal: f.Blob
    parked_seal: f.Blob
    keep: bool  # every machine consents to kept pages
    park: bool  # every machine has room for waiting sequences

    def __repr__(self) -> str:
        return f"PageKeys(keep={self.keep}, park={self.park}, keys that are not shown)"


class Assign(f.NodeMessage, frozen=True, tag=33):
    """Master to node: the node's part of the plan. Unless `collective` is "star", every node except the highest rank
    listens for nodes of higher ranks."""

    nodes: Annotated[tuple[f.Rank, ...], Meta(max_length=f.MAX_NODES)]
    share: f.ShareRanges
    compute: f.Compute
    threads: f.U32
    capacity_tokens: f.U32  # positions of all requests
    context_tokens: f.U32  # positions of one request
    sequences: Annotated[int, Meta(ge=1, le=f.MAX_SEQUENCES)]  # requests at once
    speculate: f.U8  # drafted tokens per step
    #: Public keys of all data endpoints.
    peer_keys: Annotated[tuple[tuple[f.Rank, f.Key], ...], Meta(max_length=f.MAX_NODES)]
    weights: f.WeightMemory
    collective: f.CollectiveChoice = "auto"
    wire: f.WirePrecision = "f32"  # the precision of partials
    kv: f.KVPrecision = "f32"  # the precision of keys and values
    #: Each quantised layer's exponents (pack/grids.py).
    grids: Annotated[tuple[f.GridExponents, ...], Meta(max_length=f.MAX_LAYERS)] = ()
    elastic: bool = False  # some node uses free KV memory for weights
    snapshot: KVSnapshot | None = None
    pages: PageKeys | None = None


class Listening(f.NodeMessage, frozen=True, tag=34):
    """Node to master: the address of the node's data endpoint."""

    endpoint: f.Name


class Connect(f.EpochMessage, frozen=True, tag=50):
    """Master to node: connect to these data endpoints."""

    endpoints: Annotated[tuple[tuple[f.Rank, f.Name], ...], Meta(max_length=f.MAX_NODES)]


class Loading(f.NodeMessage, frozen=True, tag=35):
    """Node to master: progress of loading weights."""

    done_bytes: f.U64
    total_bytes: f.U64


@dataclass(frozen=True, slots=True)
class WorkerLink:
    low: f.Rank
    high: f.Rank
    round_trip_s: f.Seconds


class Ready(f.NodeMessage, frozen=True, tag=36):
    """Node to master: the node can take steps. Only rank 0 sets the fields after `weight_bytes`."""

    weight_bytes: f.U64
    collective: f.Name = ""
    bulk_collective: f.Name = ""
    why: f.Text = ""  # the reason for a surprising choice
    links: Annotated[tuple[WorkerLink, ...], Meta(max_length=f.MAX_ARRAY)] = ()


class Heartbeat(f.NodeMessage, frozen=True, tag=37):
    """Node to master, regularly: the engine's progress. Rank 0 says in `reading` how many tokens of each prompt are
    computed."""

    step: f.U64
    block: f.U32
    bytes_read: f.U64
    reading: Annotated[tuple[tuple[f.Name, f.U32], ...], Meta(max_length=f.MAX_SEQUENCES)] = ()


class PeerPulse(f.Wire, frozen=True):
    """The latest progress that the master knows of node `rank`."""

    rank: f.Rank
    step: f.U64
    block: f.U32
    bytes_read: f.U64
    state: f.Name


class Pulse(f.EpochMessage, frozen=True, tag=38):
    """Master to nodes, regularly: the progress of all nodes."""

    peers: Annotated[tuple[PeerPulse, ...], Meta(max_length=f.MAX_NODES)]


class Lost(f.NodeMessage, frozen=True, tag=39):
    """Master to nodes: node `rank` is lost for this epoch."""

    cause: f.Text


class Generate(f.EpochMessage, frozen=True, tag=40):
    """Master to rank 0: answer this request."""

    request: GenerationRequest


class Compile(f.EpochMessage, frozen=True, tag=56):
    """Master to rank 0: compile a request's grammar before Generate.

    Rank 0 answers with Compiled or Failed, or with Finished after Cancel. Requests of one group share a compiled
    grammar.
    """

    request: GenerationRequest
    group: f.Name


class Compiled(f.EpochMessage, frozen=True, tag=57):
    """Rank 0 to master: the request's grammar is compiled. `processor_s` is CPU time."""

    request: f.Name
    processor_s: f.Seconds


class Halt(f.EpochMessage, frozen=True, tag=51):
    """Master to rank 0: take no more steps, park the running requests' KV pages, and answer Halted."""

    following: f.U32  # the next epoch
    gathered: f.Moves  # to rank 0, for nodes of the next epoch on other machines


class Halted(f.NodeMessage, frozen=True, tag=52):
    """Rank 0 to master: generation has stopped. The pages `names` are parked for the epoch `following`. If none are,
    `why` is the reason."""

    following: f.U32
    names: f.Blob
    why: f.Text


class Resume(f.EpochMessage, frozen=True, tag=53):
    """Master to rank 0, after Halt: continue, because no epoch follows."""


class Token(f.EpochMessage, frozen=True, tag=41):
    """Rank 0 to master: a token of the answer. `logprobs` has (id, log probability) of the likeliest tokens and of
    `token`. `brought`: with the epoch's first token, the number of positions that came from disk."""

    request: f.Name
    index: f.U32
    token: f.U32
    logprobs: Annotated[tuple[tuple[f.U32, f.Finite], ...], Meta(max_length=33)]
    brought: f.U32 = 0


class PromptScores(f.EpochMessage, frozen=True, tag=48):
    """Rank 0 to master: log probabilities of the prompt's tokens from position `first` on. `likeliest` has (id, log
    probability) pairs, equally many for each position."""

    request: f.Name
    first: f.U32
    scores: Annotated[tuple[f.Finite, ...], Meta(max_length=f.MAX_ARRAY)]
    likeliest: Annotated[tuple[tuple[f.U32, f.Finite], ...], Meta(max_length=32 * f.MAX_ARRAY)] = ()

    def since(self, position: int) -> "PromptScores":
        known = position - self.first
        each = len(self.likeliest) // len(self.scores)
        return structs.replace(
            self, first=position, scores=self.scores[known:], likeliest=self.likeliest[known * each :]
        )


class Embedding(f.EpochMessage, frozen=True, tag=54):
    """Rank 0 to master: the prompt's pooled hidden states, after the final norm."""

    request: f.Name
    values: Annotated[tuple[f.Finite, ...], Meta(max_length=f.MAX_HIDDEN)]


AnswerPart = Token | PromptScores | Embedding


class Finished(f.EpochMessage, frozen=True, tag=42):
    """Rank 0 to master: the answer is complete."""

    request: f.Name
    reason: FinishReason
    prompt_tokens: f.U32
    tokens: f.U32
    cached_tokens: f.U32  # prompt tokens that earlier requests computed
    steps: f.U32  # sweeps
    processor_s: f.Seconds = 0.0  # CPU time for the grammar since Compiled
    brought_tokens: f.U32 = 0  # of `cached_tokens`, from disk


class Failed(f.NodeMessage, frozen=True, tag=43):
    """Node to master: an error of class `kind` ended `request` or, if that is "", the node. `processor_s` is as in
    Finished."""

    request: f.Name
    kind: f.Name
    message: f.Text
    processor_s: f.Seconds = 0.0


class Breach(f.NodeMessage, frozen=True, tag=49):
    """Rank 0 to master, before Failed: a node broke the protocol of the tensor plane."""

    offender: f.Rank
    cause: f.Text


class Cancel(f.EpochMessage, frozen=True, tag=44):
    """Master to rank 0: end this request."""

    request: f.Name


class AskStats(f.EpochMessage, frozen=True, tag=45):
    """Master to node: send Stats. With `timeline`, all nodes record the next step that computes no prompt."""

    timeline: bool = False


class Stats(f.NodeMessage, frozen=True, tag=46):
    """Node to master: the node's counts in this epoch."""

    peak_rss_bytes: f.U64
    weight_bytes: f.U64
    kv_bytes: f.U64
    disk_read_bytes: f.U64
    bytes_sent: f.U64
    bytes_received: f.U64
    compute_s: f.Seconds
    attention_s: f.Seconds  # a part of `compute_s`, like `ffn_s`
    ffn_s: f.Seconds
    reduce_wait_s: f.Seconds
    weight_wait_s: f.Seconds  # the time of all `stalls`
    load_s: f.Seconds  # time with at least one read of weights under way
    reads: f.U64  # reads of streamed weights from disk
    prefetch_hits: f.U64  # blocks that were read ahead
    stalls: f.U64  # blocks that the node waited for
    steps: f.U64
    tokens: f.U64
    head_s: f.Seconds
    dropped: f.U64  # messages that came late
    refused: f.U64  # messages that no honest node sends
    kv_pages: f.U32
    kv_pages_used: f.U32  # some are kept for later requests
    drafted: f.U64
    accepted: f.U64  # drafted tokens that were right
    window_bytes: f.U64  # the ring's part of `weight_bytes`
    kv_reserved_bytes: f.U64
    # KV pages from and to the node's disk, and the time with at least one under way.
    brought_bytes: f.U64
    left_bytes: f.U64
    brought_pages: f.U64
    left_pages: f.U64
    bring_s: f.Seconds
    leave_s: f.Seconds
    evicted_pages: f.U64  # deleted for others, because of a limit


class StepSpans(f.NodeMessage, frozen=True, tag=55):
    """Node to master: spans (start, end) of a step, in microseconds since the first span. `disk` has waits for weights,
    perhaps within `compute`."""

    step: f.U64
    tokens: f.U32
    compute: Annotated[tuple[tuple[f.U32, f.U32], ...], Meta(max_length=f.MAX_SPANS)]
    reduce: Annotated[tuple[tuple[f.U32, f.U32], ...], Meta(max_length=f.MAX_SPANS)]
    disk: Annotated[tuple[tuple[f.U32, f.U32], ...], Meta(max_length=f.MAX_SPANS)]


class Shutdown(f.EpochMessage, frozen=True, tag=47):
    """Master to node: finish and exit."""
